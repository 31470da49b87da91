"""Rows of text and of chats into a token store, beside transformers' tokenizer on the same rows.

Ours reads the files, encodes, masks what is learned and writes the store, in one process; the peer has the rows at hand
and makes ids of them: a batched call for texts, `apply_chat_template` for chats. The texts are the standard library's
sources; the chats are cut out of them, with log-normal lengths. SmolLM2's own template marks no answers, so there the
peer makes no mask; with our ChatML, which marks them, both do. Megabytes (10^6, of what is said) a CPU second, so that
a busy machine does not count.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from _timing import model_directory, report
from transformers import AutoTokenizer

from intaglio.data.datasets import stdlib_files
from intaglio.data.encoding import Encoder
from intaglio.data.token_store import TokenStore
from intaglio.text.chat_templates import load_template
from intaglio.text.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    directory = model_directory()
    ours, peer = Tokenizer.from_directory(directory), AutoTokenizer.from_pretrained(directory)
    texts = sources(int(options.megabytes * 1e6))
    chats = conversations("".join(texts))
    marked = load_template("chatml")

    def chats_of_peer(**how: Any) -> Callable[[], object]:
        return lambda: [peer.apply_chat_template(chat, tokenize=True, return_dict=True, **how) for chat in chats]

    said, spoken = size(texts), size(message["content"] for chat in chats for message in chat)
    with_mask = chats_of_peer(chat_template=marked, return_assistant_tokens_mask=True)
    compare("text", [{"text": text} for text in texts], said, Encoder(ours), lambda: peer(texts), options.rounds)
    rows: list[Any] = [{"messages": chat} for chat in chats]
    compare("chats", rows, spoken, Encoder(ours), chats_of_peer(), options.rounds)
    compare("marked_chats", rows, spoken, Encoder(ours, template=marked), with_mask, options.rounds)


def sources(num_bytes: int) -> list[str]:
    """The standard library's files, in an order of chance, until they are `num_bytes` long."""
    files = stdlib_files()
    random.Random(0).shuffle(files)
    texts: list[str] = []
    for file in files:
        if size(texts) < num_bytes:
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
    return texts


def conversations(text: str) -> list[list[dict[str, str]]]:
    """Chats of one to four turns that say all of `text`: questions of some 120 characters, answers of some 600."""
    dice = random.Random(0)
    chats, place = [], 0
    while place < len(text):
        chat = []
        for index in range(2 * dice.randint(1, 4)):
            role, median = ("user", 120) if index % 2 == 0 else ("assistant", 600)
            end = place + 1 + int(min(8000, median * dice.lognormvariate(0, 1)))
            chat.append({"role": role, "content": text[place:end].strip() or "?"})
            place = end
        chats.append(chat)
    return chats


def size(texts: Any) -> int:
    """UTF-8 bytes of all `texts`."""
    return sum(len(text.encode()) for text in texts)


def compare(
    name: str, rows: list[Any], num_bytes: int, encoder: Encoder, peer: Callable[[], object], rounds: int
) -> None:
    """Reports both sides, run in turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        times: list[tuple[float, float]] = []
        for number in range(rounds):

            def ours(place: Path = Path(folder) / f"store {number}") -> None:
                TokenStore.build(file, encoder, workers=1, folder=place)

            times.append((cpu_seconds(ours), cpu_seconds(peer)))
    mine, theirs = (statistics.median(side) for side in zip(*times, strict=True))
    report(
        f"tokenize_{name}",
        megabytes_per_cpu_second=round(num_bytes / mine / 1e6, 2),
        peer_megabytes_per_cpu_second=round(num_bytes / theirs / 1e6, 2),
        ratio=round(theirs / mine, 2),
        rows=len(rows),
    )


def cpu_seconds(run: Callable[[], object]) -> float:
    """Processor time of one run, all threads together."""
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
