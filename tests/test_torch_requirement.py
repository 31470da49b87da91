"""The choice of a torch build, on reports of the shape that pip gives."""

from typing import Any

import pytest

from script_modules import load_script


def pip_report(system: str, version: str, needs: list[str]) -> dict[str, Any]:
    """The part of an installation report that says what torch would be installed, and where."""
    metadata = {"name": "torch", "version": version, "requires_dist": needs}
    return {"environment": {"platform_system": system}, "install": [{"metadata": metadata}]}


CUDA = ["filelock", 'nvidia-nccl-cu13==2.29.7; platform_system == "Linux"']


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (pip_report("Linux", "2.13.0+cpu", ["filelock"]), ["torch==2.13.0"]),
        (pip_report("Darwin", "2.13.0", CUDA), ["torch==2.13.0"]),
        (
            pip_report("Linux", "2.13.0", CUDA),
            ["--extra-index-url https://download.pytorch.org/whl/cpu", "torch==2.13.0+cpu"],
        ),
    ],
    ids=["a local CPU build", "macOS", "Linux from PyPI"],
)
def test_the_cpu_build_is_chosen(found: dict[str, Any], lines: list[str]) -> None:
    assert load_script("torch_requirement").requirements(found) == lines


def test_an_unknown_build_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_script("torch_requirement").main("cuda", "2.13.0") == 2
    assert capsys.readouterr().err.count("\n") == 1
