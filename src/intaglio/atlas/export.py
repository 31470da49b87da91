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

__all__ = ["find_browser", "write_figures", "write_page"]

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
    """Writes NAME.svg and NAME.zh.svg for each figure that has data, and for each of its leaves.

    Args:
        folder: for all of them.
        plates: the figures.
        png: each as PNG beside it.

    Raises:
        UserError: a file cannot be written; or `png` and there is no Chromium.
    """
    browser = find_browser() if png else None
    for name, title, panels in _pictures(plates):
        path = folder / f"{name}.svg"
        with whole_file(path) as beside:
            beside.write_text(as_file(panels, title), encoding="utf-8")
        if browser:
            _draw(browser, path, panels)


def _pictures(plates: Sequence[Plate]) -> Iterator[tuple[str, str, Sequence[Canvas]]]:
    for plate in plates:
        for lang, say in LANGUAGES.items() if not plate.missing else ():
            ending = "" if lang == "en" else f".{lang}"
            title = say(*plate.figure.title)
            drawn = {plate.figure.name: plate.figure.draw(plate.data, say)}
            for name, panels in {**drawn, **plate.figure.leaves(plate.data, say)}.items():
                yield name + ending, title, panels


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
