"""One rank of a pipeline: it steps the stages that it holds. See `ranks`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of
from intaglio.parallel.assembly import Assembly
from intaglio.parallel.data import sum_gradients
from intaglio.parallel.gradients import clip_gradients, gradient_norm
from intaglio.parallel.mesh import BATCHES, part
from intaglio.parallel.pipeline import Pipeline, pipeline_of
from intaglio.parallel.tensor import parallelize
from intaglio.training.batching.batches import Batch
from intaglio.training.lesson import Exam, Lesson, Mark, Part
from intaglio.training.processes.together import Together, computing_in
from intaglio.training.stepping.master import MasterWeights

__all__ = ["Staged"]

T = TypeVar("T")


class Staged(Together):
    """See `Ranks`; arguments as of `Together`. All ranks of a pipeline read the same data."""

    pipeline: Pipeline
    assembly: Assembly

    def lay_out(self, model: nn.Module, dtype: torch.dtype, make: Callable[[], T]) -> tuple[MasterWeights, T]:
        """See `Ranks`. The masters are those of this rank's stages, by the whole model's names."""
        cut = self._stageable(model)
        with computing_in(model, dtype), self.in_turn():
            made = make()
        self.assembly = Assembly(model, self.mesh.get_group("pp"))
        parallelize(decoder_of(cut), self.mesh, self.spec)
        features, device = _features(model, dtype), self.device(model)
        self.pipeline = pipeline_of(cut, self.mesh, self.spec, dtype=features, device=device)
        self.assembly.release(self.pipeline.module)
        self.pipeline.shard(self.mesh, self.spec, dtype)
        masters = MasterWeights(self.pipeline.module, torch.float32 if self.spec.zero else dtype)
        self.pipeline.after_weights = masters.collect
        self._copies = {id(p) for name, p in masters.masters.items() if not self.pipeline.counts(name)}
        self.draw_apart()
        return masters, made

    def learn(self, model: nn.Module, lesson: Lesson, batches: Sequence[Batch]) -> list[Part]:
        """See `Ranks`."""
        self._set_mode(model)
        return [Part.of_stages(told) for told in self.pipeline.step(batches, lesson)]

    def examine(self, model: nn.Module, exam: Exam, batches: Sequence[Batch]) -> list[Mark]:
        """See `Ranks`."""
        self._set_mode(model)
        marks: list[Mark] = [told[-1] for told in self.pipeline.evaluate(batches, exam)]
        return marks

    def sum_gradients(self, masters: MasterWeights) -> None:
        """See `Ranks`."""
        if not self.spec.zero and part(self.mesh, BATCHES).size() > 1:
            sum_gradients(masters.parameters(), self.mesh)
        if self.pipeline.tied:
            self.pipeline.tied.join(masters.masters)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> float:
        """See `Ranks`; of a matrix that two stages have, one counts."""
        counted = [p for p in parameters if id(p) not in self._copies]
        norm = gradient_norm(counted, [self.mesh.get_group("pp")])
        clip_gradients(parameters, largest, norm)
        return float(norm)

    @contextmanager
    def whole(self, model: Any) -> Iterator[Any]:
        """See `Ranks`."""
        with self.assembly.whole(self.pipeline.stations) as found:
            yield found
            dist.barrier(self.patient)

    def _stageable(self, model: nn.Module) -> Decoder | SequenceClassifier:
        """A model that can be cut into stages in this layout; others are refused."""
        if not isinstance(model, Decoder | SequenceClassifier):
            what = f"a pipeline is made of the layers of a decoder, and this is a {type(model).__name__}"
            raise UserError(what, where="parallel.pp", mend="take pp: 1")
        return model

    def _set_mode(self, model: nn.Module) -> None:
        for station in self.pipeline.stations:
            station.train(model.training)


def _features(model: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """In which dtype features go from stage to stage: an adapter's base keeps its own."""
    frozen = next((p for p in model.parameters() if not p.requires_grad and p.is_floating_point()), None)
    return dtype if frozen is None else frozen.dtype
