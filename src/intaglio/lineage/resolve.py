"""What a user means by MODEL: a directory, a preset, or a model that was pulled. No torch, no network."""

from pathlib import Path

from intaglio import files
from intaglio.errors import UserError, nearest
from intaglio.lineage.presets import Preset, find_preset, presets
from intaglio.specs import ModelSpec
from intaglio.specs.families import read_directory

__all__ = ["model_folder", "resolve_spec"]


def resolve_spec(name: str) -> tuple[str, ModelSpec, Preset | None]:
    """(title, spec, preset if it is one) of a directory with a `config.json`, a preset, or a pulled model.

    Raises:
        UserError: none of the three (names the nearest known ones), or a `config.json` that cannot be read.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve().name, read_directory(folder), None
    if found := find_preset(name):
        return found.title, found.spec, found
    pulled = _pulled()
    if name in pulled:
        return name, read_directory(pulled[name]), None
    close = nearest(name.lower(), [*pulled, *(one.name for one in presets())])
    if close.startswith("known"):  # all of them: too many for a line
        close = "`intaglio lineage --all` lists the presets"
    raise UserError(f"unknown model {name!r}", mend=f"{close} (or give a directory that holds config.json)")


def model_folder(name: str) -> Path | None:
    """The directory of a model as `resolve_spec` finds it; None of a preset, or of nothing."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    return None if find_preset(name) else _pulled().get(name)


def _pulled() -> dict[str, Path]:
    """Directories of the models in the cache folder, by name."""
    return {config.parent.name: config.parent for config in (files.home() / "models").glob("*/config.json")}
