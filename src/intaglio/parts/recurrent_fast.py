"""The fast path of recurrent layers: what does not depend on the step before is done for all steps at once.

Legend: B batch, T steps, n rows of a step that are real, H hidden features, G sets of weights.

- W x + b of all steps is one product, before the loop. In the loop is one product a step, with U, into a buffer.
- Rows are sorted by length, so those of a step that are real come first: a step works on its first n rows, and the
  state of a row whose end has passed stands still because nobody touches it. A backward direction is the same loop
  over rows turned around within their lengths.
- The backward is written by hand. The gradients of U of all steps are one product behind the loop; what is left inside
  is the chain that cannot be broken.

Each `scan_...` takes W x + b (T, B, G * H), U (G * H, H), the state before the first step (B, H), and n of every step,
which never grows. It returns the states before and after every step, (T + 1, B, H); behind a row's end they are 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Rows", "scan_gru_after", "scan_gru_before", "scan_lstm", "scan_rnn"]


@dataclass(frozen=True)
class Rows:
    """How a batch lies in the loop: time first, and long rows before short ones.

    Attributes:
        counts: n of every step.
        order, back: places of the sorted rows in the batch, and the other way; None where all rows are equally long.
        ends: length of each sorted row.
        turned: where each place (T * B) of the rows turned around is found.
    """

    counts: list[int]
    order: Tensor | None = None
    back: Tensor | None = None
    ends: Tensor | None = None
    turned: Tensor | None = None

    @staticmethod
    def of(steps: int, batch: int, lengths: Tensor | None) -> "Rows":
        """For a batch of rows as long as `lengths` (B,) says; None: `steps` each."""
        if lengths is None:
            return Rows([batch] * steps)
        ends, order = lengths.sort(descending=True, stable=True)
        t = torch.arange(steps, device=lengths.device)[:, None]  # (T, 1)
        real = t < ends  # (T, B)
        turned = torch.where(real, ends - 1 - t, t) * batch + torch.arange(batch, device=lengths.device)
        return Rows(real.sum(dim=1).tolist(), order, order.argsort(), ends, turned.flatten())

    def enter(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (T, B, ...), sorted"""
        return self._pick(x, self.order, 0).transpose(0, 1).contiguous()

    def leave(self, x: Tensor) -> Tensor:
        """(T, B, ...), sorted -> (B, T, ...)"""
        return self._pick(x.transpose(0, 1), self.back, 0)

    def sort(self, state: Tensor) -> Tensor:
        """(L * D, B, H) -> the same, sorted"""
        return self._pick(state, self.order, 1)

    def unsort(self, state: Tensor) -> Tensor:
        """(L * D, B, H), sorted -> the same in the order of the batch"""
        return self._pick(state, self.back, 1)

    def walk(
        self, cell: Any, x: Tensor, state: tuple[Tensor, ...], backwards: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One cell over all steps: (T, B, I) and its state -> (T, B, H) and its state at each row's end."""
        projected = F.linear(self._turn(x) if backwards else x, cell.input_weight, cell.bias)
        histories = cell.scan(projected, state, self.counts)
        outputs = histories[0][1:]
        return (self._turn(outputs) if backwards else outputs), tuple(map(self._last, histories))

    def _turn(self, x: Tensor) -> Tensor:
        if self.turned is None:
            return x.flip(0)
        return x.flatten(0, 1).index_select(0, self.turned).view_as(x)

    def _last(self, history: Tensor) -> Tensor:
        """(T + 1, B, H) -> (B, H)"""
        if self.ends is None:
            return history[-1]
        return history[self.ends, torch.arange(history.shape[1], device=history.device)]

    @staticmethod
    def _pick(x: Tensor, order: Tensor | None, dim: int) -> Tensor:
        return x if order is None else x.index_select(dim, order)


def _steps(counts: Sequence[int], *buffers: Tensor) -> list[list[Tensor]]:
    """Each buffer (T, B, ...) as a list of T views of the rows that are real."""
    full = not counts or counts[-1] == buffers[0].shape[1]
    views = [list(buffer.unbind(0)) for buffer in buffers]
    return views if full else [[step[:n] for step, n in zip(view, counts, strict=True)] for view in views]


def _history(start: Tensor, counts: Sequence[int]) -> Tensor:
    """Room for all states (T + 1, B, H), the first filled in; zeros where a step will not write."""
    shape = (len(counts) + 1, *start.shape)
    ragged = bool(counts) and counts[-1] < len(start)
    history = start.new_zeros(shape) if ragged else start.new_empty(shape)
    history[0] = start
    return history


def _gradient_like(x: Tensor, counts: Sequence[int]) -> Tensor:
    """Room for gradients of `x` (T, B, ...); zeros where a step will not write."""
    ragged = bool(counts) and counts[-1] < x.shape[1]
    return torch.zeros_like(x) if ragged else torch.empty_like(x)


def _from_the_end(counts: Sequence[int], running: Sequence[Tensor], *buffers: Tensor) -> Iterator[tuple[Any, ...]]:
    """For each step, the last first: the real rows of what runs back through time (B, ...), and of each buffer."""
    real = {n: [one[:n] for one in running] for n in set(counts)}
    for n, *views in zip(*map(reversed, (counts, *_steps(counts, *buffers))), strict=True):
        yield *real[n], *views


def _product(d_sets: Tensor, states: Tensor) -> Tensor:
    """The gradient of U from all steps: sum of d_sets^T (G * H, n) @ states (n, H)."""
    return d_sets.flatten(0, 1).t() @ states.flatten(0, 1)


_sigmoid_slope = torch.ops.aten.sigmoid_backward.grad_input  # x * y * (1 - y) of y = sigmoid(...), in one pass
_tanh_slope = torch.ops.aten.tanh_backward.grad_input  # x * (1 - y^2) of y = tanh(...)


class _RNN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, hidden: Tensor, counts: list[int], activation: str
    ) -> Tensor:
        states = _history(hidden, counts)
        bend = torch.tanh_ if activation == "tanh" else torch.relu_
        across = weight.t()
        for inputs, before, after in zip(*_steps(counts, projected, states[:-1], states[1:]), strict=True):
            bend(torch.addmm(inputs, before, across, out=after))
        ctx.save_for_backward(states, weight)
        ctx.counts, ctx.activation = counts, activation
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        after = states[1:]
        slopes = 1 - after.square() if ctx.activation == "tanh" else (after > 0).to(after.dtype)
        d_sets, d_hidden = _gradient_like(slopes, ctx.counts), torch.zeros_like(states[0])
        for dh, d_out, slope, d_set in _from_the_end(ctx.counts, [d_hidden], d_states[1:], slopes, d_sets):
            torch.mul(dh.add_(d_out), slope, out=d_set)
            torch.mm(d_set, weight, out=dh)
        return d_sets, _product(d_sets, states[:-1]), d_hidden + d_states[0], None, None


