"""gpt2: matrices as (in, out), queries, keys and values in one."""

from intaglio.checkpoints.weight_map import Joined, Rules, Transposed

_THEIRS, _OURS = "transformer.h.{}.", "layers.{}."
_QKV = tuple(f"{_OURS}attention.{part}_proj" for part in "qkv")

LAYERS: Rules = {
    f"{_THEIRS}attn.c_attn.weight": (tuple(f"{name}.weight" for name in _QKV), Joined(transposed=True)),
    f"{_THEIRS}attn.c_attn.bias": (tuple(f"{name}.bias" for name in _QKV), Joined()),
    f"{_THEIRS}attn.c_proj.weight": ((f"{_OURS}attention.o_proj.weight",), Transposed()),
    f"{_THEIRS}attn.c_proj.bias": f"{_OURS}attention.o_proj.bias",
    f"{_THEIRS}mlp.c_fc.weight": ((f"{_OURS}feed_forward.up_proj.weight",), Transposed()),
    f"{_THEIRS}mlp.c_fc.bias": f"{_OURS}feed_forward.up_proj.bias",
    f"{_THEIRS}mlp.c_proj.weight": ((f"{_OURS}feed_forward.down_proj.weight",), Transposed()),
    f"{_THEIRS}mlp.c_proj.bias": f"{_OURS}feed_forward.down_proj.bias",
}


def norms(place: str) -> Rules:
    """ln_1 and ln_2, which stand at `place` (see `parts.block.Residual`)."""
    return {
        f"{_THEIRS}{theirs}.{kind}": f"{_OURS}{ours}.{place}.{kind}"
        for theirs, ours in (("ln_1", "attention_norm"), ("ln_2", "feed_forward_norm"))
        for kind in ("weight", "bias")
    }


EMBEDDINGS = {
    "transformer.wte.weight": "embed_tokens.weight",
    "transformer.wpe.weight": "positions.weight",
    "transformer.ln_f.weight": "norm.weight",
    "transformer.ln_f.bias": "norm.bias",
    "lm_head.weight": "lm_head.weight",
}

RULES: Rules = {**EMBEDDINGS, **LAYERS, **norms("before")}
