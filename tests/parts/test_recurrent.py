"""Recurrent layers: torch.nn's in values and gradients, fast equal to readable, padding without effect."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from intaglio.parts.recurrent import Recurrent, State, build_cell
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec
from torch_recurrent import CELLS, from_torch, matched, peer_of, to_torch

CLOSE = 1e-5
INPUTS, HIDDEN, STEPS = 5, 7, 6
RAGGED = torch.tensor([6, 2, 5, 6, 1])
EMPTY_TOO = torch.tensor([0, 6, 3, 0, 4])

every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
torchs_cells = pytest.mark.parametrize(
    "cell", [one for name, one in CELLS.items() if "before" not in name], ids=lambda one: one.kind
)
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
Form = Callable[[Tensor, State | None, Tensor | None], tuple[Tensor, State]]


def layers(cell: CellSpec, num_layers: int = 2, bidirectional: bool = False, dropout: float = 0.0) -> Recurrent:
    """In float64, every parameter random, biases too."""
    torch.manual_seed(3)
    found = Recurrent(cell, INPUTS, HIDDEN, num_layers, bidirectional, dropout).double()
    for parameter in found.parameters():
        parameter.data = torch.randn_like(parameter) * 0.5
    return found


def inputs(batch: int = 5, steps: int = STEPS) -> Tensor:
    torch.manual_seed(4)
    return torch.randn(batch, steps, INPUTS, dtype=torch.double)


def some_state(model: Recurrent, x: Tensor) -> State:
    """Not zeros, with gradients asked for."""
    torch.manual_seed(5)
    return tuple(torch.randn_like(part).requires_grad_() for part in model.initial(x))


def values_and_gradients(model: Recurrent, form: Form, x: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Outputs, state, and the gradients of a random sum of both by inputs, state and parameters."""
    x, state = x.clone().requires_grad_(), some_state(model, x)
    outputs, after = form(x, state, lengths)
    torch.manual_seed(6)
    total = sum(
        ((part * torch.randn(part.shape, dtype=part.dtype)).sum() for part in (outputs, *after)), x.new_zeros(())
    )
    gradients = torch.autograd.grad(total, [x, *state, *model.parameters()])
    return [outputs.detach(), *(part.detach() for part in after), *gradients]


class TestTorchsOwn:
    """Weights copied from torch.nn, and ours copied into torch.nn."""

    @torchs_cells
    @both_ways
    @pytest.mark.parametrize("num_layers", [1, 2, 3])
    @pytest.mark.parametrize("form", ["unrolled", "forward"])
    def test_outputs_states_and_gradients_on_packed_ragged_batches(
        self, cell: CellSpec, bidirectional: bool, num_layers: int, form: str
    ) -> None:
        theirs = peer_of(cell, INPUTS, HIDDEN, num_layers, bidirectional)
        ours = Recurrent(cell, INPUTS, HIDDEN, num_layers, bidirectional)
        from_torch(theirs, ours)
        x = inputs().float()
        packed = pack_padded_sequence(x, RAGGED, batch_first=True, enforce_sorted=False)
        packed_outputs, last = theirs(packed)
        expected, _ = pad_packed_sequence(packed_outputs, batch_first=True)
        found, after = getattr(ours, form)(x, lengths=RAGGED)
        last = last if isinstance(last, tuple) else (last,)
        assert (found - expected).abs().max() < CLOSE
        assert all((mine - one).abs().max() < CLOSE for mine, one in zip(after, last, strict=True))
        weights = torch.randn_like(expected)
        (expected * weights).sum().backward()
        (found * weights).sum().backward()
        for mine, one in matched(theirs, ours):
            assert (mine - one).abs().max() < CLOSE * max(1.0, one.abs().max().item())

    @torchs_cells
    def test_ours_fit_into_torchs(self, cell: CellSpec) -> None:
        ours = layers(cell, 2, True).float()
        theirs = peer_of(cell, INPUTS, HIDDEN, 2, True)
        to_torch(ours, theirs)
        x = inputs().float()
        assert (theirs(x)[0] - ours(x)[0]).abs().max() < CLOSE


