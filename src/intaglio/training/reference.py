"""The reference that a policy is held to: the model as the run began with it, in the cheapest form that is exactly it.

| kind | what it is | exact because |
|---|---|---|
| `adapter_off` | the policy with its new adapter switched off | a new adapter changes nothing, and the base is frozen |
| `copy` | a frozen copy: of the adapter where one is gone on with, else of the whole model | it is one |
| `precomputed` | what the model says of all data before it learns, kept on disk | it is asked before the first step |

`auto` is the first of them for a new adapter, the second for one that is gone on with (switched off it would be the
base, which the policy never was), the third where the whole model learns: no second model in memory, one forward pass
over the data in all epochs.

Legend: b branches of a micro-batch.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import Any, Literal, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.adapters.attach import adapter_specs, adapter_state, disabled, set_active, wrappers
from intaglio.errors import UserError
from intaglio.files import home, whole_file
from intaglio.models.decoder import Decoder
from intaglio.training.batching.forks import ForkedBatch
from intaglio.training.objectives.branches import branch_log_probs
from intaglio.training.stepping.tricks import without_dropout

__all__ = [
    "AdapterCopy",
    "AdapterOff",
    "Computed",
    "ModelCopy",
    "Precomputed",
    "Reference",
    "ReferenceKind",
    "Starting",
    "chosen_kind",
    "precompute",
    "starting_model",
]

ReferenceKind = Literal["auto", "adapter_off", "copy", "precomputed"]

_NAME = "reference"


class Reference(Protocol):
    """What is asked for the answers' log-probabilities before the run."""

    def log_probs(self, model: Decoder, batch: ForkedBatch) -> Tensor:
        """Of each branch (b,) under the reference, without a gradient; `model` is the policy as it is now."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of it."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Is again the reference that `state` came from.

        Raises:
            UserError: it cannot be, since the model that the run began with is another one now.
        """


class Starting(Protocol):
    """The model as the run began with it."""

    def of(self, model: Decoder) -> AbstractContextManager[Decoder]:
        """That model, for as long as the block runs; `model` is the policy as it is now."""

    def state(self) -> dict[str, Tensor]:
        """See `Reference`."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Reference`."""


class AdapterOff:
    """The base below a new adapter."""

    def of(self, model: Decoder) -> AbstractContextManager[Decoder]:
        """See `Starting`."""
        return _without_adapters(model)

    def state(self) -> dict[str, Tensor]:
        """Nothing: the base never changes."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to do."""


