"""Recurrent layers, forward and backward: our fast path beside torch.nn's kernel, and beside our readable loop.

`ratio` is torch.nn's time over ours, `readable_ratio` the readable loop's over ours, both of the fastest of several
rounds in turn: on a busy machine the fastest round is the one that was left alone. `limit` is the readable loop's time
over that of the matrix products alone, which no path can do without: what `readable_ratio` could be at most. torch.nn
has no GRU with the reset gate before the product; that one stands beside its other. `ragged` rows are of 1 to T tokens,
for torch.nn packed.
"""

import argparse
from collections.abc import Callable

import torch
from _timing import report, seconds
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from intaglio.parts.recurrent import Recurrent
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec

SIDES: dict[str, tuple[CellSpec, Callable[..., nn.Module]]] = {
    "rnn": (RNNCellSpec(), nn.RNN),
    "lstm": (LSTMCellSpec(), nn.LSTM),
    "gru_before": (GRUCellSpec(), nn.GRU),
    "gru_after": (GRUCellSpec(reset="after"), nn.GRU),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sizes", default="32x128x256,32x16x256,1x128x256,16x64x32", help="batch x steps x width, ...")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for size in options.sizes.split(","):
        for name in SIDES:
            for ragged in (False, True):
                one(name, *map(int, size.split("x")), ragged=ragged, rounds=options.rounds)


def one(name: str, batch: int, steps: int, width: int, *, ragged: bool, rounds: int) -> None:
    """One cell at one size."""
    torch.manual_seed(0)
    cell, kind = SIDES[name]
    ours, peer = Recurrent(cell, width, width), kind(width, width, batch_first=True)
    x = torch.randn(batch, steps, width, requires_grad=True)
    lengths = torch.randint(1, steps + 1, (batch,)) if ragged else None

    def theirs() -> None:
        given = x if lengths is None else pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs = peer(given)[0]
        backward(outputs if lengths is None else outputs.data)

    runs = [
        lambda: backward(ours(x, lengths=lengths)[0]),
        theirs,
        lambda: backward(ours.unrolled(x, lengths=lengths)[0]),
        lambda: products(batch, steps, width, cell.sets),
    ]
    times = [[seconds(run) for run in runs] for _ in range(rounds + 1)][1:]
    mine, peers, readable, least = (min(of_one) for of_one in zip(*times, strict=True))
    size = f"{batch}x{steps}x{width}{'_ragged' if ragged else ''}"
    report(
        f"{name}_{size}",
        ms=round(mine * 1e3, 2),
        ratio=round(peers / mine, 2),
        readable_ratio=round(readable / mine, 2),
        **({} if ragged else {"limit": round(readable / least, 2)}),
    )


def products(batch: int, steps: int, width: int, sets: int) -> None:
    """The matrix products of a forward and a backward: those of all steps as one, and two of each step."""
    inputs, gradient = torch.zeros(batch * steps, width), torch.zeros(batch * steps, sets * width)
    weight, state, change = (
        torch.zeros(sets * width, width),
        torch.zeros(batch, width),
        torch.zeros(batch, sets * width),
    )
    torch.mm(inputs, weight.t())
    torch.mm(gradient, weight)
    for _ in ("W", "U"):
        torch.mm(gradient.t(), inputs)
    for _ in range(steps):
        torch.mm(state, weight.t())
        torch.mm(change, weight)


def backward(outputs: Tensor) -> None:
    """A gradient of ones, all the way back."""
    outputs.sum().backward()


if __name__ == "__main__":
    main()
