"""The atlas as files: the page, each figure as SVG in both languages, and PNG where a Chromium draws them."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from intaglio.atlas.figure import LANGUAGES
from intaglio.atlas.page import Plate, page
from intaglio.atlas.svg import Canvas, as_file, side_by_side
from intaglio.errors import UserError
from intaglio.files import whole_file

__all__ = ["find_browser", "pictures_of", "write_figures", "write_page"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_EDGE = 32  # of a picture beyond its panels, both sides together
_PATIENCE = 60.0  # seconds for one picture


def write_page(path: Path, plates: Sequence[Plate], made: str = "") -> None:
    """Writes the page; see `page`.

    Raises:
        UserError: the file cannot be written.
    """
    with whole_file(path) as beside:
        beside.write_text(page(plates, made), encoding="utf-8")


def write_figures(folder: Path, plates: Sequence[Plate], *, png: bool = False) -> None:
    """Writes each picture of the figures that have data, see `pictures_of`, as FILE.svg.

    Args:
        folder: for all of them.
        plates: the figures.
        png: each as PNG beside it.

    Raises:
        UserError: a file cannot be written; or `png` and there is no Chromium.
    """
    browser = find_browser() if png else None
    for plate in (one for one in plates if not one.missing):
        for name, title, panels in pictures_of(plate):
            path = folder / f"{name}.svg"
            with whole_file(path) as beside:
                beside.write_text(as_file(panels, title), encoding="utf-8")
            if browser:
                _draw(browser, path, panels)


def pictures_of(plate: Plate) -> Iterator[tuple[str, str, Sequence[Canvas]]]:
    """The pictures of a figure in both languages: file without ending, title, panels.

    NAME is the whole figure, NAME-1, NAME-2... are its panels where it has several, the others its leaves; the files of
    Chinese ones end in `.zh`.
    """
    for lang, say in LANGUAGES.items():
        ending = "" if lang == "en" else f".{lang}"
        name, panels = plate.figure.name, plate.figure.draw(plate.data, say)
        alone = {f"{name}-{place}": [panel] for place, panel in enumerate(panels, 1) if len(panels) > 1}
        for file, drawn in {name: panels, **alone, **plate.figure.leaves(plate.data, say)}.items():
            yield file + ending, say(*plate.figure.title), drawn


def find_browser() -> str:
    """Where a Chromium is.

    Raises:
        UserError: nowhere.
    """
    for name in _BROWSERS:
        if found := shutil.which(name):
            return found
    raise UserError("no PNG: there is no Chromium here", mend="`make system` installs one; SVG needs none")


def _draw(browser: str, path: Path, panels: Sequence[Canvas]) -> None:
    whole = side_by_side(panels)
    size = f"{whole.width + _EDGE:.0f},{whole.height + _EDGE:.0f}"
    with whole_file(path.with_suffix(".png")) as beside, tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--force-device-scale-factor=2"]
        command += [f"--window-size={size}", f"--screenshot={shot}", path.resolve().as_uri()]
        subprocess.run(command, check=True, timeout=_PATIENCE, capture_output=True)
        shutil.copyfile(shot, beside)
