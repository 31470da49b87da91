"""What tells a model from all others: hashes of its files, of its chat template, and the versions that ran it."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, Final

from intaglio.fetch import sha256_of
from intaglio.text.tokenizer import Tokenizer

__all__ = ["files_hash", "template_hash", "versions"]

PARTS: Final = (".safetensors", ".json", ".jinja", ".model", ".spm", ".gguf")
"""Files of a directory that have a say in what a model answers."""

PACKAGES: Final = ("intaglio", "torch", "tokenizers", "numpy")


def files_hash(path: Path) -> str:
    """SHA-256 of a model's file, or over the names and hashes of its directory's."""
    if path.is_file():
        return sha256_of(path)
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in PARTS)
    told = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(told.encode()).hexdigest()


def template_hash(tokenizer: Tokenizer | None) -> str | None:
    """SHA-256 of the chat template's source; None where there is none."""
    source = tokenizer.chat_template if tokenizer else None
    return None if source is None else hashlib.sha256(source.encode()).hexdigest()


def versions(*more: str) -> dict[str, str]:
    """Of Python and of the packages that had a say; those that are not installed are left out."""
    found: dict[str, Any] = {"python": python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
