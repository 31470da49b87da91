"""Log-probabilities: those of a log-softmax, and the chosen token's is the number that its place in the list has."""

import pytest
import torch

from intaglio.engine import logprobs
from intaglio.engine.logprobs import token_logprobs


def test_they_are_a_log_softmax_with_ranks_and_the_likeliest() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) * 4
    ids, top = [7, 250, int(logits[2].argmax())], [0, 3, 5]
    for row, told in enumerate(token_logprobs(logits, ids, top)):
        expected = logits[row].log_softmax(-1)
        assert told.token_id == ids[row]
        assert told.log_prob == pytest.approx(float(expected[ids[row]]), abs=1e-6)
        assert told.rank == 1 + int((expected > expected[ids[row]]).sum())
        best = expected.topk(top[row]) if top[row] else None
        assert [i for i, _ in told.top] == (best.indices.tolist() if best else [])
        assert [p for _, p in told.top] == pytest.approx(best.values.tolist() if best else [])
    assert told.rank == 1
    assert told.top[0] == (ids[2], told.log_prob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chosen_token_and_the_list_have_the_very_same_numbers(dtype: torch.dtype) -> None:
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    for told in token_logprobs(logits, logits.max(dim=-1).indices.tolist(), [1] * 64):
        assert told.log_prob == told.top[0][1]  # ties in bf16 too
        assert told.rank == 1


def test_the_rows_of_a_long_prompt_are_told_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 40, generator=torch.Generator().manual_seed(2))
    ids, top = list(range(7)), [0, 1, 2, 3, 0, 0, 1]
    whole = token_logprobs(logits, ids, top)
    monkeypatch.setattr(logprobs, "AT_ONCE", 3 * 40)
    assert token_logprobs(logits, ids, top) == whole
    assert [len(told.top) for told in whole] == top


def test_nothing_is_told_of_no_rows_and_no_more_than_there_is() -> None:
    assert token_logprobs(torch.zeros(0, 4), [], []) == []
    assert len(token_logprobs(torch.zeros(1, 4), [2], [9])[0].top) == 4
