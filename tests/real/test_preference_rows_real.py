"""The preference sets as they are pulled, read by a real tokenizer: whole, and what transformers makes of them."""

from pathlib import Path

import pytest

from intaglio.checkpoints.models import load_tokenizer
from intaglio.data.check import DataCheck
from intaglio.data.datasets import data_rows
from intaglio.data.examples import Counts, MaskPolicy
from intaglio.data.preference_encoding import encode_preference, encode_prompts, fitting
from intaglio.data.preferences import preferences_of, prompt_of
from intaglio.data.readers import read_rows

pytestmark = [pytest.mark.prove, pytest.mark.real]


@pytest.mark.parametrize(("name", "count"), [("piqa", 1500), ("openbookqa", 500), ("commonsenseqa", 1218)])
def test_pairs_are_what_transformers_makes_of_them(smollm2_dir: Path, name: str, count: int) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(smollm2_dir), AutoTokenizer.from_pretrained(smollm2_dir)
    rows = list(read_rows(data_rows(f"{name}-pairs", progress=False)))
    pairs = [pair for row in rows for pair in preferences_of(row)]
    counts = Counts()
    examples = list(fitting((encode_preference(pair, ours, MaskPolicy()) for pair in pairs), counts, max_length=1024))
    assert counts == Counts(count, count)
    for pair, example in list(zip(pairs, examples, strict=True))[::50]:
        asked = theirs.apply_chat_template(list(pair.prompt), add_generation_prompt=True, return_dict=True)
        assert example.prompt.tolist() == asked["input_ids"]
        for side, ids in zip((pair.chosen, pair.rejected), example.completions, strict=True):
            whole = theirs.apply_chat_template([*pair.prompt, *side], tokenize=False)
            assert theirs.decode([*example.prompt.tolist(), *ids.tolist()]) == whole.rstrip()


@pytest.mark.parametrize("name", ["piqa-pairs", "openbookqa-pairs", "commonsenseqa-pairs"])
def test_neither_side_is_told_by_its_length(name: str) -> None:
    check = DataCheck()
    for row in read_rows(data_rows(name, progress=False)):
        check.look(row)
    assert check.report.longer_share is not None
    assert 0.4 < check.report.longer_share < 0.6


def test_arithmetic_prompts_fit_a_short_context(smollm2_dir: Path) -> None:
    ours, counts = load_tokenizer(smollm2_dir), Counts()
    rows = read_rows(data_rows("arithmetic", progress=False))
    assert all(
        example.columns["answer"].isdigit()
        for example in encode_prompts(map(prompt_of, rows), ours, MaskPolicy(), counts, max_length=96)
    )
    assert counts == Counts(6169, 6169)
