"""Builds the operators: `python -m intaglio.native.build`, which `library.available` starts beside a process.

What comes out is compared with plain torch before it is put in its place, all in this process: if the compiler and the
processor do not agree, this process dies and nobody ever loads the file.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from intaglio.files import whole_file
from intaglio.native.library import compiler_flags, library_file, sources
from intaglio.native.panels import to_panels

__all__ = ["build"]


def build() -> Path:
    """Builds, checks and stores the operators unless they are there; where they lie.

    Raises:
        RuntimeError: the compiler refused.
    """
    file = library_file()
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=file.parent) as folder:
            built = _compile(Path(folder))
            _check()
            with whole_file(file) as beside:
                shutil.copyfile(built, beside)
    return file


def _compile(folder: Path) -> Path:
    from torch.utils.cpp_extension import load

    threads = [] if sys.platform == "darwin" else ["-fopenmp"]
    load(
        "intaglio_native",
        [str(file) for file in sources() if file.suffix == ".cpp"],
        extra_cflags=["-O3", "-std=c++20", "-fno-math-errno", "-Wno-psabi", *threads, *compiler_flags()],
        build_directory=str(folder),
        is_python_module=False,
    )
    return folder / "intaglio_native.so"


def _check() -> None:
    """A product, an attention and weights of 4 bits, against plain torch."""
    operators = torch.ops.intaglio
    packed, values = torch.arange(256, dtype=torch.uint8), torch.linspace(-1, 1, 16)
    plain = torch.stack((values[(packed >> 4).int()], values[(packed & 15).int()]), dim=1).flatten()
    torch.testing.assert_close(operators.nf4_dequantize(packed, torch.ones(8), values, 64, torch.float32), plain)
    torch.testing.assert_close(operators.nf4_quantize(plain, (values[:-1] + values[1:]) / 2, 64)[0], packed)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        x, weight = torch.randn(5, 64, dtype=dtype), torch.randn(40, 64).bfloat16()
        made = operators.linear(x, to_panels(weight, 2), None, None, None, 40, False)
        torch.testing.assert_close(made, F.linear(x, weight.to(dtype)), rtol=tolerance, atol=tolerance)
        q, k, v = (torch.randn(48, 2, 64, dtype=dtype) for _ in range(3))
        tables = [torch.tensor(numbers, dtype=torch.int32) for numbers in ([[0, 1, 2]], [0, 48], [48])]
        made = operators.paged_attention(q, k, v, *tables, 0.125, 0, 0.0, 16)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        plain = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)[0].transpose(0, 1)
        torch.testing.assert_close(made, plain, rtol=tolerance, atol=tolerance)
    whole = operators.documents_attention(q, k, v, [48], 0.125, None)[0].transpose(
        0, 1
    )  # by matrix units, if there are any
    torch.testing.assert_close(whole, made, rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    os.nice(10)
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    print(build())
