"""Fetches Python's documentation as Debian packs it, for `intaglio rag`: `python scripts/python_docs.py FOLDER`.

`FOLDER/pages` gets the pages, without those that only list others (indexes, the page that searches): an index of them
would hand the answers over. `FOLDER/genindex-all.html` is the index, of which `intaglio rag questions` makes questions.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from intaglio.data.datasets.debian import debian_files
from intaglio.errors import UserError
from intaglio.files import whole_directory

_PAGE = re.compile(r"usr/share/doc/python3\.\d+/html/(.+\.html)")
_LISTS = ("genindex", "py-modindex", "search", "contents")


def package_name() -> str:
    """The package that holds the pages; `python3-doc` only names the one of this release."""
    listed = subprocess.run(["apt-cache", "depends", "python3-doc"], capture_output=True, text=True, check=False).stdout
    named = re.search(r"python3\.\d+-doc", listed)
    if named is None:
        raise UserError("apt-cache knows no python3-doc", mend="run apt-get update; Debian and Ubuntu have it")
    return named[0]


def fetch(folder: Path) -> None:
    """Fills `folder`, whole or not at all."""
    with tempfile.TemporaryDirectory() as downloads, whole_directory(folder) as beside:
        for name, content in debian_files(package_name(), Path(downloads), "python-stdlib"):
            page = _PAGE.fullmatch(name)
            if page is None or (page[1].startswith(_LISTS) and page[1] != "genindex-all.html"):
                continue
            target = beside / page[1] if page[1] == "genindex-all.html" else beside / "pages" / page[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"python_docs: {error}")