class _LSTM(torch.autograd.Function):
    """The sets are output, forget, input, candidate: sigmoids lie side by side, and so do those that make c_t."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        states, cells = _history(hidden, counts), _history(cell, counts)
        sets, bent = torch.empty_like(projected), torch.empty_like(states[1:])
        output, forget, enter, candidate = sets.chunk(4, dim=-1)
        sigmoids = sets[..., : -hidden.shape[-1]]
        across = weight.t()
        for x, h, h1, c, c1, s, gates, o, f, i, g, b in zip(
            *_steps(counts, projected, states[:-1], states[1:], cells[:-1], cells[1:]),
            *_steps(counts, sets, sigmoids, output, forget, enter, candidate, bent),
            strict=True,
        ):
            torch.addmm(x, h, across, out=s)
            gates.sigmoid_()
            g.tanh_()
            torch.mul(f, c, out=c1).addcmul_(i, g)
            torch.mul(o, torch.tanh(c1, out=b), out=h1)
        ctx.save_for_backward(states, cells, sets, bent, weight)
        ctx.counts = counts
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor | None, d_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        states, cells, sets, bent, weight = ctx.saved_tensors
        d_states = torch.zeros_like(states) if d_states is None else d_states
        d_cells = torch.zeros_like(cells) if d_cells is None else d_cells
        size = states.shape[-1]
        slopes = _LSTM._slopes(cells[:-1], sets, bent)
        road = torch.empty_like(bent)  # from h_t into c_t
        _tanh_slope(sets[..., :size], bent, grad_input=road)
        d_sets = _gradient_like(sets, ctx.counts)
        running = [torch.zeros_like(states[0]), torch.zeros_like(states[0])]
        by_hidden, by_cell = slopes[..., :size], slopes.unflatten(-1, (4, size))[..., 1:, :]
        d_output, d_others = d_sets[..., :size], d_sets.unflatten(-1, (4, size))[..., 1:, :]
        forget = sets[..., size : 2 * size]
        for dh, dc, d_h1, d_c1, to_c, slope_h, slope_c, f, d_o, d_rest, d_set in _from_the_end(
            ctx.counts, running, d_states[1:], d_cells[1:], road, by_hidden, by_cell, forget, d_output, d_others, d_sets
        ):
            dh.add_(d_h1)
            dc.add_(d_c1).addcmul_(dh, to_c)
            torch.mul(slope_h, dh, out=d_o)
            torch.mul(slope_c, dc[:, None], out=d_rest)
            dc.mul_(f)
            torch.mm(d_set, weight, out=dh)
        d_hidden, d_cell = running
        return d_sets, _product(d_sets, states[:-1]), d_hidden + d_states[0], d_cell + d_cells[0], None

    @staticmethod
    def _slopes(before: Tensor, sets: Tensor, bent: Tensor) -> Tensor:
        """How h_t moves with the output's sum, and c_t with the three others', (T, B, 4 * H)."""
        slopes = torch.empty_like(sets)
        (output, forget, enter, candidate), into = sets.chunk(4, dim=-1), slopes.chunk(4, dim=-1)
        _sigmoid_slope(bent, output, grad_input=into[0])
        _sigmoid_slope(before, forget, grad_input=into[1])
        _sigmoid_slope(candidate, enter, grad_input=into[2])
        _tanh_slope(enter, candidate, grad_input=into[3])
        return slopes


class _GRUBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, hidden: Tensor, counts: list[int]) -> Tensor:
        size = hidden.shape[-1]
        states, sets = _history(hidden, counts), torch.empty_like(projected)
        kept = _gradient_like(sets[..., :size], counts)  # r * h, which the product for the candidate reads
        to_gates, to_candidate = weight[: 2 * size].t(), weight[2 * size :].t()
        update, reset, candidate = sets.chunk(3, dim=-1)
        for x_gates, x, h, h1, gates, z, r, g, k in zip(
            *_steps(counts, projected[..., : 2 * size], projected[..., 2 * size :], states[:-1], states[1:]),
            *_steps(counts, sets[..., : 2 * size], update, reset, candidate, kept),
            strict=True,
        ):
            torch.addmm(x_gates, h, to_gates, out=gates).sigmoid_()
            torch.addmm(x, torch.mul(r, h, out=k), to_candidate, out=g).tanh_()
            torch.lerp(g, h, z, out=h1)
        ctx.save_for_backward(states, sets, kept, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        states, sets, kept, weight = ctx.saved_tensors
        size, before = states.shape[-1], states[:-1]
        slopes = _gru_slopes(sets, before, before)
        d_sets, d_hidden = _gradient_like(sets, ctx.counts), torch.zeros_like(states[0])
        d_kept = torch.empty_like(d_hidden)
        of_gates, of_candidate = weight[: 2 * size], weight[2 * size :]
        for dh, dk, d_out, z, r, s_z, s_r, s_g, d_gates, d_z, d_r, d_g in _from_the_end(
            ctx.counts, [d_hidden, d_kept], d_states[1:], *sets.chunk(3, dim=-1)[:2],
            *slopes.chunk(3, dim=-1), d_sets[..., : 2 * size], *d_sets.chunk(3, dim=-1),
        ):  # fmt: skip
            torch.mul(dh.add_(d_out), s_z, out=d_z)
            torch.mm(torch.mul(dh, s_g, out=d_g), of_candidate, out=dk)
            torch.mul(dk, s_r, out=d_r)
            dh.mul_(z).addcmul_(dk, r).addmm_(d_gates, of_gates)
        gates, candidate = d_sets[..., : 2 * size], d_sets[..., 2 * size :]
        d_weight = torch.cat([_product(gates, before), _product(candidate, kept)])
        return d_sets, d_weight, d_hidden + d_states[0], None


class _GRUAfter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, counts: list[int]) -> Tensor:
        size = hidden.shape[-1]
        states, sets = _history(hidden, counts), torch.empty_like(projected)
        inner = torch.empty_like(sets[..., :size])  # U h + b', before the reset gate
        to_gates, to_inner = weight[: 2 * size].t(), weight[2 * size :].t()
        update, reset, candidate = sets.chunk(3, dim=-1)
        for x_gates, x, h, h1, gates, z, r, g, q in zip(
            *_steps(counts, projected[..., : 2 * size], projected[..., 2 * size :], states[:-1], states[1:]),
            *_steps(counts, sets[..., : 2 * size], update, reset, candidate, inner),
            strict=True,
        ):
            torch.addmm(x_gates, h, to_gates, out=gates).sigmoid_()
            torch.addmm(bias, h, to_inner, out=q)
            torch.addcmul(x, r, q, out=g).tanh_()
            torch.lerp(g, h, z, out=h1)
        ctx.save_for_backward(states, sets, inner, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        states, sets, inner, weight = ctx.saved_tensors
        size, before = states.shape[-1], states[:-1]
        slopes = _gru_slopes(sets, before, inner)
        d_sets, d_hidden = _gradient_like(sets, ctx.counts), torch.zeros_like(states[0])
        d_sums = _gradient_like(
            sets, ctx.counts
        )  # by U h + b': as by W x + b, but for the candidate's, behind the gate
        d_candidate = d_sets[..., 2 * size :]
        for dh, d_out, z, r, s_z, s_r, s_g, d_g, d_sum, d_z, d_r, d_q in _from_the_end(
            ctx.counts, [d_hidden], d_states[1:], *sets.chunk(3, dim=-1)[:2],
            *slopes.chunk(3, dim=-1), d_candidate, d_sums, *d_sums.chunk(3, dim=-1),
        ):  # fmt: skip
            torch.mul(dh.add_(d_out), s_z, out=d_z)
            torch.mul(dh, s_g, out=d_g)
            torch.mul(d_g, s_r, out=d_r)
            torch.mul(d_g, r, out=d_q)
            dh.mul_(z).addmm_(d_sum, weight)
        d_sets[..., : 2 * size] = d_sums[..., : 2 * size]
        d_bias = d_sums[..., 2 * size :].sum(dim=(0, 1))
        return d_sets, _product(d_sums, before), d_bias, d_hidden + d_states[0], None


def _gru_slopes(sets: Tensor, before: Tensor, gated: Tensor) -> Tensor:
    """How h_t moves with the sums of update and candidate, and r * `gated` with that of reset, (T, B, 3 * H)."""
    slopes = torch.empty_like(sets)
    (update, reset, candidate), into = sets.chunk(3, dim=-1), slopes.chunk(3, dim=-1)
    _sigmoid_slope(before - candidate, update, grad_input=into[0])
    _sigmoid_slope(gated, reset, grad_input=into[1])
    _tanh_slope(1 - update, candidate, grad_input=into[2])
    return slopes


def scan_rnn(projected: Tensor, weight: Tensor, hidden: Tensor, counts: list[int], activation: str) -> tuple[Tensor]:
    """See `RNNCellSpec`; `activation` is tanh or relu."""
    return (_RNN.apply(projected, weight, hidden, counts, activation),)


def scan_lstm(
    projected: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, counts: list[int]
) -> tuple[Tensor, Tensor]:
    """See `LSTMCellSpec`; hidden and cell states."""
    histories: tuple[Tensor, Tensor] = _LSTM.apply(projected, weight, hidden, cell, counts)
    return histories


def scan_gru_before(projected: Tensor, weight: Tensor, hidden: Tensor, counts: list[int]) -> tuple[Tensor]:
    """See `GRUCellSpec`, reset `before`."""
    return (_GRUBefore.apply(projected, weight, hidden, counts),)


def scan_gru_after(projected: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, counts: list[int]) -> tuple[Tensor]:
    """See `GRUCellSpec`, reset `after`; `bias` is b'."""
    return (_GRUAfter.apply(projected, weight, bias, hidden, counts),)
