"""One declarative weight map per family: their names to ours. The inverse is derived (see `weight_map`)."""

from intaglio.checkpoints.maps import (
    deepseek,
    gemma,
    gpt2,
    gpt_neo,
    gpt_neox,
    llama,
    marian,
    mixtral,
    olmo2,
    openai_gpt,
    qwen3_moe,
)
from intaglio.checkpoints.weight_map import Rules, Transform

__all__ = ["MAPS", "classifier_rules"]

MAPS: dict[str, Rules] = {
    "llama": llama.RULES,
    "mistral": llama.RULES,
    "qwen2": llama.RULES,
    "qwen3": llama.RULES,
    "olmo2": olmo2.RULES,
    "gemma2": gemma.RULES,
    "gemma3_text": gemma.RULES,
    "mixtral": mixtral.RULES,
    "qwen3_moe": qwen3_moe.RULES,
    "deepseek_v2": deepseek.RULES,
    "deepseek_v3": deepseek.RULES,
    "gpt2": gpt2.RULES,
    "openai-gpt": openai_gpt.RULES,
    "gpt_neo": gpt_neo.RULES,
    "gpt_neox": gpt_neox.RULES,
    "marian": marian.RULES,
}


def classifier_rules(rules: Rules | None) -> Rules | None:
    """A family's map when the decoder stands under a `SequenceClassifier`; every family calls the head `score`."""
    if rules is None:
        return None
    inside: dict[str, str | tuple[tuple[str, ...], Transform]] = {"score.weight": "score.weight"}
    for theirs, ours in rules.items():
        if isinstance(ours, str):
            inside[theirs] = f"decoder.{ours}"
        else:
            names, transform = ours
            inside[theirs] = (tuple(f"decoder.{name}" for name in names), transform)
    return inside