class TestFastEqualsReadable:
    @every_cell
    @both_ways
    @pytest.mark.parametrize(
        "lengths",
        [None, RAGGED, EMPTY_TOO, torch.zeros(5, dtype=torch.long)],
        ids=["full", "ragged", "empty rows", "no token"],
    )
    def test_values_and_gradients(self, cell: CellSpec, bidirectional: bool, lengths: Tensor | None) -> None:
        model = layers(cell, 2, bidirectional)
        fast, readable = (
            values_and_gradients(model, form, inputs(), lengths) for form in (model.forward, model.unrolled)
        )
        for mine, one in zip(fast, readable, strict=True):
            torch.testing.assert_close(mine, one, rtol=1e-11, atol=1e-11)

    @every_cell
    @pytest.mark.parametrize("lengths", [None, torch.tensor([1, 3])], ids=["full", "ragged"])
    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_gradients_are_those_of_differences(self, cell: CellSpec, lengths: Tensor | None, form: str) -> None:
        model = Recurrent(cell, 2, 3, 1, True).double()
        torch.manual_seed(1)
        parameters = [torch.randn_like(one).requires_grad_() for one in model.parameters()]
        x = torch.randn(2, 3, 2, dtype=torch.double, requires_grad=True)
        state = tuple(torch.randn_like(part).requires_grad_() for part in model.initial(x))
        names = [name for name, _ in model.named_parameters()]

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            head, rest = tensors[: 1 + len(state)], tensors[1 + len(state) :]
            with_these = dict(zip((f"inner.{name}" for name in names), rest, strict=True))
            outputs, after = torch.func.functional_call(_Form(model, form), with_these, (head[0], head[1:], lengths))
            return (outputs, *after)

        assert torch.autograd.gradcheck(run, (x, *state, *parameters))

    @every_cell
    def test_a_gradient_through_the_state_alone(self, cell: CellSpec) -> None:
        model, x = layers(cell, 1), inputs()
        for which in range(len(model.initial(x))):
            fast, readable = (
                torch.autograd.grad(form(x)[1][which].sum(), list(model.parameters()))
                for form in (model.forward, model.unrolled)
            )
            for mine, one in zip(fast, readable, strict=True):
                torch.testing.assert_close(mine, one)


