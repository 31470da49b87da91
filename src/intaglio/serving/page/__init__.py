"""The chat page: static files that the server hands out as they are, without a key, at its own address."""

from pathlib import Path

MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript"}


def files() -> dict[str, tuple[Path, str]]:
    """Maps a path of the server to the file it answers with and its media type: `/` is the page, the rest its parts."""
    found = sorted(file for file in Path(__file__).parent.iterdir() if file.suffix in MEDIA_TYPES)
    return {path_of(file.name): (file, MEDIA_TYPES[file.suffix]) for file in found}


def path_of(name: str) -> str:
    """Where the server answers with the file `name`."""
    return "/" if name == "index.html" else f"/page/{name}"
