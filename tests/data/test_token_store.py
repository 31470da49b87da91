"""The token store: it gives back what encoding gives, is built once, whole or not at all; and its streamed twin."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intaglio.data import encoding, token_store
from intaglio.data.encoding import Encoded, Encoder, chunks, encode_chunks
from intaglio.data.examples import Counts, Example, MaskPolicy, encode_sample
from intaglio.data.formats import detect, to_sample
from intaglio.data.readers import Row, read_rows
from intaglio.data.store import Store
from intaglio.data.streaming import Streamed
from intaglio.data.token_store import TokenStore
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"}, chat_templates=TEMPLATE))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two documents, three rows of text and two chats."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("hello there, the assistant")
    (folder / "z:9.txt").write_text("42")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(3)))
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 2)
    return folder


def equal(found: Example, wanted: Example) -> bool:
    return (
        found.ids.tolist() == wanted.ids.tolist()
        and found.supervised.tolist() == wanted.supervised.tolist()
        and found.ids.dtype == np.int32
        and found.supervised.dtype == np.bool_
        and found.where == wanted.where
    )


def every(store: Store) -> list[Example]:
    return [store[i] for i in range(len(store))]


def one_by_one(source: Path, encoder: Encoder) -> list[Example]:
    return [encode_sample(to_sample(row, detect(row)), encoder.tokenizer, MaskPolicy()) for row in read_rows(source)]


def test_it_gives_what_encoding_row_by_row_gives(data: Path, encoder: Encoder, tmp_path: Path) -> None:
    store = TokenStore.build(data, encoder, folder=tmp_path / "tokens")
    wanted = one_by_one(data, encoder)
    assert len(store) == len(wanted) == 7
    assert all(equal(a, b) for a, b in zip(every(store), wanted, strict=True))
    assert equal(store[-1], wanted[-1])
    assert store.lengths.tolist() == [len(example.ids) for example in wanted]
    assert store.num_tokens == sum(len(example.ids) for example in wanted)
    assert store.num_supervised == sum(int(example.supervised.sum()) for example in wanted)
    assert store.formats == {"text": 5, "messages": 2}
    assert store.counts == Counts(read=7, kept=7)
    with pytest.raises(IndexError):
        store[7]


def test_a_second_build_reads_nothing(
    data: Path, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = TokenStore.build(data, encoder, folder=tmp_path / "tokens")
    monkeypatch.setattr(token_store, "encode_chunks", None)
    assert TokenStore.build(data, encoder, folder=tmp_path / "tokens").key == first.key


def test_what_decides_the_examples_decides_the_key(data: Path, encoder: Encoder, tmp_path: Path) -> None:
    def key(encoder: Encoder) -> str:
        return TokenStore.build(data, encoder, folder=tmp_path / "tokens").key

    other = Tokenizer(byte_level(), {"eos_token": "<|im_end|>"}, chat_templates=TEMPLATE)
    keys = [key(encoder), key(replace(encoder, tokenizer=other)), key(replace(encoder, max_length=5))]
    keys += [key(replace(encoder, max_length=5, over_long="drop")), key(replace(encoder, supervise="all"))]
    keys += [key(replace(encoder, template=TEMPLATE.replace("\n", "")))]
    (data / "a.txt").write_text("hello there, the assistanT")
    keys.append(key(encoder))
    assert len(set(keys)) == len(keys)


def test_what_was_left_out_is_counted_and_remembered(data: Path, encoder: Encoder, tmp_path: Path) -> None:
    (data / "picture.png").write_bytes(b"\x89PNG")
    cut = TokenStore.build(data, replace(encoder, max_length=6), folder=tmp_path / "tokens")
    assert cut.lengths.max() == 6
    assert (cut.counts.read, cut.counts.kept, cut.counts.truncated) == (7, 5, 1)
    assert cut.counts.dropped_empty == 2  # of the chats, only what the user said is left
    assert [Path(where).name for where, _ in cut.skipped] == ["picture.png"]
    assert cut.num_skipped == 1
    dropped = TokenStore.build(data, replace(encoder, max_length=6, over_long="drop"), folder=tmp_path / "tokens")
    assert (dropped.counts.dropped_long, dropped.counts.kept) == (3, 4)


def test_data_that_give_no_example_are_an_error_and_leave_nothing(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"input_ids": [5]}\n')
    with pytest.raises(UserError, match=r"empty.jsonl: no examples: 1 rows read, .* 1 without anything to learn"):
        TokenStore.build(tmp_path / "empty.jsonl", encoder, folder=tmp_path / "tokens")
    assert not list((tmp_path / "tokens").iterdir())


def test_a_store_that_lost_bytes_is_built_again(data: Path, encoder: Encoder, tmp_path: Path) -> None:
    store = TokenStore.build(data, encoder, folder=tmp_path / "tokens")
    file = tmp_path / "tokens" / store.key / "ids.i32"
    file.write_bytes(file.read_bytes()[:-4])
    again = TokenStore.build(data, encoder, folder=tmp_path / "tokens")
    assert all(equal(a, b) for a, b in zip(every(again), one_by_one(data, encoder), strict=True))


def rows(count: int) -> list[Row]:
    return [Row({"text": f"row {n} " + "the user says hello " * (n % 5)}, f"f:{n}") for n in range(count)]


def joined(parts: Sequence[Encoded]) -> list[tuple[list[int], list[bool], str]]:
    return [(e.ids.tolist(), e.supervised.tolist(), e.where) for part in parts for e in part.examples()]


def test_processes_give_what_one_gives_in_the_same_order(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_CHUNK", 200)
    alone = list(encode_chunks(chunks(rows(120)), encoder, workers=1))
    assert len(alone) > 20
    assert (
        joined(list(encode_chunks(chunks(rows(120)), encoder, workers=2)))
        == joined(alone)
        == joined([encoder(rows(120))])
    )


def test_a_mistake_in_a_row_is_named_from_another_process_too(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_CHUNK", 10)
    bad = Row({"txet": "x" * 10}, "file.jsonl:31")
    with pytest.raises(UserError, match=r"file\.jsonl:31: fits no format"):
        list(encode_chunks(chunks([*rows(30), bad]), encoder, workers=2))


KILLED = """
import sys, time
from pathlib import Path
from toy_tokenizers import byte_level
from intaglio.data.encoding import Encoder
from intaglio.data.token_store import TokenStore
from intaglio.text.tokenizer import Tokenizer