class _Form(nn.Module):
    """One of the two forms as a module's forward."""

    def __init__(self, inner: Recurrent, form: str) -> None:
        super().__init__()
        self.inner, self.form = inner, form

    def forward(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        found: tuple[Tensor, State] = getattr(self.inner, self.form)(x, state, lengths)
        return found


class TestByHand:
    """One feature, round weights: every number can be followed."""

    def stepped(self, cell: CellSpec, x: float, *state: float) -> list[float]:
        module = build_cell(cell, 1, 1).double()
        with torch.no_grad():
            module.input_weight.copy_(torch.tensor([[1.0], [2.0], [0.5], [-1.0]])[: len(module.input_weight)])
            module.state_weight.copy_(torch.tensor([[0.5], [-1.0], [2.0], [1.0]])[: len(module.state_weight)])
            module.bias.copy_(torch.tensor([0.1, -0.2, 0.3, 0.4])[: len(module.bias)])
        before = tuple(torch.tensor([[part]], dtype=torch.double) for part in state)
        return [part.item() for part in module.step(torch.tensor([[x]], dtype=torch.double), before)]

    def test_rnn(self) -> None:
        assert self.stepped(RNNCellSpec(), 0.6, 0.8) == [pytest.approx(math.tanh(0.6 + 0.4 + 0.1))]
        assert self.stepped(RNNCellSpec(activation="relu"), -2.0, 0.8) == [0.0]

    def test_lstm(self) -> None:
        output, forget, enter = sigmoid(0.6 + 0.4 + 0.1), sigmoid(1.2 - 0.8 - 0.2), sigmoid(0.3 + 1.6 + 0.3)
        cell = forget * 0.5 + enter * math.tanh(-0.6 + 0.8 + 0.4)
        expected = [output * math.tanh(cell), cell]
        assert self.stepped(LSTMCellSpec(), 0.6, 0.8, 0.5) == pytest.approx(expected)

    def test_gru_resets_before_the_product(self) -> None:
        update, reset = sigmoid(0.6 + 0.4 + 0.1), sigmoid(1.2 - 0.8 - 0.2)
        candidate = math.tanh(0.3 + 0.3 + 2.0 * (reset * 0.8))
        assert update == pytest.approx(0.7502601)
        assert reset == pytest.approx(0.5498340)
        assert candidate == pytest.approx(0.9024, abs=1e-3)
        assert self.stepped(GRUCellSpec(), 0.6, 0.8) == [pytest.approx(update * 0.8 + (1 - update) * candidate)]

    def test_before_and_after_differ_only_where_the_gate_mixes_features(self) -> None:
        before, after = (layers(GRUCellSpec(reset=reset), 1) for reset in ("before", "after"))
        after.load_state_dict({**before.state_dict(), "layers.0.0.inner_bias": torch.zeros(HIDDEN)})
        x, zeros, ones = inputs(), before.initial(inputs()), tuple(map(torch.ones_like, before.initial(inputs())))
        assert torch.allclose(before.unrolled(x[:, :1], zeros)[0], after.unrolled(x[:, :1], zeros)[0])
        assert not torch.allclose(before.unrolled(x[:, :1], ones)[0], after.unrolled(x[:, :1], ones)[0])

    def test_an_update_gate_of_one_keeps_the_old(self) -> None:
        model = layers(GRUCellSpec(), 1)
        with torch.no_grad():
            model.get_parameter("layers.0.0.bias")[:HIDDEN] = 1e4
        state = some_state(model, inputs())
        assert torch.allclose(model(inputs(), state)[1][0], state[0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class TestPadding:
    @every_cell
    @both_ways
    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_rows_are_what_they_are_alone(self, cell: CellSpec, bidirectional: bool, form: str) -> None:
        model = layers(cell, 2, bidirectional)
        x = inputs()
        outputs, after = getattr(model, form)(x, None, EMPTY_TOO)
        for row, length in enumerate(EMPTY_TOO.tolist()):
            alone, state = getattr(model, form)(x[row : row + 1, :length])
            torch.testing.assert_close(outputs[row : row + 1, :length], alone)
            assert not outputs[row, length:].any()
            for part, one in zip(after, state, strict=True):
                torch.testing.assert_close(part[:, row : row + 1], one)

    @both_ways
    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_what_is_padded_makes_no_difference(self, bidirectional: bool, form: str) -> None:
        model, x = layers(LSTMCellSpec(), 2, bidirectional), inputs().requires_grad_()
        other = torch.where(torch.arange(STEPS)[:, None] < RAGGED[:, None, None], x, 7.0)
        assert torch.equal(getattr(model, form)(x, None, RAGGED)[0], getattr(model, form)(other, None, RAGGED)[0])
        getattr(model, form)(x, None, RAGGED)[0].sum().backward()
        assert x.grad is not None
        padded = torch.arange(STEPS) >= RAGGED[:, None]
        assert not x.grad[padded].any()
        assert x.grad[~padded].any(dim=-1).all()

    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_rows_without_tokens_keep_the_state_they_had(self, form: str) -> None:
        model, x = layers(LSTMCellSpec(), 2), inputs()
        state = some_state(model, x)
        for given, lengths in ((x, torch.zeros(5, dtype=torch.long)), (x[:, :0], None)):
            outputs, after = getattr(model, form)(given, state, lengths)
            assert outputs.shape == (5, given.shape[1], HIDDEN)
            assert not outputs.any()
            assert all(torch.equal(new, old) for new, old in zip(after, state, strict=True))

    @pytest.mark.parametrize("wrong", [[1, 2], [7] * 5, [-1] * 5])
    def test_lengths_that_cannot_be_are_refused(self, wrong: list[int]) -> None:
        with pytest.raises(AssertionError, match="lengths"):
            layers(RNNCellSpec())(inputs(), lengths=torch.tensor(wrong))


class TestStateCarriedOver:
    @every_cell
    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_two_halves_are_the_whole(self, cell: CellSpec, form: str) -> None:
        model, x = layers(cell), inputs()
        run: Form = getattr(model, form)
        whole, end = run(x, None, None)
        first, between = run(x[:, :2], None, None)
        second, after = run(x[:, 2:], between, None)
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
        assert all(torch.allclose(mine, one) for mine, one in zip(after, end, strict=True))
        carried = torch.autograd.grad(second.sum() + first.sum(), list(model.parameters()))
        for mine, one in zip(carried, torch.autograd.grad(whole.sum(), list(model.parameters())), strict=True):
            torch.testing.assert_close(mine, one)

    @every_cell
    def test_gradients_end_where_the_caller_detaches(self, cell: CellSpec) -> None:
        model, x = layers(cell), inputs().requires_grad_()
        _, between = model(x[:, :2])
        model(x[:, 2:], tuple(part.detach() for part in between))[0].sum().backward()
        assert x.grad is not None
        assert not x.grad[:, :2].any()
        assert x.grad[:, 2:].any()

    @every_cell
    def test_single_steps_are_the_whole(self, cell: CellSpec) -> None:
        model, x = layers(cell), inputs()
        state = model.initial(x)
        for t in range(STEPS):
            output, state = model.step(x[:, t], state)
            torch.testing.assert_close(output, model(x[:, : t + 1])[0][:, -1])

    def test_a_step_in_both_directions_is_refused(self) -> None:
        model = layers(RNNCellSpec(), 1, True)
        with pytest.raises(AssertionError, match="from the end"):
            model.step(inputs()[:, 0], model.initial(inputs()))


class TestDropout:
    @pytest.mark.parametrize("form", ["forward", "unrolled"])
    def test_stands_between_layers_only(self, form: str) -> None:
        x = inputs()
        one, two = layers(LSTMCellSpec(), 1, dropout=0.5), layers(LSTMCellSpec(), 2, dropout=0.5)
        assert torch.equal(getattr(one, form)(x)[0], getattr(one, form)(x)[0])
        (a, (first, _)), (b, (again, _)) = getattr(two, form)(x), getattr(two, form)(x)
        assert not torch.equal(a, b)
        assert torch.equal(first[0], again[0])  # below the dropout nothing changes
        assert a.all()  # and above it nothing is zeroed

    def test_none_in_eval(self) -> None:
        dropped, plain = layers(LSTMCellSpec(), 2, dropout=0.5).eval(), layers(LSTMCellSpec(), 2)
        assert torch.equal(dropped(inputs())[0], plain(inputs())[0])


def test_in_bfloat16() -> None:
    model = layers(LSTMCellSpec(), 2, True).bfloat16()
    fast, readable = (form(inputs().bfloat16(), None, RAGGED)[0] for form in (model.forward, model.unrolled))
    assert fast.dtype == torch.bfloat16
    assert (fast - readable).abs().max() < 0.05


def test_a_batch_of_none() -> None:
    assert layers(GRUCellSpec())(inputs()[:0], None, RAGGED[:0])[0].shape == (0, STEPS, HIDDEN)
