"""A document that forks against its branches apart: equal values and gradients, for every kind of attention."""

import pytest
import torch
from torch import Tensor

from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed, Scores
from intaglio.parts.forked import Forked, fork_positions
from tiny_specs import ZOO, attention, block, decoder

FORKS = [(5, 3, 7), (4, 1, 1), (0, 2, 6), (1, 4, 2), (9, 2), (3, 2, 5, 1)]
WINDOWED = {
    "window 1": attention(num_kv_heads=1, window=1),
    "window 3": attention(num_kv_heads=2, window=3),
    "window 8": attention(num_kv_heads=2, window=8),
    "softcap": attention(num_kv_heads=2, softcap=2.0, window=4),
}


def models() -> list[str]:
    return [*ZOO, *WINDOWED]


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Decoder:
    torch.manual_seed(0)
    spec = ZOO[name] if name in ZOO else decoder(block(attention=WINDOWED[name]))
    return Decoder(spec).to(dtype)


def rows_of(ids: Tensor, forks: list[tuple[int, ...]]) -> list[tuple[Tensor, Tensor]]:
    """For each branch prompt and branch put together (P + T,), and where they stand in the row."""
    rows, start = [], 0
    for fork in forks:
        prompt = torch.arange(start, start + fork[0])
        start += fork[0]
        for length in fork[1:]:
            rows.append(torch.cat((prompt, torch.arange(start, start + length))))
            start += length
    return [(ids[0, places], places) for places in rows]


@pytest.mark.parametrize("name", models())
def test_branches_equal_documents_of_their_own(name: str) -> None:
    model = model_of(name)
    ids = torch.randint(0, model.spec.vocab_size, (1, sum(map(sum, FORKS))))
    positions = torch.cat([fork_positions(fork) for fork in FORKS])[None]
    hidden = model.hidden_states(ids, positions, Forked(FORKS))[0]  # (N, E)
    together, apart = hidden.new_zeros(()), hidden.new_zeros(())
    for row, places in rows_of(ids, FORKS):
        alone = model.hidden_states(row[None], None, Packed([len(row)]))[0]
        torch.testing.assert_close(hidden[places], alone, rtol=1e-6, atol=1e-6)
        weight = torch.linspace(-1, 1, alone.numel(), dtype=alone.dtype).view_as(alone)
        together = together + (hidden[places] * weight).sum()
        apart = apart + (alone * weight).sum()
    parameters = [p for p in model.parameters() if p is not model.lm_head.weight or model.spec.tie_embeddings]
    found = torch.autograd.grad(together, parameters, allow_unused=True)
    wanted = torch.autograd.grad(apart, parameters, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # fp32 angles, a capped softmax in fp32


def test_another_branch_is_never_seen() -> None:
    model = model_of("GQA").eval()
    ids = torch.randint(0, 64, (1, 12))
    positions = fork_positions((4, 3, 5))[None]
    before = model.hidden_states(ids, positions, Forked([(4, 3, 5)]))[0]
    ids[0, 4:7] = (ids[0, 4:7] + 1) % 64
    after = model.hidden_states(ids, positions, Forked([(4, 3, 5)]))[0]
    assert torch.equal(before[:4], after[:4])
    assert torch.equal(before[7:], after[7:])
    assert not torch.equal(before[4:7], after[4:7])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_short_forks_in_bfloat16_are_those_in_fp64(heads: int, kv_heads: int) -> None:
    """The plain products of `short_attention`, which take a bias in place of the causal triangle."""
    torch.manual_seed(0)
    forks, width = [(4, 3, 5), (2, 6, 1)], 16
    exact = [torch.randn(1, n, 21, width, dtype=torch.float64) for n in (heads, kv_heads, kv_heads)]
    exact = [x.to(torch.bfloat16).double().requires_grad_() for x in exact]
    rounded = [x.detach().to(torch.bfloat16).requires_grad_() for x in exact]
    outs = []
    for inputs in (exact, rounded):
        context = Forked(forks)
        context.begin(torch.cat([fork_positions(fork) for fork in forks])[None])
        query, key, value = inputs
        outs.append(context.attend(0, query, key, value, Scores(0.3)))
    assert "ShortAttention" in str(outs[1].grad_fn.next_functions)  # type: ignore[union-attr]
    torch.testing.assert_close(outs[1].double(), outs[0], rtol=0.02, atol=0.02)
    scale = torch.randn(outs[0].shape, dtype=torch.float64)
    wanted = torch.autograd.grad((outs[0] * scale).sum(), exact)
    found = torch.autograd.grad((outs[1].double() * scale).sum(), rounded)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.05, atol=0.05)


def test_rotary_scaling_by_length_plans_for_the_longest_branch_not_for_both() -> None:
    positions = torch.zeros(1, 12, dtype=torch.long)
    assert Forked([(4, 3, 5)]).planned(positions).item() == 9
