"""Data sets of a Hugging Face hub: `hub:owner/name`, down to a folder of theirs and at a revision if that is said.

The files that `read_rows` reads are fetched as they are, all at one commit. Where names tell splits apart, those of
training are taken; a set without any is refused, as what is meant for measuring should not be learned by accident.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final

from intaglio.data.row_formats import READERS
from intaglio.data.unpacking import suffix_inside
from intaglio.errors import UserError
from intaglio.fetch import Progress, hub_errors, megabytes, progress_bar

__all__ = ["FILES", "Chosen", "HubName", "announce", "choose", "download", "is_hub_name", "look_up"]

FILES: Final = "files"
"""The folder inside that of a data set in which its rows are."""

PREFIX: Final = "hub:"
NAME: Final = re.compile(r"hub:([\w][\w.-]*/[\w][\w.-]*)((?:/[^/@]+)*)(?:@(.+))?")
SPLITS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
PAPERS: Final = frozenset("dataset_info dataset_infos dataset_dict state requirements license readme".split())
"""Names, without extension, of files that speak of the data."""

SHOWN: Final = 5  # names of files said at once


@dataclass(frozen=True)
class HubName:
    """`hub:owner/name/folder@revision`, taken apart; `folder` may be empty, `revision` None."""

    repo: str
    folder: str
    revision: str | None

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """Raises: UserError: not such a name."""
        match = NAME.fullmatch(name)
        if match is None:
            raise UserError(
                "not a data set of a hub", where=name, mend="write hub:owner/name, or hub:owner/name@revision"
            )
        return cls(match[1], match[2].strip("/"), match[3])


@dataclass(frozen=True)
class Chosen:
    """What is fetched of a data set.

    Attributes:
        repo: `owner/name`.
        commit: the revision's, 40 hex digits.
        licence: as its page states it.
        files: path -> bytes.
        left_out: paths that are not taken, other kinds of file not counted.
    """

    repo: str
    commit: str
    licence: str
    files: dict[str, int]
    left_out: tuple[str, ...]


def is_hub_name(name: str) -> bool:
    """Whether `name` means a hub, rightly written or not."""
    return name.startswith(PREFIX)


def look_up(name: str) -> Chosen:
    """Asks the hub what there is.

    Raises:
        UserError: a malformed name, no huggingface_hub, no network, no such data set, or nothing in it to train on.
    """
    wanted = HubName.parse(name)
    with hub_errors(name, "data set"):
        hub = _client(name)
        info = hub.HfApi().dataset_info(wanted.repo, revision=wanted.revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    files, left_out = choose(name, list(sizes), wanted.folder)
    licence = (info.card_data or {}).get("license") or "not stated on its page"
    return Chosen(wanted.repo, info.sha, str(licence), {file: sizes[file] for file in files}, left_out)


def choose(name: str, paths: Sequence[str], folder: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which files to train on, and which others hold rows.

    Args:
        name: what errors call the data set.
        paths: of all its files.
        folder: the one that is asked for; empty: all.

    Raises:
        UserError: no rows, or none for training.
    """
    rows = [path for path in sorted(paths) if _holds_rows(PurePosixPath(path))]
    inside = [path for path in rows if not folder or path.startswith(f"{folder}/")]
    splits = {path: _split(path) for path in inside}
    wanted = "train" if "train" in splits.values() else None
    taken = tuple(path for path in inside if splits[path] == wanted)
    if not inside:
        raise UserError("no files of a kind that we read", where=name, mend=f"we read {', '.join(READERS)}")
    if not taken:
        found = " and ".join(sorted({split for split in splits.values() if split}))
        mend = "download the files that you mean and give their folder"
        raise UserError(f"it has no training split, only {found}", where=name, mend=mend)
    return taken, tuple(path for path in rows if path not in taken)


def announce(name: str, chosen: Chosen, say: Callable[[str], None]) -> None:
    """Says what is about to be fetched, and what is not."""
    say(f"{name}: {chosen.repo} at commit {chosen.commit}")
    say(f"licence: {chosen.licence}")
    say(f"to download: {megabytes(sum(chosen.files.values()))} in {_listed(tuple(chosen.files))}")
    if chosen.left_out:
        say(f"left out: {_listed(chosen.left_out)}")


def download(name: str, chosen: Chosen, into: Path, progress: bool) -> None:
    """Makes the folder `into`: the files below `files/`, by the paths they have on the hub, and ABOUT.md.

    What an earlier call left there is not fetched again.

    Raises:
        UserError: no network, a full disk, or no right to the files.
    """
    files = into / FILES
    with progress_bar(sum(chosen.files.values()), progress) as show, hub_errors(name, "data set"):
        before = 0
        for file, size in chosen.files.items():
            how = {"repo_type": "dataset", "revision": chosen.commit, "local_dir": files}
            _client(name).hf_hub_download(chosen.repo, file, tqdm_class=_reporting(show, before), **how)
            before += size
            show(before)
    shutil.rmtree(files / ".cache", ignore_errors=True)
    lines = [f"# {name}", "", f"- licence: {chosen.licence}", f"- from: {chosen.repo} at commit {chosen.commit}"]
    lines += [f"- left out: {path}" for path in chosen.left_out]
    (into / "ABOUT.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'}: {', '.join(paths[:SHOWN])}{more}"


def _holds_rows(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and suffix_inside(Path(path)) in READERS and path.name.partition(".")[0].lower() not in PAPERS


def _split(path: str) -> str | None:
    """The split that a word of the file's name says, or of the folder nearest to it."""
    for part in reversed(PurePosixPath(path).parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return None


def _client(name: str) -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        what = "data sets of a hub need the package huggingface_hub"
        raise UserError(what, where=name, mend="run `pip install intaglio[hub]`") from error


def _reporting(show: Progress, before: int) -> Any:
    """The client's progress bar, which draws nothing and tells ours."""

    class Reporting(import_module("tqdm").tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.so_far = options.get("initial") or 0
            options["disable"] = True
            super().__init__(*args, **options)

        def update(self, n: float | None = 1) -> None:
            self.so_far += int(n or 0)
            show(before + self.so_far)

    return Reporting
