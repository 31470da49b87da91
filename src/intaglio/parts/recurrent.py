"""Recurrent layers: cells written from their equations, and the walk over time that uses one cell at every step.

Legend: B batch, T tokens, I input features, H hidden features, G sets of weights, L layers, D directions (1 or 2).

A `State` is what one step hands to the next: (hidden,), or (hidden, cell) of an LSTM. A cell's are (B, H) each, those
of a whole `Recurrent` (L * D, B, H), a layer's forward direction before its backward one.

`Recurrent.unrolled` is the readable form, one `step` a token; `forward` gives the same values and gradients through
`parts.recurrent_fast`.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.parts import recurrent_fast as fast
from intaglio.specs.recurrent import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec

__all__ = ["Cell", "GRUCell", "LSTMCell", "RNNCell", "Recurrent", "State", "build_cell"]

State = tuple[Tensor, ...]


class Cell(nn.Module):
    """One step of one layer, in one direction; the rows of all G sets of weights stand below each other."""

    states = 1
    """Tensors in the state."""

    def __init__(self, sets: int, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.input_weight = nn.Parameter(torch.empty(sets * hidden_size, input_size))  # W
        self.state_weight = nn.Parameter(torch.empty(sets * hidden_size, hidden_size))  # U
        self.bias = nn.Parameter(torch.empty(sets * hidden_size))  # b
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """U(-1/sqrt(H), 1/sqrt(H)), biases 0."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in (self.input_weight, self.state_weight):
            weight.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()

    def initial(self, like: Tensor) -> State:
        """The state before the first token: zeros, for as many rows as `like` (B, ...) has."""
        return tuple(like.new_zeros(len(like), self.hidden_size) for _ in range(self.states))

    def step(self, x: Tensor, state: State) -> State:
        """(B, I) and the state before -> the state after; its first tensor is the output."""
        raise NotImplementedError

    def scan(self, projected: Tensor, state: State, counts: list[int]) -> State:
        """All steps at once, fast: see `parts.recurrent_fast`, on W x + b of all steps (T, B, G * H)."""
        raise NotImplementedError


class RNNCell(Cell):
    """See `RNNCellSpec`."""

    def __init__(self, spec: RNNCellSpec, input_size: int, hidden_size: int) -> None:
        super().__init__(spec.sets, input_size, hidden_size)
        self.activation = spec.activation

    def step(self, x: Tensor, state: State) -> State:
        """h = f(W x + U h + b)"""
        (hidden,) = state
        total = F.linear(x, self.input_weight, self.bias) + F.linear(hidden, self.state_weight)
        return (torch.tanh(total) if self.activation == "tanh" else torch.relu(total),)

    def scan(self, projected: Tensor, state: State, counts: list[int]) -> State:
        """See `Cell.scan`."""
        (hidden,) = state
        return fast.scan_rnn(projected, self.state_weight, hidden, counts, self.activation)


