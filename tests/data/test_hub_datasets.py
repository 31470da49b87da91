"""Data sets of a hub: what is chosen of them, and that they lie there whole, at one commit, fetched once."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intaglio.data.datasets import data_rows, hub, is_data_set, pull_data, pulled_data
from intaglio.data.readers import read_rows
from intaglio.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"# a set",
    "dataset_infos.json": b"{}",
    "data/train-00000-of-00001.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "data/test.jsonl": b'{"text": "three"}\n',
}


class FakeClient:
    """As much of huggingface_hub as is used; counts what it is asked for."""

    def __init__(self) -> None:
        self.files, self.asked, self.broken_after = dict(FILES), list[str](), 99

    def HfApi(self) -> "FakeClient":
        return self

    def dataset_info(self, repo: str, revision: str | None, files_metadata: bool) -> SimpleNamespace:
        self.asked.append(f"{repo}@{revision}")
        files = [SimpleNamespace(rfilename=name, size=len(content)) for name, content in self.files.items()]
        return SimpleNamespace(sha=COMMIT, siblings=files, card_data={"license": "cc0-1.0"})

    def hf_hub_download(
        self, repo: str, file: str, *, repo_type: str, revision: str, local_dir: Path, tqdm_class: Any
    ) -> None:
        assert (repo, repo_type, revision) == ("someone/things", "dataset", COMMIT)
        if len(self.asked) > self.broken_after:
            raise ConnectionError("gone")
        self.asked.append(file)
        with tqdm_class(total=len(self.files[file]), initial=0, desc=file, unit="B") as bar:
            bar.update(len(self.files[file]))
        (local_dir / file).parent.mkdir(parents=True, exist_ok=True)
        (local_dir / file).write_bytes(self.files[file])
        (local_dir / ".cache").mkdir(exist_ok=True)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "house"))
    return tmp_path / "house"


@pytest.fixture
def client(house: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(hub, "_client", lambda name: fake)
    return fake


def test_the_rows_for_training_are_fetched_once_at_one_commit(client: FakeClient, house: Path) -> None:
    said: list[str] = []
    assert is_data_set("hub:someone/things")
    assert pulled_data("hub:someone/things") is None
    place = data_rows("hub:someone/things", say=said.append, progress=False)
    assert [row.value for row in read_rows(place)] == [{"text": "one"}, {"text": "two"}]
    assert not read_rows(place).skipped
    assert client.asked == ["someone/things@None", "data/train-00000-of-00001.jsonl"]
    assert said == [
        f"hub:someone/things: someone/things at commit {COMMIT}",
        "licence: cc0-1.0",
        "to download: 0 MB in 1 file: data/train-00000-of-00001.jsonl",
        "left out: 1 file: data/test.jsonl",
    ]
    assert COMMIT in (place.parent / "ABOUT.md").read_text()
    assert pull_data("hub:someone/things") == pulled_data("hub:someone/things") == place.parent
    assert len(client.asked) == 2
    assert os.listdir(house / "data") == ["hub--someone--things"]


def test_a_revision_is_another_data_set(client: FakeClient) -> None:
    plain, pinned = (data_rows(f"hub:someone/things{end}", progress=False) for end in ("", "@refs/pr/1"))
    assert plain != pinned
    assert client.asked[::2] == ["someone/things@None", "someone/things@refs/pr/1"]


def test_a_download_that_breaks_leaves_nothing_in_place(client: FakeClient, house: Path) -> None:
    client.files["data/train-2.jsonl"] = b'{"text": "four"}\n'
    client.broken_after = 1
    with pytest.raises(UserError, match=r"^hub:someone/things: cannot fetch it from the hub \(ConnectionError\)"):
        pull_data("hub:someone/things", progress=False)
    assert not (house / "data").exists() or not os.listdir(house / "data")
    client.broken_after = 99
    assert len(list(read_rows(data_rows("hub:someone/things", progress=False)))) == 3
    assert not os.listdir(house / "downloads")


def test_one_bar_counts_the_bytes_of_all_files(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    @contextmanager
    def bar(total: int, visible: bool) -> Iterator[Any]:
        told.append(total)
        yield told.append

    monkeypatch.setattr(hub, "progress_bar", bar)
    client.files = {"a.txt": b"12345", "b.txt": b"678"}
    pull_data("hub:someone/things")
    assert told == [8, 5, 5, 8, 8]


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        (["train.csv", "test.csv", "dev.csv"], ["train.csv"]),
        (["rows.jsonl", "validation.jsonl", "LICENSE.txt", ".hidden.json"], ["rows.jsonl"]),
        (["en/train/0.parquet", "en/test/0.parquet"], ["en/train/0.parquet"]),
        (["train/dev.json.gz", "train/a.json.gz"], ["train/a.json.gz"]),  # the file's own name comes first
        (["a/training_set.jsonl.zst", "trainer.jsonl"], ["a/training_set.jsonl.zst"]),
        (["b.txt", "a.txt", "model.bin", "dataset_info.json"], ["a.txt", "b.txt"]),
    ],
)
def test_what_is_chosen(paths: list[str], taken: list[str]) -> None:
    chosen, left_out = hub.choose("hub:a/b", paths)
    assert list(chosen) == taken
    assert not set(left_out) & set(taken)


def test_a_folder_of_a_data_set() -> None:
    paths = ["main/train.parquet", "other/train.parquet", "mainly/train.parquet"]
    assert hub.choose("hub:a/b/main", paths, "main")[0] == ("main/train.parquet",)
    with pytest.raises(UserError, match=r"hub:a/b/x: no files of a kind that we read; we read \.txt"):
        hub.choose("hub:a/b/x", paths, "x")


def test_what_is_for_measuring_only_is_refused() -> None:
    with pytest.raises(UserError, match="it has no training split, only test and validation; download"):
        hub.choose("hub:a/b", ["test.jsonl", "val.jsonl"])


def test_names() -> None:
    parse = hub.HubName.parse
    assert parse("hub:a.b/c-d") == hub.HubName("a.b/c-d", "", None)
    assert parse("hub:a/b/c/d@refs/convert/parquet") == hub.HubName("a/b", "c/d", "refs/convert/parquet")
    for name in ("hub:", "hub:a", "hub:a/b@", "hub:/b", "hub:a//b"):
        with pytest.raises(UserError, match="write hub:owner/name"):
            parse(name)
    with pytest.raises(UserError, match="check the path, or write hub:someone/things if a hub"):
        read_rows("someone/things")
    with pytest.raises(UserError, match=r"check the path$"):
        read_rows("some/where/else")


def test_without_the_package(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"need the package huggingface_hub; run `pip install intaglio\[hub\]`"):
        pull_data("hub:someone/things")


@pytest.fixture
def address() -> Iterator[str]:
    """A hub on this machine that holds `someone/things`."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
            info = {"id": "someone/things", "sha": COMMIT, "siblings": siblings, "cardData": {"license": "mit"}}
            contents = {f"/datasets/someone/things/resolve/{COMMIT}/{name}": it for name, it in FILES.items()}
            contents["/api/datasets/someone/things"] = json.dumps(info).encode()
            self.send_response(200 if path in contents else 404)
            if path not in contents:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(contents.get(path, b""))))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"abc"')
            self.end_headers()
            if body:
                self.wfile.write(contents.get(path, b""))

        def log_message(self, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_real_client(address: str, house: Path) -> None:
    """In a process of its own: the client reads the environment when it is imported."""
    script = """
from intaglio.data.datasets import data_rows, pull_data
from intaglio.data.readers import read_rows
from intaglio.errors import UserError
print([row.value for row in read_rows(data_rows("hub:someone/things", progress=False))])
try:
    pull_data("hub:someone/nothing", progress=False)
except UserError as error:
    print(error)
"""
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[{'text': 'one'}, {'text': 'two'}]",
        "hub:someone/nothing: no such data set on the hub, or no right to it; check the name, or log in",
    ]
    assert done.stderr == ""