def wait(counts):
    print("some", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    encoder = Encoder(Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"}))
    TokenStore.build(sys.argv[1], encoder, workers=1, folder=Path(sys.argv[2]), progress=wait)
"""


def test_a_killed_build_leaves_nothing_that_is_taken_for_a_store(data: Path, encoder: Encoder, tmp_path: Path) -> None:
    (data / "chats.jsonl").unlink()  # the script's tokenizer has no chat template
    script = tmp_path / "build.py"
    script.write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(script), str(data), str(tmp_path / "tokens")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as building:
        assert building.stdout is not None
        assert building.stdout.readline() == b"some\n"
        building.send_signal(signal.SIGKILL)
    plain = Encoder(Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"}))
    store = TokenStore.build(data, plain, folder=tmp_path / "tokens")
    assert len(store) == 5


ORPHANED = """
import sys, time
from toy_tokenizers import byte_level
from intaglio.data import encoding
from intaglio.data.readers import Row
from intaglio.text.tokenizer import Tokenizer

if __name__ == "__main__":
    encoding._CHUNK = 1
    encoder = encoding.Encoder(Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"}))
    work = encoding.encode_chunks(encoding.chunks(Row("hello", "f") for _ in range(1000)), encoder, workers=2)
    for _ in range(6):
        next(work)
    import multiprocessing
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(children) >= 2
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stream_gives_what_a_store_gives(data: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_CHUNK", 1)
    stream = Streamed(data, encoder, workers=1, window=2)
    wanted = Counter((tuple(e.ids.tolist()), e.where) for e in one_by_one(data, encoder))
    windows = [every(store) for store in stream.windows(0, seed=0)]
    assert [len(window) for window in windows] == [2, 2, 2, 1]
    assert Counter((tuple(e.ids.tolist()), e.where) for window in windows for e in window) == wanted
    assert stream.counts == Counts(read=7, kept=7)
    later = [every(store) for store in stream.windows(0, seed=0, first=2)]
    assert [e.where for window in later for e in window] == [e.where for window in windows[2:] for e in window]


def test_a_stream_without_examples_is_an_error(tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / "empty.jsonl").write_text('{"input_ids": [5]}\n')
    with pytest.raises(UserError, match=r"empty.jsonl: no row gives an example"):
        list(Streamed(tmp_path / "empty.jsonl", encoder, workers=1).windows(0, seed=0))
