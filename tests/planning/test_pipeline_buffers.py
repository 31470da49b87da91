"""What a rank of a pipeline keeps in a step, held beside the engine that runs it: equal integers.

A rank is this process on a fake group (see `fake_ranks`), which runs its part of the schedule twice; of the second step
each moment is looked at.
"""

from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fake_ranks import fake_rank
from intaglio.models.decoder import Decoder
from intaglio.parallel import tensor
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.pipeline import pipeline_of
from intaglio.parts.context import Packed
from intaglio.planning.jobs import JobSpec
from intaglio.planning.rank_plan import plan_rank
from intaglio.planning.shards import Rank
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec, Schedule
from live_storages import Kept, of_engine
from measured_memory import own_storages
from parity import batches
from tiny_specs import attention, block, decoder

SPEC = decoder(block(repeat=8, attention=attention(num_kv_heads=2)), max_position_embeddings=64)


class Plain:
    """A sum for a loss, which keeps nothing."""

    def context(self, batch: Any) -> Packed:
        return Packed(batch.documents)

    def passing(self, model: Any, batch: Any) -> tuple[None, None]:
        return None, None

    def arriving(self, model: Any, batch: Any) -> tuple[Tensor, None]:
        return (model.hidden_states(batch.ids, batch.positions, self.context(batch)) * 2).sum(), None


@dataclass
class Seen:
    """Bytes at the moment when most is kept: by autograd, by the engine beside it, and between halves of a backward."""

    kept: int = 0
    beside: int = 0
    halves: int = 0


def step(spec: DecoderSpec, layout: ParallelSpec, rank: int, documents: tuple[int, ...], count: int) -> Seen:
    """Of two steps of a rank, the second one."""
    with fake_rank(rank, layout.world):
        mesh, model, seen = build_mesh(layout, "cpu"), Decoder(spec), Seen()
        tensor.parallelize(model, mesh, layout)
        pipeline = pipeline_of(model, mesh, layout, dtype=torch.float32)
        rows = [replace(batch, ids=batch.ids.clone()) for batch in batches(spec.vocab_size, count, documents)]
        kept = Kept(own_storages(model))
        with kept.watched():
            pipeline.run(rows, Plain())
            (engine,) = pipeline._engines.values()
            stages = getattr(engine, "_stages", None) or [engine._stage]
            for stage in stages:
                for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                    setattr(stage, name, looking(getattr(stage, name), seen, kept, stages))
            pipeline.run(rows, Plain())
    return seen


def looking(action: Any, seen: Seen, kept: Kept, stages: list[Any]) -> Any:
    """The action, and a look around behind it."""

    def act(*args: Any, **options: Any) -> Any:
        done = action(*args, **options)
        rooms, out, halves = of_engine(stages)
        now = Seen(
            sum(size for place, size in kept.storages.items() if place not in rooms),
            sum(rooms.values()) + sum(out.values()),
            sum(size for place, size in halves.items() if place not in rooms),
        )
        if now.kept + now.halves > seen.kept + seen.halves:
            vars(seen).update(vars(now))
        return done

    return act


def planned(spec: DecoderSpec, layout: ParallelSpec, rank: int, documents: tuple[int, ...], count: int) -> Seen:
    """The same by arithmetic."""
    job = JobSpec(sequence=documents[0], micro_batch=len(documents), accumulation=count, dtype="float32")
    pp, tp = divmod(rank, layout.tp)
    plan = plan_rank(spec, job, layout, Rank(pp=pp, tp=tp), cpu=True)
    (parts,) = (moment.parts for moment in plan.moments if moment.name == "loss")
    kept = sum(size for name, size in parts.items() if name.startswith("activations"))
    return Seen(kept, parts["pipeline buffers"], parts.get("gradients between halves", 0))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_a_rank_holds_what_is_counted(schedule: str, ranks: int) -> None:
    """First, middle and last ranks; micro-batches that fill a room of 64 tokens, and such that do not."""
    layout = ParallelSpec.model_validate({"pp": {"ranks": ranks, "schedule": schedule}})
    count, documents = 2 * ranks, ((32, 32) if ranks == 2 else (24, 24))
    for rank in range(ranks):
        found = step(SPEC, layout, rank, documents, count)
        assert found == planned(SPEC, layout, rank, documents, count), rank


@pytest.mark.parametrize("along", [True, False])
def test_so_does_one_that_shares_its_matrices(along: bool) -> None:
    layout = ParallelSpec.model_validate({"pp": 2, "tp": 2, "sequence_parallel": along})
    for rank in range(4):
        assert step(SPEC, layout, rank, (24, 24), 4) == planned(SPEC, layout, rank, (24, 24), 4), rank
