"""The chat templates that ship with us: the formats of well-known families, as Jinja files in `templates/`."""

from importlib.resources import files

from intaglio.errors import UserError, nearest

__all__ = ["load_template", "template_names"]

_FOLDER = files("intaglio.text") / "templates"


def template_names() -> list[str]:
    """Names `load_template` knows."""
    return sorted(file.name.removesuffix(".jinja") for file in _FOLDER.iterdir() if file.name.endswith(".jinja"))


def load_template(name: str) -> str:
    """The Jinja source of a chat template of ours.

    Raises:
        UserError: there is none of that name; says which are near.
    """
    if name not in template_names():
        raise UserError(f"there is no chat template {name!r}", mend=nearest(name, template_names()))
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
