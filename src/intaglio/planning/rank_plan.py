"""The memory of a training job on one rank of a layout, by arithmetic: what, how much, and when in a step. No torch.

A rank holds models: the one that trains, and beside it a critic, a frozen reference, reward models. What stays from
step to step is `states`' to say, what a forward keeps `activations`', what shards are gathered into `gathering`'s. A
step has moments, and the peak is the largest of them:

    rollout      answers are drawn: keys and values, a step's logits; with shards the whole model (`parallel.whole`)
    forward      a layer's parameters come, or are made of few bits (see `turns`)
    loss         all that the forward has kept, the logits of a chunk and the loss
    backward     the same without loss, with one layer at work: what it makes again, gradients on their way
    embedding    the last gradient, of a tied matrix both; nothing of the forward is left
    optimizer    gradients are summed over ranks (zero 0) and weights stepped

A pipeline keeps as much as its schedule has micro-batches under way on a rank, and the engine's buffers: what comes in
for each micro-batch, forwards and backwards, and what has gone out. The reference and reward models are this rank's
part by pipeline and tensor parallelism, without ZeRO.

What no arithmetic knows (the allocator's rounding, a device's context, the libraries) is not in here: see
`devices.Overhead`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from intaglio.planning.activations import Activations, activations
from intaglio.planning.adapters import largest_matrix, ranks_of, trained_shapes
from intaglio.planning.cache import cache_bytes
from intaglio.planning.gathering import Gathered, gathered_of
from intaglio.planning.jobs import JobSpec
from intaglio.planning.layouts import local_spec
from intaglio.planning.losses import LossBytes, language_model_loss, log_prob_loss, score_loss
from intaglio.planning.schedules import Action, Held, most_held, schedule
from intaglio.planning.shards import Rank, chunk
from intaglio.planning.stages import ROOM_GRAIN, Stage, own_stages, stages_of, whole_model
from intaglio.planning.states import States, Tensors, frozen_bytes, states_of, tensors_of, trains_output
from intaglio.planning.tape import FLOAT, Shared
from intaglio.planning.turns import Standing, backwards, forwards
from intaglio.specs import DecoderSpec, dtype_bytes
from intaglio.specs.parallel import ParallelSpec

__all__ = ["Moment", "RankPlan", "plan_rank"]

Parts = dict[str, int]
_Times = Callable[[Activations, list[Gathered], int], Iterator[Standing]]

BUCKET = 1 << 25
"""Bytes of gradients that are summed in one collective at zero 0, or one larger tensor (`parallel.data`)."""


@dataclass(frozen=True)
class Moment:
    """A moment of a step.

    Attributes:
        name: see above.
        parts: bytes by component, those that stay among them.
    """

    name: str
    parts: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class RankPlan:
    """What a rank needs.

    Attributes:
        rank: which.
        resident: bytes by component that stay from step to step.
        moments: of a step, in their order.
        host: bytes of the host's memory, by what they are.
        states: of the model that trains.
    """

    rank: Rank
    resident: Mapping[str, int]
    moments: tuple[Moment, ...]
    host: Mapping[str, int]
    states: States = field(repr=False)

    @cached_property
    def peak(self) -> Moment:
        """The moment that needs most; of equals the first."""
        return max(self.moments, key=lambda moment: moment.num_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak.num_bytes

    @property
    def resident_bytes(self) -> int:
        return sum(self.resident.values())

    def plain(self) -> dict[str, Any]:
        """As JSON: `components` are those of the peak, and add up to `peak_bytes`."""
        return {
            "rank": {"pp": self.rank.pp, "shard": self.rank.shard, "tp": self.rank.tp},
            "peak_bytes": self.peak_bytes,
            "peak_moment": self.peak.name,
            "resident_bytes": self.resident_bytes,
            "components": dict(self.peak.parts),
            "moments": {one.name: {"bytes": one.num_bytes, "components": dict(one.parts)} for one in self.moments},
            "host_bytes": sum(self.host.values()),
            "host_components": dict(self.host),
        }


@dataclass(frozen=True)
class _Trained:
    """A model that trains on this rank, and how it is called among the components."""

    label: str
    tensors: Tensors
    states: States
    gathered: Gathered

    @property
    def resident(self) -> Parts:
        return {f"{self.label}{name.replace('_', ' ')}": size for name, size in vars(self.states).items()}


def plan_rank(
    spec: DecoderSpec,
    job: JobSpec,
    layout: ParallelSpec = ParallelSpec(),  # noqa: B008 (frozen)
    rank: Rank = Rank(),  # noqa: B008 (frozen)
    *,
    cpu: bool = False,
    ranks: Mapping[str, int] | None = None,
    native: bool = True,
) -> RankPlan:
    """What a rank needs for a job.

    Args:
        spec: of the model; a reference, a critic and reward models are as large.
        job: what is done.
        layout: of the ranks; see `layouts.require_possible`.
        rank: which of them.
        cpu: whether attention is computed as on a CPU, which has no fused kernel for some.
        ranks: of the adapter, by the path of each matrix; None goes by the names that the parts have here.
        native: whether a CPU has our own operators (`intaglio.native`).

    Raises:
        UserError: an adapter's target that the model has not; a schedule that so few micro-batches do not fill.
    """
    return _Planner(spec, job, layout, rank, cpu, ranks, native).plan()


class _Planner:
    def __init__(
        self,
        spec: DecoderSpec,
        job: JobSpec,
        layout: ParallelSpec,
        rank: Rank,
        cpu: bool,
        ranks: Mapping[str, int] | None,
        native: bool,
    ) -> None:
        self.spec, self.job, self.layout, self.rank, self.cpu = spec, job, layout, rank, cpu
        self.native = native
        self.itemsize = dtype_bytes(job.dtype)
        self.adapted = job.adapter is not None
        self.ranks = ranks
        if job.adapter is not None and ranks is None:
            self.ranks = ranks_of(spec, job.adapter)
        self.micro_batches = layout.pp.micro_batches or job.accumulation
        self.last = layout.pp.stages - 1 in own_stages(layout.pp, rank.pp)
        self.policy = self._trained("", scores=job.scores)
        self.critic = self._trained("critic ", scores=True) if job.job == "ppo" and job.value == "own" else None

    def plan(self) -> RankPlan:
        resident, host = self._placed()
        moments = tuple(
            Moment(name, _positive({**resident, **parts}))
            for name, parts in self._moments().items()
            if parts is not None
        )
        return RankPlan(self.rank, _positive(resident), moments, _positive(host), self.policy.states)

    @property
    def _models(self) -> Iterator[_Trained]:
        yield self.policy
        if self.critic is not None:
            yield self.critic

    def _trained(self, label: str, *, scores: bool) -> _Trained:
        job = self.job
        shapes = None if job.adapter is None else trained_shapes(self.spec, job.adapter, self.ranks or {})
        tensors = tensors_of(self.spec, self.layout, self.rank, trained=shapes, scores=scores)
        if label and self.adapted:  # what is frozen of a critic is the policy's own
            tensors = Tensors(tensors.layout, tensors.rank, {}, tensors.trained)
        states = states_of(
            tensors, self.itemsize, optimizer=job.optimizer, adapted=self.adapted, quantization=job.quantization
        )
        gathered = gathered_of(
            tensors,
            self.itemsize,
            adapted=self.adapted,
            accumulates=self.micro_batches > 1,
            quantization=job.quantization,
        )
        return _Trained(label, tensors, states, gathered)

    def _placed(self) -> tuple[Parts, Parts]:
        """What stays: on the device, and in the host's memory."""
        device: Parts = {}
        host: Parts = {}
        for model in self._models:
            parts = model.resident
            moments = f"{model.label}optimizer states"
            if self.layout.offload:
                host |= parts
                continue
            if self.job.optimizer == "paged_adamw":
                host[moments] = parts.pop(moments)
            device |= parts
        return device | self._beside(), host

    def _beside(self) -> Parts:
        """Frozen models: the reference, where it is one, and those that judge answers."""
        job, parts = self.job, Parts()
        whole = self.layout.updated(zero=0, hsdp=1, offload=False)
        if job.kept_reference == "model":
            tensors = tensors_of(self.spec, whole, self.rank)
            parts["reference weights"] = frozen_bytes(tensors, self.itemsize, job.quantization)
        if job.draws and job.reward_models:
            judge = tensors_of(self.spec, whole, self.rank, scores=True)
            parts["reward model weights"] = job.reward_models * frozen_bytes(judge, self.itemsize)
        return parts

    def _moments(self) -> dict[str, Parts | None]:
        walked, held = self._walked()
        live = held.live
        waiting = sum(walked[number].waiting * count for number, count in held.halved.items())
        buffers = self._buffers(held) | {"gradients between halves": waiting}
        loss = self._loss() if self.last else score_loss()
        works = any(turn.making for one in walked.values() for turn in one.turns)
        passes = works or self.layout.zero > 0 or self.job.quantization is not None
        return {
            "rollout": self._rollout() if self.job.draws else None,
            "forward": self._worst(walked, live, forwards) | buffers if passes else None,
            "loss": self._kept(walked, live)
            | buffers
            | {"loss": loss.kept, "logits": loss.passing}
            | self._gathered("loss"),
            "backward": self._worst(walked, live, backwards) | buffers,
            "embedding": buffers | self._gathered("embedding"),
            "optimizer": {"gradient bucket": self._bucket()},
        }

    def _gathered(self, when: str) -> Parts:
        """Of all models that train together."""
        sums: Counter[str] = Counter()
        for model in self._models:
            sums.update(getattr(model.gathered, when))
        return dict(sums)

    @cached_property
    def _stages(self) -> dict[int, Stage]:
        """This rank's stages, by number."""
        if self.layout.pp.stages == 1:
            return {0: whole_model(self.spec.num_layers)}
        cut = stages_of(self.spec, self.layout.pp.stages)
        return {number: cut[number] for number in own_stages(self.layout.pp, self.rank.pp)}

    def _walked(self) -> tuple[dict[int, Activations], Held]:
        """What one micro-batch keeps in each stage; and how many each has under way when together they keep most."""
        walked = {number: self._walk(stage) for number, stage in self._stages.items()}
        if self.layout.pp.ranks == 1:
            return walked, Held(Counter({0: 1}), Counter(), Action("F", 0, 0))
        order = schedule(self.layout.pp, self.micro_batches).orders[self.rank.pp]
        kept, waiting = ({n: getattr(one, what) for n, one in walked.items()} for what in ("kept", "waiting"))
        return walked, most_held(order, kept, waiting)

    def _kept(self, walked: Mapping[int, Activations], live: Mapping[int, int]) -> Parts:
        """By kind of part, of all models that train together."""
        models = 1 + (self.critic is not None)
        sums: Counter[str] = Counter()
        for number, one in walked.items():
            for kind, size in one.by_kind.items():
                sums[f"activations: {kind}"] += size * live[number] * models
        return dict(sums)

    def _worst(self, walked: Mapping[int, Activations], live: Mapping[int, int], times: _Times) -> Parts:
        """The same while one micro-batch goes through the layer, of any stage, where that takes most."""
        models, dequantized = [model.gathered for model in self._models], self._dequantized()
        found = ((one, time) for one in walked.values() for time in times(one, models, dequantized))
        worst = max(found, key=lambda pair: pair[1].num_bytes - pair[0].kept, default=None)
        if worst is None:
            return {}
        sums, (one, time) = Counter(self._kept(walked, live)), worst
        for kind, size in one.by_kind.items():
            sums[f"activations: {kind}"] -= size - time.kept.get(kind, 0)
        return {**sums, **time.more}

    def _walk(self, stage: Stage) -> Activations:
        job, layout = self.job, self.layout
        return activations(
            local_spec(self.spec, layout.tp),
            job.tokens,
            self.itemsize,
            job.lengths if job.documents else None,
            job.checkpointing,
            self.ranks,
            stage,
            self._shared,
            job.products,
        )

    @property
    def _shared(self) -> Shared:
        """Of the ranks that share a sequence the last with a whole piece has most to look at, if keys are collected."""
        layout, quantized = self.layout, self.job.quantization is not None
        collects = layout.cp > 1 and layout.cp_method == "all_gather"
        last = self.job.tokens // chunk(self.job.tokens, layout.cp, 0) - 1
        return Shared(
            tensor=layout.tp,
            sequence=layout.tp if layout.sequence_parallel else 1,
            context=layout.cp,
            gathers=collects,
            experts=layout.ep,
            tensor_place=self.rank.tp,
            context_place=last if collects else 0,
            cpu=self.cpu,
            quantized=quantized,
            twice=not (self.cpu and self.native) or self.itemsize == FLOAT or quantized,
            native=self.native,
        )

    def _buffers(self, held: Held) -> Parts:
        """The engine has a place for what comes in of each micro-batch, in both directions; what has gone out stays
        until its gradient has come. What one stage hands to another of the same rank takes the other's place."""
        if self.layout.pp.ranks == 1:
            return {}
        count = int(held.done.kind == "F" and held.done.stage + 1 in self._stages)  # it is still to be handed over
        for number, stage in self._stages.items():
            count += self.micro_batches * ((not stage.first) + (not stage.last))
            count += held.live[number] if not stage.last and number + 1 not in self._stages else 0
        return {"pipeline buffers": count * self._room * self.spec.hidden_size * self.itemsize}

    @property
    def _room(self) -> int:
        """Tokens of a place: of the longest micro-batch between two layers, rounded up."""
        tokens = chunk(self.job.tokens, self.layout.cp, 0)
        if self.layout.sequence_parallel:
            tokens = chunk(tokens, self.layout.tp, self.rank.tp)
        return -(-tokens // ROOM_GRAIN) * ROOM_GRAIN

    def _loss(self) -> LossBytes:
        """Of one micro-batch; every token is a target."""
        job, spec = self.job, self.spec
        trained = trains_output(spec, self.policy.tensors.trained)
        if job.scores:
            return score_loss()
        if job.job in ("pretrain", "sft"):
            return language_model_loss(spec, job.tokens, self.itemsize, job.chunk, trained=trained, layout=self.layout)
        chunk = job.chunk or job.tokens
        return log_prob_loss(spec, job.tokens, self.itemsize, chunk, trained=trained, layout=self.layout)

    def _dequantized(self) -> int:
        if not self.job.quantization:
            return 0
        return largest_matrix(self.spec) * (FLOAT + self.itemsize)

    def _bucket(self) -> int:
        """The largest bucket of gradients that ranks sum at zero 0."""
        if self.layout.zero or self.layout.dp * self.layout.cp == 1:
            return 0
        sizes = [prod(shape) * FLOAT for model in self._models for shape in model.tensors.trained.values()]
        return max(_buckets(sizes), default=0)

    def _rollout(self) -> Parts:
        """Answers that are drawn at once; the sampler has a step's logits in fp32, twice."""
        job, count = self.job, self.job.answers_drawn
        keys = count * cache_bytes(self.spec, job.sequence, job.dtype, tp=self.layout.tp)
        whole = self.policy.gathered.whole
        return {"kv cache": keys, "logits": 2 * count * self.spec.vocab_size * FLOAT, "gathered parameters": whole}


def _buckets(sizes: Iterable[int]) -> Iterator[int]:
    bucket = 0
    for size in sizes:
        if bucket and bucket + size > BUCKET:
            yield bucket
            bucket = 0
        bucket += size
    yield bucket


def _positive(parts: Mapping[str, int]) -> Parts:
    return {name: size for name, size in parts.items() if size}
