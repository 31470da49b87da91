"""SmolLM2's perplexity of a page, by a window that slides, is that of transformers' recipe."""

import math
from pathlib import Path

import pytest
import torch

from intaglio.engine.llm import LLM
from intaglio.evaluation.perplexity import Document, Sliding, measure_perplexity
from intaglio.evaluation.subjects.local import local_subject

pytestmark = [pytest.mark.real, pytest.mark.prove]

WINDOW, STRIDE = 256, 128


@torch.inference_mode()
def test_it_is_transformers_recipe(smollm2_dir: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")[:4000]
    subject = local_subject(LLM(smollm2_dir, dtype="float32"), smollm2_dir)
    found = measure_perplexity(subject, [Document(text, "history.md")], Sliding(WINDOW, STRIDE))

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]])
    nats, tokens, before = 0.0, 0, 0
    for begin in range(0, ids.shape[1], STRIDE):
        end = min(begin + WINDOW, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - before)] = -100
        counted = int((labels[:, 1:] != -100).sum())
        nats += float(model(ids[:, begin:end], labels=labels).loss) * counted
        tokens, before = tokens + counted, end
        if end == ids.shape[1]:
            break
    assert found.total.tokens == tokens == ids.shape[1] - 1
    assert found.perplexity.mean == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found.bits_per_byte.mean == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-4)
    assert found.perplexity.low < found.perplexity.mean < found.perplexity.high