class LSTMCell(Cell):
    """See `LSTMCellSpec`; the sets are output, forget, input, candidate."""

    states = 2

    def __init__(self, spec: LSTMCellSpec, input_size: int, hidden_size: int) -> None:
        super().__init__(spec.sets, input_size, hidden_size)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """As every cell's, but the forget gate starts open, its bias 1 (Jozefowicz et al. 2015, section 2.2)."""
        super().reset_parameters(generator)
        self.bias[self.hidden_size : 2 * self.hidden_size] = 1.0

    def step(self, x: Tensor, state: State) -> State:
        """c = forget * c + input * candidate; h = output * tanh(c)"""
        hidden, cell = state
        sets = F.linear(x, self.input_weight, self.bias) + F.linear(hidden, self.state_weight)
        output_gate, forget_gate, input_gate, candidate = sets.chunk(4, dim=-1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(cell), cell

    def scan(self, projected: Tensor, state: State, counts: list[int]) -> State:
        """See `Cell.scan`."""
        hidden, cell = state
        return fast.scan_lstm(projected, self.state_weight, hidden, cell, counts)


class GRUCell(Cell):
    """See `GRUCellSpec`; the sets are update, reset, candidate."""

    def __init__(self, spec: GRUCellSpec, input_size: int, hidden_size: int) -> None:
        super().__init__(spec.sets, input_size, hidden_size)
        inner = nn.Parameter(torch.zeros(hidden_size)) if spec.reset == "after" else None
        self.inner_bias: nn.Parameter | None
        self.register_parameter("inner_bias", inner)  # b', which the reset gate multiplies

    def step(self, x: Tensor, state: State) -> State:
        """h = update * h + (1 - update) * candidate"""
        (hidden,) = state
        gates = 2 * self.hidden_size
        from_input = F.linear(x, self.input_weight, self.bias)
        from_state = F.linear(hidden, self.state_weight[:gates])
        update, reset = torch.sigmoid(from_input[:, :gates] + from_state).chunk(2, dim=-1)
        if self.inner_bias is None:
            remembered = F.linear(reset * hidden, self.state_weight[gates:])
        else:
            remembered = reset * F.linear(hidden, self.state_weight[gates:], self.inner_bias)
        candidate = torch.tanh(from_input[:, gates:] + remembered)
        return (update * hidden + (1 - update) * candidate,)

    def scan(self, projected: Tensor, state: State, counts: list[int]) -> State:
        """See `Cell.scan`."""
        (hidden,) = state
        if self.inner_bias is None:
            return fast.scan_gru_before(projected, self.state_weight, hidden, counts)
        return fast.scan_gru_after(projected, self.state_weight, self.inner_bias, hidden, counts)


def build_cell(spec: CellSpec, input_size: int, hidden_size: int) -> Cell:
    """The cell that `spec` describes."""
    match spec:
        case RNNCellSpec():
            return RNNCell(spec, input_size, hidden_size)
        case LSTMCellSpec():
            return LSTMCell(spec, input_size, hidden_size)
        case GRUCellSpec():
            return GRUCell(spec, input_size, hidden_size)


Walk = Callable[[Cell, Tensor, State, bool], tuple[Tensor, State]]
"""One cell over a whole sequence, from its end if the flag is set: inputs and state -> outputs and state."""


class Recurrent(nn.Module):
    """Layers of cells, each reading the outputs of the one below.

    Where rows differ in length they are padded on the right, and `lengths` says how long each is. A row's state stands
    still behind its end, its outputs there are 0, and its backward direction starts at its own last token.

    Args:
        cell: of every layer.
        bidirectional: a second cell in each layer reads from the end; the outputs of both stand side by side.
        dropout: share of the features dropped between layers while training.
    """

    def __init__(
        self,
        cell: CellSpec,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        directions = 2 if bidirectional else 1
        self.output_size = hidden_size * directions
        sizes = [input_size] + [self.output_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            nn.ModuleList(build_cell(cell, size, hidden_size) for _ in range(directions)) for size in sizes
        )

    def initial(self, x: Tensor) -> State:
        """The state before the first token of each row of `x` (B, ...), which also gives dtype and device."""
        states = [cell.initial(x) for cell in self._cells()]
        return tuple(map(torch.stack, zip(*states, strict=True)))

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """All steps, by the fast path.

        Args:
            x: (B, T, I); T may be 0.
            state: carried over from the tokens before, (L * D, B, H) each; None starts from zeros. The caller detaches
                it where gradients shall end.
            lengths: (B,), each 0 to T; None: every row is full.

        Returns:
            outputs (B, T, H * D) and the state behind each row's last token.
        """
        _check(x, lengths)
        state = self.initial(x) if state is None else state
        rows = fast.Rows.of(x.shape[1], len(x), lengths)
        outputs, finals = self._stack(rows.enter(x), tuple(rows.sort(part) for part in state), rows.walk)
        return rows.leave(outputs), tuple(rows.unsort(part) for part in finals)

    def unrolled(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """The same, one `step` a token: the form to read, and what `forward` is held against."""
        _check(x, lengths)
        lengths = torch.full((len(x),), x.shape[1], device=x.device) if lengths is None else lengths

        def walk(cell: Cell, x: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
            outputs = [x.new_zeros(len(x), cell.hidden_size)] * x.shape[1]
            for t in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
                real = (t < lengths)[:, None]  # (B, 1)
                stepped = cell.step(x[:, t], state)
                state = tuple(torch.where(real, new, old) for new, old in zip(stepped, state, strict=True))
                outputs[t] = torch.where(real, state[0], 0)
            return (torch.stack(outputs, dim=1) if outputs else x.new_zeros(len(x), 0, cell.hidden_size)), state

        return self._stack(x, self.initial(x) if state is None else state, walk)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: (B, I) and the state before -> (B, H) and the state after. Not for two directions."""
        assert self.output_size == self._cells()[0].hidden_size, "a step cannot read from the end"
        stepped: list[State] = []
        for cell, *before in zip(self._cells(), *state, strict=True):
            x = F.dropout(x, self.dropout, self.training) if stepped else x
            stepped.append(cell.step(x, tuple(before)))
            x = stepped[-1][0]
        return x, tuple(map(torch.stack, zip(*stepped, strict=True)))

    def _stack(self, x: Tensor, state: State, walk: Walk) -> tuple[Tensor, State]:
        finals: list[State] = []
        for layer, cells in enumerate(self.layers):
            assert isinstance(cells, nn.ModuleList)
            if layer:
                x = F.dropout(x, self.dropout, self.training)
            sides = []
            for cell, backwards in zip(cells, (False, True), strict=False):
                before = tuple(part[len(finals)] for part in state)
                outputs, final = walk(cell, x, before, backwards)  # type: ignore[arg-type]
                sides.append(outputs)
                finals.append(final)
            x = torch.cat(sides, dim=-1) if len(sides) > 1 else sides[0]
        return x, tuple(map(torch.stack, zip(*finals, strict=True)))

    def _cells(self) -> list[Cell]:
        return [module for module in self.modules() if isinstance(module, Cell)]


def _check(x: Tensor, lengths: Tensor | None) -> None:
    if lengths is not None:
        assert lengths.shape == (len(x),), f"lengths {tuple(lengths.shape)} for {len(x)} rows"
        fits = not len(lengths) or bool((lengths >= 0).all() and (lengths <= x.shape[1]).all())
        assert fits, f"lengths {lengths.tolist()} of rows of {x.shape[1]} tokens"
