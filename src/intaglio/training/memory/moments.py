"""The most that tensors take in each moment of a step, seen by PyTorch's `MemTracker`.

loss         from the first layer's forward to the gradient of what the last one made
backward     from there to the gradient of the embeddings
embedding    from there to the end of the backward
optimizer    what follows: gradients are summed over ranks, and weights stepped
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

__all__ = ["MomentSeen", "Moments"]

_KINDS: Final = {
    "Parameter": "weights and masters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Optstate": "optimizer states",
    "Activation": "activations",
    "Temp": "temporaries",
    "Other": "batch",
}


class _NoHook:
    """In a hook's place."""

    def remove(self) -> None:
        pass


_NONE: Final = _NoHook()


@dataclass(frozen=True)
class MomentSeen:
    """A moment at its worst.

    Attributes:
        parts: bytes by kind: `weights and masters`, `gradients`, `optimizer states`, `activations` (whatever a forward
            made), `temporaries` (whatever a backward made), `buffers`, `batch`.
        where: the module at work, as far down as is known.
    """

    parts: Mapping[str, int]
    where: str

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())


class Moments(MemTracker):
    """Tracks a step; entered around it.

    Args:
        kept: what stands already: modules, optimizers, tensors.
    """

    def __init__(self, *kept: Any) -> None:
        super().__init__()
        self.moment = "loss"
        self._seen: dict[str, tuple[int, dict[Any, int], str]] = {}
        self.track_external(*kept)

    @property
    def seen(self) -> dict[str, MomentSeen]:
        """Each moment that there was."""
        return {name: MomentSeen(_by_kind(parts), where) for name, (_, parts, where) in self._seen.items()}

    @contextmanager
    def watching(self, decoders: Iterable[Any]) -> Iterator[None]:
        """Tells moments by what happens in a decoder, or in stages of one."""
        handles = [handle for decoder in decoders for handle in self._hooks(decoder)]
        with warnings.catch_warnings(), self:
            warnings.simplefilter("ignore", UserWarning)  # its own, of gradients that are not there yet
            yield
        for handle in handles:
            handle.remove()

    def _hooks(self, decoder: Any) -> Iterator[Any]:
        first = next(iter(decoder.layers))
        yield first.register_forward_pre_hook(lambda *_: self._enter("loss"))
        yield decoder.norm.register_forward_hook(self._marking("backward"))
        if not isinstance(decoder.embed_tokens, nn.Embedding):
            return
        yield decoder.embed_tokens.register_forward_hook(self._marking("embedding"))

    def _marking(self, moment: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.requires_grad:
                out.register_hook(lambda _: self._enter(moment))

        return hook

    def _enter(self, moment: str) -> None:
        self.moment = moment

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        """The tracker knows one forward of each module; another micro-batch brings the next."""
        if not self._mod_tracker.is_bw:
            self.memory_tracking.pop(module, None)
        super()._pre_fw_hook(module, inputs)

    def _track_module_params_and_buffers(self, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        """The tracker would hang hooks on gradients that never come."""
        for parameter in module.parameters():
            if not parameter.requires_grad:
                self._param_to_grad_hook_handles.setdefault(parameter, (_NONE, _NONE))
        return super()._track_module_params_and_buffers(module, install_grad_hooks)

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Called after every operation; of the tracker's own statistics by module a name is all that is kept."""
        for device, parts in self._curr_mem_snap.items():
            total = parts["Total"]
            if device.type == "cpu" and total > self._seen.get(self.moment, (-1,))[0]:
                self._seen[self.moment] = total, dict(parts), self._deepest()

    def _deepest(self) -> str:
        parents = self._mod_tracker.parents - {"Global"}
        return max(parents, key=len, default="")


def _by_kind(parts: Mapping[Any, int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for kind, size in parts.items():
        if getattr(kind, "value", kind) in _KINDS:
            sums[_KINDS[getattr(kind, "value", kind)]] += size
    return {name: size for name, size in sums.items() if size}
