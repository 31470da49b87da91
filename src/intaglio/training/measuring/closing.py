"""What a pretraining run is measured by when it ends, beside numbers that need no model."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from intaglio.data.readers import read_rows
from intaglio.evaluation.byte_ngram import ByteNgram, xz_bits_per_byte
from intaglio.evaluation.code_samples import judge_code, longest_shared
from intaglio.models.decoder import Decoder
from intaglio.specs import Spec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.rollout import continue_prompts

__all__ = ["CodeSpec", "Texts", "measure_code", "yardsticks"]

Say = Callable[[str], None]


class CodeSpec(Spec):
    """Samples of code that are parsed.

    Attributes:
        samples: how many, the prompts in turn.
        tokens: of each, the prompt not counted.
        temperature: of sampling.
        min_p: tokens less likely than this share of the likeliest are left out (Nguyen et al. 2024); 0 keeps all.
        prompts: what they begin with.
    """

    samples: int = Field(50, gt=0)
    tokens: int = Field(256, gt=0)
    temperature: float = Field(0.8, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    prompts: tuple[str, ...] = Field(min_length=1)


class Texts:
    """The texts of a run's rows, on both sides.

    Args:
        source: the rows' file, folder or glob.
        held_out: places of the rows that are not trained on.
    """

    def __init__(self, source: Any, held_out: Sequence[str]) -> None:
        outside = set(held_out)
        self.train: list[str] = []
        self.held_out: list[str] = []
        for row in read_rows(source):
            text = row.value if isinstance(row.value, str) else str(row.value.get("text", ""))
            (self.held_out if row.where in outside else self.train).append(text)


def yardsticks(texts: Texts, say: Say) -> dict[str, float]:
    """Bits per byte of the held-out texts under a byte 5-gram of the training texts, and under `xz -9` alone."""
    held_out = [text.encode() for text in texts.held_out]
    ngram = ByteNgram(text.encode() for text in texts.train).bits_per_byte(held_out)
    packed = xz_bits_per_byte(held_out)
    say(f"for comparison, on the same texts: byte 5-gram {ngram:.3f} bits a byte, xz -9 {packed:.3f}")
    return {"byte_5gram": ngram, "xz": packed}


def measure_code(
    spec: CodeSpec, model: Decoder, tokenizer: Tokenizer, texts: Texts, seed: int, say: Say
) -> dict[str, Any]:
    """How many samples parse, and the longest text one shares with the training texts.

    Where `min_p` leaves tokens out, as many are drawn without it too, so that both figures are known.
    """
    prompts = [spec.prompts[i % len(spec.prompts)] for i in range(spec.samples)]
    found: dict[str, Any] = {}
    for min_p in dict.fromkeys((spec.min_p, 0.0)):
        continued = continue_prompts(model, tokenizer, prompts, spec.tokens, seed, spec.temperature, min_p)
        samples = [prompt + text for prompt, text in zip(prompts, continued, strict=True)]
        verdicts = [judge_code(sample) for sample in samples]
        passed, parsed = sum(v.passes for v in verdicts), sum(v.parses for v in verdicts)
        say(
            f"temperature {spec.temperature:g}, min_p {min_p:g}: {parsed} of {spec.samples} samples parse, "
            f"{passed} of them with 8 lines of code and 3 statements or more"
        )
        found[f"min_p {min_p:g}"] = {"parsed": parsed, "passed": passed, "samples": samples}
    samples = [sample for one in found.values() for sample in one["samples"]]
    shared = longest_shared(samples, texts.train)
    say(f"longest text shared with the training texts: {shared.length} characters: {shared.text[:60]!r}")
    return {**found, "longest_shared": shared.length}
