"""What a user means by MODEL when it must run: a directory, a GGUF file, or a model that was pulled."""

from pathlib import Path
from typing import Any

from intaglio.checkpoints.catalogue import CATALOGUE
from intaglio.checkpoints.convert import gguf_tokenizer
from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.load import load_directory, load_gguf
from intaglio.checkpoints.pull import pulled
from intaglio.errors import UserError, nearest
from intaglio.files import home
from intaglio.lineage.presets import presets
from intaglio.specs.quantization import QuantizationSpec
from intaglio.text.sentencepieces import SOURCE_FILE, PiecesTokenizer
from intaglio.text.tokenizer import Tokenizer

__all__ = ["find_model", "load_model", "load_tokenizer"]


def find_model(name: str | Path) -> Path:
    """The directory or GGUF file of a model with weights.

    Raises:
        UserError: unknown, not pulled yet, or a preset (which has no weights); says what to do.
    """
    if Path(name).is_file():
        return Path(name)
    found = pulled(str(name))
    if found:
        return found
    if name in CATALOGUE:
        raise UserError(f"{name} has not been pulled", mend=f"run `intaglio pull {name}`")
    if name in {preset.name for preset in presets()}:
        raise UserError(f"{name} is a preset: a description without weights", mend=f"see `intaglio show {name}`")
    known = {*CATALOGUE, *(path.name for path in (home() / "models").glob("[!.]*"))}
    raise UserError(f"unknown model {str(name)!r}", mend=f"{nearest(str(name), known)} (or give a directory)")


def load_model(
    name: str | Path,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    quantization: QuantizationSpec | None = None,
) -> Any:
    """The model, ready to run, of the class that its spec's kind has (see `models.build`).

    Args:
        name: a pulled name, a directory or a GGUF file.
        dtype: None takes the one the weights are stored in (bfloat16 for a GGUF file).
        device: where the weights go.
        quantization: how to keep the matrices of the layers, see `load_directory`; None: as the file does.

    Raises:
        UserError: see `find_model` and `load_directory`.
    """
    path = find_model(name)
    load = load_gguf if path.is_file() else load_directory
    return load(path, dtype, device, quantization)


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer that belongs to the model, or that a directory with a tokenizer's files holds.

    Raises:
        UserError: see `find_model`; or there is no tokenizer.
    """
    if any((Path(name) / file).is_file() for file in ("tokenizer.json", SOURCE_FILE)):
        return _tokenizer_in(Path(name))
    path = find_model(name)
    return gguf_tokenizer(open_gguf(path)) if path.is_file() else _tokenizer_in(path)


def _tokenizer_in(folder: Path) -> Tokenizer:
    """As its `tokenizer.json` says; without one, and with `.spm` files, as those say."""
    pieces = not (folder / "tokenizer.json").is_file() and (folder / SOURCE_FILE).is_file()
    return PiecesTokenizer.from_directory(folder) if pieces else Tokenizer.from_directory(folder)
