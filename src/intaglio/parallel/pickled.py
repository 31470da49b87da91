"""The one pickle there can be in a checkpoint of DCP's own format, `.metadata`, read without running what it says.

A pickle names functions, and an ordinary reader calls them. This one knows the few classes that DCP's metadata is made
of and refuses every other name; what comes out is looked through again, since file names and the like are data that
DCP would follow. Tensors beside it are read by torch with `weights_only`, which does the same for them.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo

from intaglio.errors import UserError

__all__ = ["METADATA", "PickledReader", "read_pickled"]

METADATA: Final = ".metadata"


class _Refused(Exception):
    """A pickle that names what it has no business with."""


def _layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise _Refused(f"layout {name!r}")
    return torch.strided


def _path(*parts: str) -> str:
    """DCP notes where it wrote to; nobody here needs it as more than a text."""
    return "/".join(parts)


_KNOWN: Final[dict[tuple[str, str], Any]] = {
    **{
        ("torch.distributed.checkpoint.metadata", cls.__name__): cls
        for cls in (
            dcp.Metadata,
            dcp.MetadataIndex,
            dcp.StorageMeta,
            dcp.TensorStorageMetadata,
            dcp.ChunkStorageMetadata,
            dcp.TensorProperties,
            dcp._MEM_FORMAT_ENCODING,
        )
    },
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    ("collections", "OrderedDict"): OrderedDict,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "WindowsPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    ("pathlib._local", "WindowsPath"): _path,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            known = getattr(torch, name)
        if known is None:
            raise _Refused(f"{module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("something kept elsewhere")


def read_pickled(folder: Path) -> dcp.Metadata:
    """The metadata of a checkpoint in DCP's own format.

    Args:
        folder: with `.metadata` in it.

    Raises:
        UserError: it names anything but DCP's metadata, holds anything but tensors, points out of its folder, or is
            damaged. Nothing of it has run then.
    """
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            found = _Reader(file).load()
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", where=str(path)) from error
    except _Refused as error:
        what = f"refused: it is a pickle that asks for {error}, which is none of DCP's metadata"
        raise UserError(what, where=str(path), mend="nothing of it was run; trust no such file") from None
    except Exception as error:
        raise UserError(f"damaged ({type(error).__name__})", where=str(path)) from error
    _look_through(found, path)
    return found


class PickledReader(FileSystemReader):
    """DCP's reader of its own format, given metadata that was read safely.

    Args:
        folder: of the checkpoint.
        metadata: see `read_pickled`.
    """

    def __init__(self, folder: Path, metadata: dcp.Metadata) -> None:
        super().__init__(str(folder))
        self._metadata = metadata

    def read_metadata(self) -> dcp.Metadata:
        """See `StorageReader`."""
        return self._metadata


def _look_through(found: Any, path: Path) -> None:
    """What DCP would act upon is of the kind that it should be."""
    checks: list[Callable[[], bool]] = [
        lambda: type(found) is dcp.Metadata,
        lambda: all(type(name) is str for name in found.state_dict_metadata),
        lambda: all(type(one) is dcp.TensorStorageMetadata for one in found.state_dict_metadata.values()),
        lambda: all(type(at) is dcp.MetadataIndex for at in found.storage_data),
        lambda: all(_stays_inside(info) for info in found.storage_data.values()),
    ]
    try:
        right = all(check() for check in checks)
    except (AttributeError, TypeError):
        right = False
    if not right:
        raise UserError("refused: it describes more than tensors in files of its own folder", where=str(path))


def _stays_inside(info: Any) -> bool:
    """A file of the folder itself, and as it was written: DCP would look up a transform by its name."""
    name = info.relative_path
    plain = type(info) is _StorageInfo and type(name) is str and not getattr(info, "transform_descriptors", None)
    return plain and Path(name).name == name and name not in ("", ".", "..")
