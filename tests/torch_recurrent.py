"""torch.nn's recurrent layers beside ours: where each of its weights is in ours, both ways.

torch.nn adds two biases to each set of weights, ours has one; its sets stand in another order. Going to ours the two
are summed, going to torch the second is 0; only the candidate of its GRU keeps a second one of its own.
"""

import torch
from torch import Tensor, nn

from intaglio.parts.recurrent import Cell, GRUCell, LSTMCell, Recurrent
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec

__all__ = ["CELLS", "from_torch", "matched", "peer_of", "to_torch"]

CELLS: dict[str, CellSpec] = {
    "tanh": RNNCellSpec(),
    "relu": RNNCellSpec(activation="relu"),
    "lstm": LSTMCellSpec(),
    "gru, reset before": GRUCellSpec(),
    "gru, reset after": GRUCellSpec(reset="after"),
}


def peer_of(cell: CellSpec, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> nn.RNNBase:
    """torch.nn's module of the same sizes."""
    sizes = {"num_layers": num_layers, "bidirectional": bidirectional, "batch_first": True}
    match cell:
        case RNNCellSpec():
            return nn.RNN(input_size, hidden_size, nonlinearity=cell.activation, **sizes)
        case LSTMCellSpec():
            return nn.LSTM(input_size, hidden_size, **sizes)
        case GRUCellSpec():
            assert cell.reset == "after", "torch.nn has no other"
            return nn.GRU(input_size, hidden_size, **sizes)


def pairs(theirs: nn.RNNBase, ours: Recurrent) -> list[tuple[Cell, list[nn.Parameter]]]:
    """Each cell of ours with torch's W, U, and both biases."""
    cells = [module for module in ours.modules() if isinstance(module, Cell)]
    return list(zip(cells, theirs.all_weights, strict=True))


def ordered(cell: Cell, sets: Tensor) -> Tensor:
    """Torch's sets (input, forget, candidate, output; reset, update, candidate) in our order."""
    order = [3, 1, 0, 2] if isinstance(cell, LSTMCell) else [1, 0, 2] if isinstance(cell, GRUCell) else [0]
    return sets.unflatten(0, (len(order), -1))[order].flatten(0, 1)


def back(cell: Cell, sets: Tensor) -> Tensor:
    """Our sets in torch's order."""
    order = [2, 1, 3, 0] if isinstance(cell, LSTMCell) else [1, 0, 2] if isinstance(cell, GRUCell) else [0]
    return sets.unflatten(0, (len(order), -1))[order].flatten(0, 1)


@torch.no_grad()
def from_torch(theirs: nn.RNNBase, ours: Recurrent) -> None:
    """Copies torch's weights into ours."""
    for cell, (into, across, bias, second) in pairs(theirs, ours):
        cell.input_weight.copy_(ordered(cell, into))
        cell.state_weight.copy_(ordered(cell, across))
        added = second.clone()
        if isinstance(cell, GRUCell):
            assert cell.inner_bias is not None
            cell.inner_bias.copy_(second[-cell.hidden_size :])
            added[-cell.hidden_size :] = 0
        cell.bias.copy_(ordered(cell, bias + added))


@torch.no_grad()
def to_torch(ours: Recurrent, theirs: nn.RNNBase) -> None:
    """Copies our weights into torch's."""
    for cell, (into, across, bias, second) in pairs(theirs, ours):
        into.copy_(back(cell, cell.input_weight))
        across.copy_(back(cell, cell.state_weight))
        bias.copy_(back(cell, cell.bias))
        second.zero_()
        if isinstance(cell, GRUCell):
            assert cell.inner_bias is not None
            second[-cell.hidden_size :] = cell.inner_bias


def matched(theirs: nn.RNNBase, ours: Recurrent) -> list[tuple[Tensor, Tensor]]:
    """The gradient of each of our parameters, with that of torch's in our order."""
    found = []
    for cell, weights in pairs(theirs, ours):
        into, across, bias, second = (weight.grad for weight in weights)
        assert into is not None
        assert across is not None
        assert bias is not None
        assert second is not None
        found += [(cell.input_weight.grad, ordered(cell, into)), (cell.state_weight.grad, ordered(cell, across))]
        found += [(cell.bias.grad, ordered(cell, bias))]
        if isinstance(cell, GRUCell):
            assert cell.inner_bias is not None
            found += [(cell.inner_bias.grad, second[-cell.hidden_size :])]
    return found  # type: ignore[return-value]
