"""A real model through GGUF and back, and through llama.cpp where it is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from intaglio.checkpoints.gguf_export import export_gguf
from intaglio.checkpoints.load import load_directory, load_gguf
from intaglio.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
PROMPT = "The capital of France is"
LLAMA_CPP = """
import json, sys
from llama_cpp import Llama
llama = Llama(sys.argv[1], n_ctx=128, n_threads=1, logits_all=True, verbose=False)
ids = llama.tokenize(sys.argv[2].encode(), add_bos=False, special=True)
llama.eval(ids)
print(json.dumps({"ids": ids, "logits": llama.scores[len(ids) - 1].tolist()}))
"""


def with_llama_cpp() -> str | None:
    """A Python that imports llama_cpp: this one, or the peers'."""
    for python in (sys.executable, str(ROOT / ".venv-peers" / "bin" / "python")):
        if (
            Path(python).exists()
            and not subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode
        ):
            return python
    return None


@pytest.mark.real
@pytest.mark.prove
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_llama_cpp_and_we_read_what_was_meant(kind: str, smollm2_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    export_gguf(smollm2_dir, file, kind)
    tokenizer = Tokenizer.from_directory(smollm2_dir)
    ids = tokenizer.encode(PROMPT)
    with torch.inference_mode():
        meant = load_directory(smollm2_dir, "float32")(torch.tensor([ids]))[0, -1]
        again = load_gguf(file, "float32")(torch.tensor([ids]))[0, -1]
    tolerance = 1e-3 if kind == "F16" else 0.5
    torch.testing.assert_close(again, meant, atol=tolerance, rtol=0)
    python = with_llama_cpp()
    if python is None:
        pytest.skip("llama_cpp is not installed: only our own reader was asked")
    said = subprocess.run([python, "-c", LLAMA_CPP, str(file), PROMPT], capture_output=True, text=True, check=True)
    theirs = json.loads(said.stdout)
    assert theirs["ids"] == ids
    logits = torch.tensor(theirs["logits"])
    assert logits.argmax() == again.argmax()
    apart = F.kl_div(logits.log_softmax(0), again.log_softmax(0), reduction="sum", log_target=True)
    assert apart < (1e-4 if kind == "F16" else 0.01)  # beside Q8_0 it rounds activations to 8 bits too
