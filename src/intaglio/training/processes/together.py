"""One rank of many: its mesh, what is shared out, who waits for whom. See `ranks`."""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from intaglio.errors import UserError
from intaglio.parallel.checkpoint import SavesTogether
from intaglio.parallel.data import MicroBatches, lay_out, sum_gradients
from intaglio.parallel.experts import expert_mesh
from intaglio.parallel.gradients import clip_gradients, gradient_norm
from intaglio.parallel.meeting import meet
from intaglio.parallel.mesh import DATA, build_mesh, part
from intaglio.parallel.waiting import Roll
from intaglio.parallel.whole import whole
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.batching.batches import Batch
from intaglio.training.lesson import Exam, Lesson, Mark, Part
from intaglio.training.stepping.master import MasterWeights

__all__ = ["Together", "computing_in"]

T = TypeVar("T")

_PATIENCE: Final = timedelta(minutes=10)
"""How long a rank waits for the others inside a step before it says who is missing."""


class Together:
    """See `Ranks`. Starts the process group where none stands.

    Args:
        spec: the layout.
        device: of the recipe.
    """

    def __init__(self, spec: ParallelSpec, device: str) -> None:
        if not dist.is_initialized():
            _start(device)
        self.spec, self._device = spec, device.partition(":")[0]
        self.mesh = build_mesh(spec, device)
        self.experts = expert_mesh(self.mesh, spec) if spec.ep > 1 else None
        data = part(self.mesh, DATA)
        self.number, self.count, self.first = data.get_local_rank(), data.size(), dist.get_rank() == 0
        self._readers = dist.get_process_group_ranks(data.get_group())
        self._talk = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self.patient = dist.new_group(backend="gloo", timeout=timedelta(days=7))
        self._roll = Roll()
        self._micro_batches: MicroBatches | None = None

    def gather(self, value: T) -> list[T]:
        """See `Ranks`."""
        everyone = self._everyone(value)
        return [everyone[rank] for rank in self._readers]

    def _everyone(self, value: T) -> list[T]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=self._talk)
        return found

    def heard(self, received: list[int]) -> bool:
        """See `Ranks`."""
        known = [number for rank in self._everyone(received) for number in rank]
        received[:] = received or known[:1]
        return bool(received)

    def device(self, model: nn.Module) -> torch.device:
        """See `Ranks`; weights may wait elsewhere."""
        return torch.device("cuda", torch.cuda.current_device()) if self._device == "cuda" else torch.device("cpu")

    def lay_out(self, model: nn.Module, dtype: torch.dtype, make: Callable[[], T]) -> tuple[MasterWeights, T]:
        """See `Ranks`: shards of FSDP2 are the masters; at zero 0 there are masters as in a single process."""
        if not self._cuts:
            masters = MasterWeights(model, dtype)
            with self.in_turn():  # what takes long is kept on disk
                made = make()
        else:
            with computing_in(model, dtype), self.in_turn():
                made = make()
            lay_out(model, self.mesh, self.spec, dtype, self.experts)
            masters = MasterWeights(model, torch.float32 if self.spec.zero else dtype)
        self._micro_batches = MicroBatches(model, self.spec)
        self.draw_apart()
        return masters, made

    @property
    def _cuts(self) -> bool:
        """Whether anything but the data is shared out."""
        return self.spec.zero > 0 or self.spec.tp * self.spec.ep * self.spec.cp > 1

    def draw_apart(self) -> None:
        """Dropout and noise differ from rank to rank; the first draws what a single process would."""
        if self.number:
            torch.manual_seed(torch.initial_seed() + self.number)

    def learn(self, model: nn.Module, lesson: Lesson, batches: Sequence[Batch]) -> list[Part]:
        """See `Ranks`."""
        assert self._micro_batches is not None, "the model is laid out first"
        lesson = Lesson(lesson.objective, lesson.targets, lesson.scale / self.spec.cp)  # each answers for its share
        parts = []
        for number, batch in enumerate(batches, start=1):
            self._micro_batches.begin(last=number == len(batches))
            parts.append(lesson.backward(model, batch))
        return parts

    def examine(self, model: nn.Module, exam: Exam, batches: Sequence[Batch]) -> list[Mark]:
        """See `Ranks`."""
        return [exam.arriving(model, batch)[1] for batch in batches]

    def sum_gradients(self, masters: MasterWeights) -> None:
        """See `Ranks`; with shards the backward has done it."""
        if not self.spec.zero:
            sum_gradients(masters.parameters(), self.mesh, self.experts)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> float:
        """See `Ranks`."""
        norm = gradient_norm(parameters)
        clip_gradients(parameters, largest, norm)
        return float(norm)

    @contextmanager
    def whole(self, model: Any) -> Iterator[Any]:
        """See `Ranks`; those who have nothing to do wait."""
        with whole(model) as found:
            yield found
            dist.barrier(self.patient)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """See `Ranks`."""
        leads = int(os.environ.get("LOCAL_RANK", "0")) == 0
        if not leads:
            self._wait_for_leads()
        try:
            yield
        except UserError:
            if leads:
                self._all_well(False)
            raise
        if leads:
            self._wait_for_leads()

    def _wait_for_leads(self) -> None:
        """Ends this rank where one of them was refused: that one says why, and one line is enough."""
        if not self._all_well():
            sys.exit(2)

    def _all_well(self, well: bool = True) -> bool:
        """Whether all ranks say that they are; waits for them."""
        said = torch.tensor(int(well))
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self.patient)
        return bool(said)

    def named(self, what: str) -> AbstractContextManager[None]:
        """See `Ranks`."""
        return self._roll.named(what)

    def saves(self) -> SavesTogether:
        """See `Ranks`."""
        return SavesTogether(self.spec.background_saves)


def _start(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    store, rank, world = meet(_PATIENCE)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_PATIENCE)
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


@contextmanager
def computing_in(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """What trains in another dtype for a while."""
    kept = {p: p.data for p in model.parameters() if dtype != torch.float32}
    for parameter in kept:
        parameter.data = parameter.data.to(dtype)
    yield
    for parameter, data in kept.items():
        parameter.data = data
