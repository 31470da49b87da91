"""Pulled models and data sets for figures that want real ones, and what tells one state of a folder from another."""

from pathlib import Path

from intaglio.data.datasets.pull import pulled_data
from intaglio.errors import UserError
from intaglio.lineage.resolve import model_folder

__all__ = ["fingerprint", "folder_of", "required", "required_rows"]


def folder_of(name: str) -> Path | None:
    """The folder of a pulled model, or of a directory; None where there is none."""
    return model_folder(name)


def fingerprint(name: str) -> str:
    """Changes when the model is pulled, or its files are others: their names and sizes."""
    folder = folder_of(name)
    if folder is None:
        return "none"
    return ", ".join(f"{file.name} {file.stat().st_size}" for file in sorted(folder.iterdir()) if file.is_file())


def required(name: str) -> Path:
    """The folder.

    Raises:
        UserError: it was not pulled.
    """
    folder = folder_of(name)
    if folder is None:
        raise UserError(f"model {name!r} is not here", mend=f"intaglio pull {name}")
    return folder


def required_rows(name: str) -> str:
    """The name of a data set that was pulled, or a file.

    Raises:
        UserError: it was not pulled.
    """
    if not Path(name).exists() and pulled_data(name) is None:
        raise UserError(f"data set {name!r} is not here", mend=f"intaglio pull {name}")
    return name
