"""Published sets straight from a Hugging Face hub, for those who name a set and no file of theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from intaglio.data.unpacking import needs
from intaglio.fetch import hub_errors
from intaglio.files import home, whole_directory

__all__ = ["HUB", "from_hub"]

HUB: Final = {
    "mmlu": ("cais/mmlu", "all/*.parquet"),
    "ceval": ("ceval/ceval-exam", "*/*.parquet"),
    "cmmlu": ("lmlmcat/cmmlu", "*/*.parquet"),
    "gsm8k": ("openai/gsm8k", "main/*.parquet"),
    "arc": ("allenai/ai2_arc", "ARC-Challenge/*.parquet"),
    "hellaswag": ("Rowan/hellaswag", "data/*.parquet"),
}
"""Name -> repository, and the files of it that are wanted."""


def from_hub(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """The folder with the files of a set, downloaded unless it is there.

    Raises:
        UserError: the extra `hub` is not installed, or there is no network.
    """
    repo, pattern = HUB[name]
    folder = home() / "data" / f"eval--{name}"
    if not folder.exists():
        hub = needs("huggingface_hub", "huggingface_hub", name, extra="hub")
        say(f"{name}: fetching {pattern} of {repo} from the hub")
        with whole_directory(folder) as beside, hub_errors(f"{name} (or give your files: {name}:PATH)", "data set"):
            hub.snapshot_download(repo, repo_type="dataset", local_dir=beside, allow_patterns=[pattern])
    return folder
