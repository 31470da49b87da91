"""Which torch to install: prints a requirements file for pip.

    python scripts/torch_requirement.py cpu|default VERSION

PyPI's torch for Linux brings some gigabytes of CUDA with it. `cpu` asks pip, without downloading anything,
which build its index would give here. A build without CUDA (`+cpu` from a local index, macOS, Windows) is
taken as it is; in place of one with CUDA, PyTorch's own CPU index is named. `default` takes whatever the
index gives.
"""

import json
import subprocess
import sys
from typing import Any

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def report(version: str) -> dict[str, Any]:
    """What pip would install for `torch==version` here, in the form of pip's installation report."""
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    pip = [sys.executable, "-m", "pip", "install", *options, f"torch=={version}"]
    found: dict[str, Any] = json.loads(subprocess.run(pip, check=True, stdout=subprocess.PIPE).stdout)
    return found


def needs_cuda(found: dict[str, Any]) -> bool:
    """Whether the build in `found` brings NVIDIA's packages; its requirements name them for Linux only."""
    on_linux = found["environment"]["platform_system"] == "Linux"
    needs = found["install"][0]["metadata"].get("requires_dist", [])
    return on_linux and any(need.startswith(("nvidia-", "cuda-")) for need in needs)


def requirements(found: dict[str, Any]) -> list[str]:
    """The lines of a requirements file that give the CPU build of what was `found`."""
    version = found["install"][0]["metadata"]["version"].split("+")[0]
    if needs_cuda(found):
        return [f"--extra-index-url {CPU_INDEX}", f"torch=={version}+cpu"]
    return [f"torch=={version}"]


def main(build: str, version: str) -> int:
    """Prints the lines; 1 when pip has no such torch (pip has said why)."""
    if build not in ("cpu", "default"):
        print(f"TORCH={build}: no such build; it is cpu or default", file=sys.stderr)
        return 2
    try:
        lines = requirements(report(version)) if build == "cpu" else [f"torch=={version}"]
    except subprocess.CalledProcessError as error:
        return error.returncode
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
