"""Frozen weights in fewer bits, for adapters to train beside: 4-bit NormalFloat (Dettmers et al. 2023, 2305.14314)."""

from typing import Any, Literal

from intaglio.errors import UserError
from intaglio.specs.base import Spec

__all__ = ["NESTED_BLOCK", "QuantizationSpec", "quantization_of"]

NESTED_BLOCK = 256
"""Scales that share one scale of their own, with double quantisation."""


class QuantizationSpec(Spec):
    """How the matrices of a frozen model are kept: all linear layers but the output matrix.

    Attributes:
        quant_type: `nf4`: 16 values that a normal distribution falls on equally often (section 3).
        blocksize: weights that share a scale, their largest magnitude.
        double_quant: the scales are kept in 8 bits, with an fp32 scale for each 256 of them: 4.127 bits a weight in
            place of 4.5.
    """

    quant_type: Literal["nf4"] = "nf4"
    blocksize: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096] = 64
    double_quant: bool = True

    def num_bytes(self, elements: int) -> int:
        """Bytes of a matrix of `elements` weights: two to a byte, and the scales."""
        return sum(count * size for count, size in self.parts(elements)) + self.mean_bytes

    def parts(self, elements: int) -> tuple[tuple[int, int], ...]:
        """The vectors that such a matrix is kept in, as elements and bytes of one: the weights, two to a byte; the
        blocks' scales; with double quantisation the scales' scales."""
        packed, blocks = -(-elements // 2), -(-elements // self.blocksize)
        if not self.double_quant:
            return (packed, 1), (blocks, 4)
        return (packed, 1), (blocks, 1), (-(-blocks // NESTED_BLOCK), 4)

    @property
    def mean_bytes(self) -> int:
        """Of the scales' mean, one number a matrix, which is taken off before they are quantised."""
        return 4 if self.double_quant else 0


def quantization_of(config: dict[str, Any], where: str = "config.json") -> QuantizationSpec | None:
    """How a `config.json` says that matrices are kept; None: as they are. Each matrix's file knows its blocks itself.

    Raises:
        UserError: in any way but bitsandbytes' NF4.
    """
    said = config.get("quantization_config")
    if said is None:
        return None
    said = said if isinstance(said, dict) else {"quant_method": said}
    method, four = said.get("quant_method"), said.get("load_in_4bit", said.get("_load_in_4bit"))
    if method != "bitsandbytes" or not four or said.get("bnb_4bit_quant_type") != "nf4":
        what = f"'quantization_config' says {method!r} in a form that we do not read"
        raise UserError(what, where=where, mend="of quantised safetensors we read bitsandbytes' NF4")
    return QuantizationSpec(double_quant=bool(said.get("bnb_4bit_use_double_quant")))