class AdapterCopy:
    """A frozen copy of an adapter beside the one that goes on; a checkpoint holds it.

    Args:
        model: with the adapter as the run begins with it, the only one that counts.
        name: what that one is called.
    """

    def __init__(self, model: Decoder, name: str = "default") -> None:
        self._model, self._name = model, name
        for _, wrapper in wrappers(model):
            if name in wrapper.adapters:
                wrapper.adapters[_NAME] = copy.deepcopy(wrapper.adapters[name]).requires_grad_(False)
                without_dropout(wrapper.adapters[_NAME])
        specs: Any = model
        specs.adapter_specs = {**adapter_specs(model), _NAME: adapter_specs(model)[name]}

    @contextmanager
    def of(self, model: Decoder) -> Iterator[Decoder]:
        """See `Starting`."""
        set_active(model, _NAME)
        try:
            yield model
        finally:
            set_active(model, self._name)

    def state(self) -> dict[str, Tensor]:
        """The copy's tensors, by their names in the model."""
        return {name: tensor.contiguous() for name, tensor in adapter_state(self._model, _NAME).items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The copy as it was, whatever the folder it came from holds now."""
        mine = adapter_state(self._model, _NAME)
        if mine.keys() != state.keys():
            raise UserError("the checkpoint's reference adapter has other parts than the run's")
        for name, tensor in mine.items():
            tensor.copy_(state[name])


class ModelCopy:
    """A frozen copy of the whole model."""

    def __init__(self, model: Decoder) -> None:
        self._copy = copy.deepcopy(model).requires_grad_(False).eval()

    def of(self, model: Decoder) -> AbstractContextManager[Decoder]:
        """See `Starting`."""
        return nullcontext(self._copy)

    def state(self) -> dict[str, Tensor]:
        """Which weights they are; they themselves stand where the run took them from."""
        return {"fingerprint": _fingerprint(self._copy)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Starting`."""
        _require_same(self.state(), state)


class Computed:
    """Asks the starting model anew for every micro-batch.

    Args:
        starting: that model.
        chunk: tokens whose logits exist at once.
    """

    def __init__(self, starting: Starting, chunk: int = 1024) -> None:
        self.starting, self.chunk = starting, chunk

    def log_probs(self, model: Decoder, batch: ForkedBatch) -> Tensor:
        """See `Reference`."""
        with self.starting.of(model) as frozen:  # nothing in it trains, and in the policy's mode it rounds as that does
            return branch_log_probs(frozen, batch, self.chunk).detach()

    def state(self) -> dict[str, Tensor]:
        """The starting model's."""
        return self.starting.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Reference`."""
        self.starting.load_state(state)


class Precomputed:
    """What the model said before the first step, by the examples' keys.

    Args:
        known: (b,) of each example.
        fingerprint: of the weights that said it.
    """

    def __init__(self, known: Mapping[bytes, Tensor], fingerprint: Tensor) -> None:
        self._known, self._fingerprint = known, fingerprint

    def log_probs(self, model: Decoder, batch: ForkedBatch) -> Tensor:
        """See `Reference`."""
        return torch.cat([self._known[key] for key in batch.keys]).to(batch.ids.device)

    def state(self) -> dict[str, Tensor]:
        """Which weights it was asked of."""
        return {"fingerprint": self._fingerprint}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Reference`."""
        _require_same(self.state(), state)


def chosen_kind(kind: ReferenceKind, adapter: Literal["none", "new", "begun"]) -> ReferenceKind:
    """What `auto` is; other kinds are themselves."""
    kinds: dict[str, ReferenceKind] = {"none": "precomputed", "new": "adapter_off", "begun": "copy"}
    return kinds[adapter] if kind == "auto" else kind


def starting_model(kind: ReferenceKind, model: Decoder) -> Starting:
    """The model as it is now, which the run begins with, kept as `kind` says."""
    if kind == "adapter_off":
        return AdapterOff()
    assert kind == "copy", f"{kind} keeps no model"
    return AdapterCopy(model) if adapter_specs(model) else ModelCopy(model)


def precompute(model: Decoder, batches: Iterable[ForkedBatch], chunk: int, say: Callable[[str], None]) -> Precomputed:
    """Asks the model for all data, or reads what the same weights said of the same data in a run before.

    Args:
        model: as the run begins with it; computes in the dtype in which the policy will.
        batches: all that will be asked for; read once.
        chunk: see `Computed`.
        say: told how many examples it were and how long it took.
    """
    fingerprint, every = _fingerprint(model), list(batches)
    keys = sorted({key for batch in every for key in batch.keys})
    digest = _digest(fingerprint.numpy().tobytes(), *keys).hex()
    file = home() / "reference" / f"{digest}.safetensors"
    if file.is_file():
        say(f"reference: log-probabilities of {len(keys):,} examples read from {file}")
    else:
        say(f"reference: asking for {len(keys):,} examples before the first step")
        start = time.perf_counter()
        found = _asked(model, every, chunk)
        with whole_file(file) as beside:
            save_file({"log_probs": torch.stack([found[key] for key in keys])}, beside)
        say(f"reference: log-probabilities in {time.perf_counter() - start:.1f} s, kept in {file}")
    return Precomputed(dict(zip(keys, load_file(file)["log_probs"], strict=True)), fingerprint)


@torch.no_grad()
def _asked(model: Decoder, batches: Sequence[ForkedBatch], chunk: int) -> dict[bytes, Tensor]:
    """For each key what the model says of its branches."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    found: dict[bytes, Tensor] = {}
    for batch in batches:
        moved = batch.to(device)
        assert isinstance(moved, ForkedBatch)
        said = branch_log_probs(model, moved, chunk).cpu().view(len(batch.forks), -1)
        found.update(zip(batch.keys, said, strict=True))
    model.train(training)
    return found


@contextmanager
def _without_adapters(model: Decoder) -> Iterator[Decoder]:
    with disabled(model):
        yield model


def _fingerprint(model: Decoder) -> Tensor:
    """(16,) uint8 that say which weights these are, and in which dtype."""
    parts = []
    for name, tensor in model.state_dict().items():
        whole = tensor.detach().cpu().contiguous()
        parts += [f"{name} {whole.dtype} {tuple(whole.shape)}".encode(), whole.reshape(-1).view(torch.uint8).numpy()]
    return torch.from_numpy(np.frombuffer(_digest(*parts), dtype=np.uint8).copy())


def _digest(*parts: Any) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _require_same(mine: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    if not torch.equal(mine["fingerprint"], state["fingerprint"]):
        raise UserError(
            "the model that the run began with is another one now, so its reference is lost",
            mend="put the old weights back, or begin a new run",
        )
