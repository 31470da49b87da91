"""Small models of bytes, trained for a figure on the Python standard library, which is wherever we run.

Legend: B windows, T bytes of each.
"""

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.specs import DecoderSpec

__all__ = ["BYTES", "code_bytes", "fit", "fresh", "held_out_bytes", "losses_by_place", "prose_bytes", "small_spec"]

BYTES: Final = 256
"""The vocabulary."""

_CODE: Final = ("argparse", "ast", "datetime", "inspect", "pathlib", "subprocess", "tarfile", "typing")
_HELD_OUT: Final = ("textwrap", "zipfile")
_PROSE: Final = "pydoc_data/topics"


def code_bytes() -> Tensor:
    """Modules to train on, (N,)."""
    return _library(*_CODE)


def held_out_bytes() -> Tensor:
    """Modules that are not among them, (N,)."""
    return _library(*_HELD_OUT)


def prose_bytes() -> Tensor:
    """The language's manual as text: something else than code, (N,)."""
    return _library(_PROSE)


def small_spec(width: int, context: int, feed_forward: Any, *, layers: int = 2, **changes: Any) -> DecoderSpec:
    """A decoder of bytes with rotary positions, unless `changes` (to attention, or `positions`) say otherwise."""
    positions = changes.pop("positions", None)
    attention = {"num_heads": 2, "rope": None if positions else {}, **changes}
    block = {"repeat": layers, "norm": {"kind": "rms_norm"}, "attention": attention, "feed_forward": feed_forward}
    sizes = {"vocab_size": BYTES, "hidden_size": width, "max_position_embeddings": context, "positions": positions}
    return DecoderSpec.model_validate({**sizes, "layers": [block]})


def fresh(spec: DecoderSpec, seed: int = 0) -> Decoder:
    """The model with random weights."""
    model = Decoder(spec)
    init_weights(model, seed)
    return model


def fit(
    model: Any,
    text: Tensor,
    *,
    steps: int,
    batch: int,
    window: int,
    rate: float = 3e-3,
    extra: Callable[[], Tensor] | None = None,
    seed: int = 0,
) -> Iterator[float]:
    """Trains what requires gradients with AdamW on random windows of a text (N,); yields the loss of each step.

    Args:
        model: from ids (B, T) to logits.
        text: bytes.
        steps, batch, window: of the run.
        rate: of learning.
        extra: what is added to the loss, after each forward.
        seed: of the windows.
    """
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    dice = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - window, (batch,), generator=dice)
        ids = text[starts[:, None] + torch.arange(window)]  # (B, T)
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        (loss if extra is None else loss + extra()).backward()
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def losses_by_place(model: Any, text: Tensor, window: int, windows: int) -> Tensor:
    """Loss at each place but the last of the first windows of a text, averaged over them: (T - 1,)."""
    ids = text[: window * windows].view(-1, window)
    return F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(dim=0)


def _library(*names: str) -> Tensor:
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray(b"".join((folder / f"{name}.py").read_bytes() for name in names))
    return torch.frombuffer(text, dtype=torch.uint8).long()
