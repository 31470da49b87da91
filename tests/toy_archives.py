"""Packages as an index sends them, with members of a test's own."""

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

__all__ = ["write_archive"]


def write_archive(path: Path, content: dict[str, Any]) -> Path:
    """A wheel, or a tar file with all in one folder; what is not text is written as JSON."""
    texts = {name: (it if isinstance(it, str) else json.dumps(it)).encode() for name, it in content.items()}
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in texts.items():
                wheel.writestr(name, data)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, data in texts.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
