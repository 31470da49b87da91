"""What share of a device's peaks programs reach, and how a step is run: what step times take for granted. No torch.

Nothing here is fitted on the runs that `published` predicts: shares are measured on single operations, or follow from
what an operation must move.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from intaglio.planning.devices import Device

__all__ = ["EAGER", "Assumptions", "Execution", "assumptions"]

_MATMULS = "maximum achievable matmul table of stas00/ml-engineering, 2025"


def _assume(value: float, source: str) -> Any:
    return field(default=value, metadata={"source": source})


@dataclass(frozen=True)
class Assumptions:
    """What is taken for granted: each with its source, which `sources` lists.

    Bytes are of 2-byte elements, and count what a kernel reads and writes.
    """

    products: float = _assume(0.803, f"best of an H100 SXM in bf16, 794.5 of 989 TFLOP/s: {_MATMULS}")
    products_fp8: float = _assume(0.709, f"best of an H100 SXM in fp8, 1402.6 of 1979 TFLOP/s: {_MATMULS}")
    attention: float = _assume(0.35, "FlashAttention-2 on an H100: arXiv 2407.08608, abstract")
    attention_backward: float = _assume(2.5, "five products where the forward has two: arXiv 2307.08691, section 3.1")
    memory: float = _assume(0.90, "a copy on an H200: 4.3 of 4.8 TB/s")
    link: float = _assume(0.80, "NCCL's rings on eight H100, about 370 of 450 GB/s; from memory")
    network: float = _assume(0.80, "the same between hosts; from memory")
    latency: float = _assume(2e-5, "seconds of a small collective in a host; order of magnitude")
    far_latency: float = _assume(5e-5, "seconds of a small collective between hosts; order of magnitude")
    launch: float = _assume(5e-6, "seconds from one kernel of eager PyTorch to the next; order of magnitude")
    overlap: float = _assume(0.12, "16 of 132 multiprocessors, which NCCL's channels take from what runs beside")
    norm_bytes: float = _assume(4, "a fused norm reads and writes each element once")
    residual_bytes: float = _assume(6, "a sum reads two and writes one")
    rotary_bytes: float = _assume(20, "x cos + rotated x sin, a kernel for each operation")
    gated_bytes: float = _assume(10, "the bend (2 elements), then its product with the other half (3)")
    bent_bytes: float = _assume(4, "one element read, one written")
    backward_passes: float = _assume(2.0, "a backward reads the gradient too, and writes one for each input")
    cast_bytes: float = _assume(5, "of an operand in fp8: its largest value (2 read), then 2 read and 1 written")
    loss_bytes: float = _assume(30, "of a logit: written, made fp32, its log-softmax, and both backwards")
    accumulate_bytes: float = _assume(10, "of a gradient for each micro-batch: fp32 read and written, bf16 read")
    gather_copies: float = _assume(2, "what is gathered is read and written once more, into its tensors")
    sent_bytes: float = _assume(6, "of a gradient: bf16 read, fp32 written into what is sent")
    optimizer_bytes: float = _assume(40, "of a parameter: AdamW, fused (16 read, 12 written), and clipping (12)")
    host_link: float = _assume(5e10, "bytes a second over PCIe 5.0 x16, of 64 GB/s")
    host_memory: float = _assume(1e11, "bytes a second of a host's memory that AdamW there reaches")
    answer: float = _assume(0.5, "share of a drawn sequence that is answer and not prompt")

    def sources(self) -> Iterator[tuple[str, float, str]]:
        """Name, value and source of each; of a changed one it says so."""
        for one in fields(self):
            value = getattr(self, one.name)
            yield one.name, value, one.metadata["source"] if value == one.default else "given"


EAGER = Assumptions()

_SHARES = {  # the same source; attention of an A100 from arXiv 2307.08691, abstract: 50 to 73 %
    "a100": {"products": 0.869, "attention": 0.6},
    "a100-40": {"products": 0.869, "attention": 0.6},
    "mi300x": {"products": 0.601},
    "mi250x": {"products": 0.767},
}


def assumptions(device: Device, *, compiled: bool = False) -> Assumptions:
    """What is assumed of a device; those that nobody measured are taken to be like an H100.

    Args:
        device: see `devices`.
        compiled: a compiler makes one kernel of neighbouring element-wise operations.
    """
    fused = {"residual_bytes": 4, "rotary_bytes": 4, "gated_bytes": 6, "loss_bytes": 14, "launch": 2e-6}
    return replace(EAGER, **_SHARES.get(device.name, {}), **(fused if compiled else {}))


@dataclass(frozen=True)
class Execution:
    """How a step is run, beyond what job and layout say.

    Attributes:
        assumed: see there.
        fp8: matrix products of the layers are in 8 bits, operands cast anew each time.
        async_tp: collectives of tensor parallelism run piece by piece beside the products.
        again: share of the products that selective checkpointing makes again; our own makes none.
    """

    assumed: Assumptions = EAGER
    fp8: bool = False
    async_tp: bool = False
    again: float = 0.0
