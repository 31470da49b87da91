"""4-bit NormalFloat: quantise and dequantise a matrix beside bitsandbytes' kernels for a CPU.

The bits are the same on both sides, which is checked first. With double quantisation, in blocks of 64; milliseconds of
ours, and seconds of theirs by ours.
"""

import argparse

import bitsandbytes.functional as peer
import torch
from _timing import in_turn, report

from intaglio import native
from intaglio.parts.nf4 import dequantize, quantize_nf4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for dtype in (torch.bfloat16, torch.float32):
        beside_bitsandbytes(options.size, dtype, options.rounds)


def beside_bitsandbytes(size: int, dtype: torch.dtype, rounds: int) -> None:
    """One line for a dtype."""
    weight = (torch.randn(size, size, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)

    def theirs() -> tuple[torch.Tensor, peer.QuantState]:
        return peer.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")

    ours, (packed, state) = quantize_nf4(weight), theirs()
    same = torch.equal(ours.packed, packed.flatten()) and torch.equal(ours.absmax, state.absmax)
    back = torch.equal(dequantize(ours, dtype), peer.dequantize_4bit(packed, state))
    assert same, "other bits"
    assert back, "other weights"
    there = in_turn(lambda: quantize_nf4(weight), theirs, rounds)
    here = in_turn(lambda: dequantize(ours, dtype), lambda: peer.dequantize_4bit(packed, state), rounds)
    report(
        "nf4",
        dtype=str(dtype).removeprefix("torch."),
        native=native.available(),
        quantize_ms=round(there[0] * 1e3, 2),
        quantize_ratio=round(there[1] / there[0], 2),
        dequantize_ms=round(here[0] * 1e3, 2),
        dequantize_ratio=round(here[1] / here[0], 2),
    )


if __name__ == "__main__":
    main()
