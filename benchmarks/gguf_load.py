"""From a GGUF file to a running model: ours beside transformers' tokenizer and `from_pretrained(gguf_file=...)`.

Imports are left out on both sides; each side ends with the logits of one short prompt.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _timing import in_turn, report
from transformers import AutoModelForCausalLM, AutoTokenizer

from intaglio import load_model, load_tokenizer
from intaglio.checkpoints.pull import pull
from intaglio.files import home

PROMPT = "The capital of France is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; default: SmolLM2's, fetched anew")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or _fetch(Path(folder))
        ours, peer = in_turn(lambda: open_ours(file), lambda: open_theirs(file), options.rounds)
    report("gguf_load", seconds=round(ours, 2), peer_seconds=round(peer, 2), ratio=round(peer / ours, 1))


def _fetch(folder: Path) -> Path:
    os.environ["INTAGLIO_HOME"] = str(folder)
    pull("smollm2-135m-instruct", keep=True)
    return next((home() / "downloads").rglob("*.gguf"))


@torch.inference_mode()
def open_ours(file: Path) -> None:
    """Tokenizer and model in bf16, one forward."""
    tokenizer, model = load_tokenizer(file), load_model(file, dtype="bfloat16")
    model(torch.tensor([tokenizer.encode(PROMPT)]))


@torch.inference_mode()
def open_theirs(file: Path) -> None:
    """The same by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    model(torch.tensor([tokenizer(PROMPT)["input_ids"]]))


if __name__ == "__main__":
    main()
