"""The time of an optimizer step, by arithmetic: what a rank computes and moves, over what its device can. No torch.

    a product          the larger of its FLOPs over the peak and its bytes over the memory's bandwidth
    attention          FLOPs that the mask leaves, over the peak; its backward has 2.5 times as many
    passes             bytes of element-wise operations over the memory's bandwidth; twice as many in a backward
    again              what checkpointing computes a second time
    tensor, context,
    experts            collectives that the next operation waits for
    gathers            ZeRO's, and the sum of gradients: only what no computation is left to hide, see `sharing`
    overlap, copies    what collectives take from the computation beside them, and move to and fro on the device
    bubble             what the simulated schedule has a rank wait, with each stage's own times (`simulation`)
    optimizer          bytes of a step over the bandwidth
    rollout, beside    answers that are drawn; frozen models that read what the trained one does

Peaks are the device's, shares of them `speeds.Assumptions`. Kernels that would end sooner than the next can be launched
take as long as launching them.

Legend: F forward, I and W the halves of a backward, M micro-batches.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from intaglio.planning.devices import Device
from intaglio.planning.jobs import JobSpec
from intaglio.planning.layouts import local_spec
from intaglio.planning.schedules import schedule
from intaglio.planning.sharing import shared_seconds
from intaglio.planning.simulation import Run, StageTime, simulate
from intaglio.planning.speeds import Execution
from intaglio.planning.stages import Stage, own_stages, stages_of
from intaglio.planning.traffic import Wires
from intaglio.planning.work import LayerWork, Product, causal_context, layer_work
from intaglio.specs import BlockSpec, DecoderSpec, MoESpec, dtype_bytes
from intaglio.specs.attention import AttentionSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["StepTime", "Timer", "step_time"]

Parts = Mapping[str, float]
_StageParts = tuple[Parts, Parts, Parts]


@dataclass(frozen=True)
class StepTime:
    """An optimizer step.

    Attributes:
        parts: seconds of the busiest rank, by what it does or waits for; together the step's.
        tokens: that the step learns from, of all ranks.
        world: ranks.
        model_flops: of the step, forward and backward, attention counted in full, nothing twice.
        peak: FLOPs that one device does in a second at most, in the job's dtype.
        price: dollars of an hour of one device.
        run: of the pipeline, if there is one; in seconds.
    """

    parts: Parts
    tokens: int
    world: int
    model_flops: float
    peak: float
    price: float
    run: Run | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Of one device."""
        return self.tokens / self.seconds / self.world

    @property
    def tokens_per_day(self) -> float:
        """Of all devices."""
        return self.tokens / self.seconds * 86_400

    @property
    def dollars_per_billion(self) -> float:
        """Of tokens."""
        return 1e9 / self.tokens * self.seconds / 3600 * self.world * self.price

    @property
    def mfu(self) -> float:
        """Model FLOPs over what the devices could do in that time (Chowdhery et al. 2022, arXiv 2204.02311, B)."""
        return self.model_flops / self.seconds / self.world / self.peak

    @property
    def bubble(self) -> float:
        """Share of the pipeline's time in which its ranks wait; 0 without one."""
        return self.run.bubble if self.run else 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seconds": self.seconds,
            "tokens_per_step": self.tokens,
            "tokens_per_second_per_device": self.tokens_per_second,
            "tokens_per_day": self.tokens_per_day,
            "dollars_per_billion_tokens": self.dollars_per_billion,
            "mfu": self.mfu,
            "bubble": self.bubble,
            "parts": dict(self.parts),
        }


def step_time(
    spec: DecoderSpec,
    job: JobSpec,
    layout: ParallelSpec,
    device: Device,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
) -> StepTime:
    """The time of one optimizer step.

    Args:
        spec: of the model.
        job: what is done; its `accumulation` micro-batches make a step, where the pipeline does not say.
        layout: of the ranks; a possible one, see `layouts.require_possible`.
        device: of each rank.
        execution: how it is run.

    Raises:
        UserError: micro-batches that the schedule cannot take.
    """
    return Timer(spec, device, execution).step(job, layout)


class Timer:
    """Times many layouts of one model, and does not count twice what they have in common.

    The jobs that one timer is given differ in nothing but `micro_batch`, `accumulation` and `checkpointing`.

    Args:
        spec: of the model.
        device: of each rank.
        execution: how steps are run.
    """

    def __init__(self, spec: DecoderSpec, device: Device, execution: Execution) -> None:
        self.spec, self.device, self.execution = spec, device, execution
        self._stages: dict[Any, Sequence[_StageParts]] = {}
        self._runs: dict[Any, tuple[Run | None, int]] = {}

    def step(self, job: JobSpec, layout: ParallelSpec) -> StepTime:
        """See `step_time`."""
        clock, key = self._clock(job, layout)
        place = (*key, layout.pp, clock.micro_batches, layout.dp)
        if place not in self._runs:
            self._runs[place] = clock.pipeline()
        return clock.step(*self._runs[place])

    def least(self, job: JobSpec, layout: ParallelSpec) -> float:
        """Seconds that `step` does not go below, without running the schedule.

        A rank computes all that is its own. It cannot begin before the first micro-batch has come through the stages
        before its first; and where backwards are whole, its last is that of its first stage, which these still have
        before them.
        """
        return self._clock(job, layout)[0].least()

    def _clock(self, job: JobSpec, layout: ParallelSpec) -> tuple["_Clock", tuple[Any, ...]]:
        clock = _Clock(self.spec, job, layout, self.device, self.execution)
        shared = (layout.tp, layout.cp, layout.cp_method, layout.sequence_parallel, layout.ep, layout.pp.stages)
        key = (job.micro_batch, job.checkpointing, *shared)
        if key not in self._stages:
            self._stages[key] = clock.every_stage()
        clock.stages = self._stages[key]
        return clock, key


class _Clock:
    def __init__(
        self, spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, device: Device, execution: Execution
    ) -> None:
        self.spec, self.job, self.layout, self.device, self.execution = spec, job, layout, device, execution
        self.assumed, self.wires = execution.assumed, Wires(layout, device, execution.assumed)
        self.itemsize = dtype_bytes(job.dtype)
        self.memory = device.bandwidth * self.assumed.memory
        self.peak = device.peak(job.dtype)
        self.micro_batches = layout.pp.micro_batches or job.accumulation
        self.tokens = job.tokens / layout.cp
        self.blocks, self.kinds = _kinds(spec, layout.tp)
        self.known: dict[tuple[int, bool], _StageParts] = {}
        self.stages: Sequence[_StageParts] = ()

    def step(self, run: Run | None, rank: int) -> StepTime:
        """Of the pipeline's run (None: there is none) and the rank that computes most."""
        own = [self.stages[number] for number in own_stages(self.layout.pp, rank)]
        forward, backward = _sum(f for f, _, _ in own), _sum(part for _, i, w in own for part in (i, w))
        once, count = _sum((forward, backward)), self.micro_batches
        parts = {name: seconds * count for name, seconds in once.items()}
        if run:
            parts["bubble"] = run.makespan - run.busy(rank)
        parts |= shared_seconds(self.spec, self.job, self.wires, rank, _total(forward), _total(backward))
        parts |= self._others(forward, backward)
        job, world = self.job, self.layout.world
        tokens = job.tokens * count * self.layout.dp
        flops = 3 * tokens * self.spec.flops_per_token(job.sequence)
        used = {name: seconds for name, seconds in parts.items() if seconds > 0}
        return StepTime(used, tokens, world, flops, self.peak, self.device.price, run)

    def pipeline(self) -> tuple[Run | None, int]:
        """The schedule run, and the rank that computes most."""
        pipeline = self.layout.pp
        if pipeline.ranks == 1 and pipeline.stages == 1:
            return None, 0
        times = [StageTime(*map(_total, parts)) for parts in self.stages]
        sent = self.tokens * self.spec.hidden_size * self.itemsize
        run = simulate(schedule(pipeline, self.micro_batches), times, self.wires.send(sent))
        return run, max(range(pipeline.ranks), key=run.busy)

    def least(self) -> float:
        """See `Timer.least`."""
        pipeline = self.layout.pp
        times = [StageTime(*map(_total, parts)) for parts in self.stages]
        whole = pipeline.schedule in ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
        least = 0.0
        for rank in range(pipeline.ranks):
            own = own_stages(pipeline, rank)
            busy = self.micro_batches * sum(times[n].forward + times[n].inputs + times[n].weights for n in own)
            before = times[: own[0]]
            after = sum(one.inputs + one.weights for one in before) if whole else 0.0
            least = max(least, busy + after + sum(one.forward for one in before))
        return least

    def every_stage(self) -> Sequence[_StageParts]:
        """F, I and W of each."""
        return [self._stage(stage) for stage in _cut(self.spec, self.layout.pp.stages)]

    def _stage(self, stage: Stage) -> _StageParts:
        """F, I and W of a stage."""
        alike = Counter(self._key(number) for number in stage.layers)
        layers = [_times(count, self._layer(key)) for key, count in alike.items()]
        if stage.last and not self.job.scores:
            layers.append(self._head())
        forward, inputs, weights = zip(*layers, strict=True)
        return _sum(forward), _sum(inputs), _sum(weights)

    def _key(self, number: int) -> tuple[int, bool]:
        """Layers of one key take equally long."""
        every = self.job.checkpointing
        return self.kinds[number], isinstance(every, int) and every > 0 and number % every == 0

    def _layer(self, key: tuple[int, bool]) -> _StageParts:
        if key not in self.known:
            self.known[key] = self._timed(self.blocks[key[0]], key[1])
        return self.known[key]

    def _timed(self, block: BlockSpec, checkpointed: bool) -> _StageParts:
        layout, assumed = self.layout, self.assumed
        spread = layout.tp if layout.sequence_parallel else 1
        size, ep = self.spec.hidden_size, layout.ep
        work = layer_work(block, size, self.tokens, self.job.sequence, spread=spread, ep=ep)
        products, passes, scores = self._products(work), self._passes(work), self._scores(work)
        adapters, sums = self._adapters(work)
        sent = self._sent(block, work)
        casts = self._casts(sum(one.rows * one.inputs + one.weights for one in work.products))
        dequantized = self._dequantized(work)
        forward: Parts = {"products": products + adapters, "attention": scores, "passes": passes, **sent}
        forward = _sum((forward, {"passes": casts + dequantized + sums}))
        forward = self._launched(forward, work.kernels)
        inputs: Parts = {
            "products": products + adapters,
            "attention": scores * assumed.attention_backward,
            "passes": passes * assumed.backward_passes
            + self._casts(sum(one.rows * one.outputs for one in work.products))
            + dequantized
            + sums,
            **sent,
        }
        again = self._again(forward, products, passes, checkpointed)
        weights: Parts = {"products": adapters if self.job.adapter else products}
        return forward, self._launched(_sum((inputs, {"again": again})), 2 * work.kernels), weights

    def _again(self, forward: Parts, products: float, passes: float, checkpointed: bool) -> float:
        if self.job.checkpointing == "selective":
            return passes + products * self.execution.again
        return _total(forward) if checkpointed else 0.0

    def _launched(self, parts: Parts, kernels: int) -> Parts:
        return _sum((parts, {"launches": max(kernels * self.assumed.launch - _total(parts), 0.0)}))

    def _products(self, work: LayerWork) -> float:
        fp8 = self.device.peak("float8") * self.assumed.products_fp8 if self.execution.fp8 else None
        return sum(self._product(one, fp8) for one in work.products)

    def _product(self, one: Product, speed: float | None = None) -> float:
        speed = speed or self.peak * self.assumed.products
        return max(one.flops / speed, one.num_bytes(self.itemsize) / self.memory)

    def _adapters(self, work: LayerWork) -> tuple[float, float]:
        """Both products of each adapter; and the sum with what the frozen matrix gave."""
        lora, seconds, sums = self.job.adapter, 0.0, 0.0
        if lora is None:
            return seconds, sums
        targets = lora.target_modules
        chosen = [
            one
            for one in work.products
            if (targets == "all-linear" and "router" not in one.name)
            or any(f".{name}." in f".{one.name}." for name in targets)
        ]
        for one in chosen:
            rank = lora.rank(one.name.removesuffix(".weight"))
            for inputs, outputs in ((one.inputs, rank), (rank, one.outputs)):
                seconds += self._product(Product("", one.rows, inputs, outputs, one.matrices))
            sums += self.assumed.residual_bytes * one.rows * one.outputs / self.memory
        return seconds, sums

    def _scores(self, work: LayerWork) -> float:
        return work.scores / (self.peak * self.assumed.attention)

    def _passes(self, work: LayerWork) -> float:
        assumed = self.assumed
        inner = assumed.gated_bytes if work.gated else assumed.bent_bytes
        moved = work.normed * assumed.norm_bytes + work.summed * assumed.residual_bytes
        moved += work.turned * assumed.rotary_bytes + work.bent * inner + work.moved * assumed.bent_bytes
        return moved * self.itemsize / 2 / self.memory

    def _casts(self, elements: float) -> float:
        return elements * self.assumed.cast_bytes / self.memory if self.execution.fp8 else 0.0

    def _dequantized(self, work: LayerWork) -> float:
        """Matrices of a few bits read, and written in the dtype that they are used in."""
        if self.job.quantization is None:
            return 0.0
        elements = sum(one.weights for one in work.products if "router" not in one.name)
        return (self.job.quantization.num_bytes(elements) + elements * self.itemsize) / self.memory

    def _sent(self, block: BlockSpec, work: LayerWork) -> Parts:
        """Collectives of a forward, which its backward has as well."""
        wires, layout, size = self.wires, self.layout, self.spec.hidden_size
        stream = self.tokens * size * self.itemsize
        tensor = wires.gather(wires.tensor, 4 * stream, 4)
        if self.execution.async_tp:
            tensor /= layout.tp  # the first piece has nothing to hide behind
        attention = block.attention
        width = attention.width if isinstance(attention, AttentionSpec) else attention.qk_head_dim
        keys = (attention.kv_heads if isinstance(attention, AttentionSpec) else attention.num_heads) * width
        queries = attention.num_heads * width
        if layout.cp_method == "ulysses":
            there = self.tokens * (2 * queries + 2 * keys) * self.itemsize
            context = wires.exchange(wires.context, there, 4)
        else:
            context = wires.gather(wires.context, layout.cp * self.tokens * 2 * keys * self.itemsize, 2)
        experts = 0.0
        if isinstance(block.feed_forward, MoESpec):
            rows = self.tokens * block.feed_forward.num_experts_per_tok * size * self.itemsize
            experts = wires.exchange(wires.experts, 2 * rows, 2)
        return {"tensor": tensor, "context": context, "experts": experts}

    def _head(self) -> _StageParts:
        """The output matrix and the loss: a third of its passes in the forward."""
        vocabulary, size = self.spec.vocab_size / self.layout.tp, self.spec.hidden_size
        seconds = self._product(Product("", self.tokens, size, round(vocabulary)))
        passes = self.assumed.loss_bytes * self.tokens * vocabulary / self.memory
        gathered = self.wires.gather(self.wires.tensor, self.tokens * size * self.itemsize, 1)
        forward = {"products": seconds, "passes": passes / 3, "tensor": gathered}
        inputs = {"products": seconds, "passes": passes * 2 / 3, "tensor": gathered}
        return forward, inputs, {} if self.job.adapter else {"products": seconds}

    def _others(self, forward: Parts, backward: Parts) -> Parts:
        """What other models do for this one, and answers that are drawn."""
        job, count = self.job, self.micro_batches
        readers = (job.kept_reference in ("model", "off")) + (job.reward_models if job.draws else 0)
        readers += 2 * (job.job == "kto")  # both models read answers to other prompts, for the divergence
        critic = job.job == "ppo" and job.value == "own"
        learning = (2 * _total(forward) + _total(backward)) if critic else 0.0
        seconds = count * (readers * _total(forward) + learning)
        return {"beside": seconds, "rollout": self._rollout() if job.draws else 0.0}

    def _rollout(self) -> float:
        """Of a step's answers: every token reads all weights of the rank once, and the keys and values so far."""
        job, spec, layout = self.job, self.spec, self.layout
        answers, at_once = job.micro_batch * self.micro_batches, job.answers_drawn
        weights = spec.num_active_parameters() * self.itemsize / (layout.tp * layout.pp.ranks)
        keys = at_once * spec.kv_bytes_per_token(job.dtype) / layout.tp * causal_context(job.sequence)
        products = 2 * at_once * spec.num_active_parameters() / layout.tp / layout.pp.ranks
        reading = max((weights + keys) / self.memory, products / (self.peak * self.assumed.products))
        sent = self.wires.reduce(self.wires.tensor, at_once * spec.hidden_size * self.itemsize) * 2 * spec.num_layers
        steps = answers / at_once * job.sequence * self.assumed.answer
        return steps * (reading + sent) * layout.pp.ranks


@lru_cache(maxsize=256)
def _cut(spec: DecoderSpec, stages: int) -> tuple[Stage, ...]:
    return stages_of(spec, stages)


@lru_cache(maxsize=256)
def _kinds(spec: DecoderSpec, tp: int) -> tuple[tuple[BlockSpec, ...], tuple[int, ...]]:
    """The different layers that one of `tp` ranks has a part of, and which of them each layer is."""
    blocks = local_spec(spec, tp).blocks
    kinds = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
    return tuple(kinds), tuple(kinds[block] for block in blocks)


def _times(count: int, parts: _StageParts) -> _StageParts:
    forward, inputs, weights = ({name: count * seconds for name, seconds in one.items()} for one in parts)
    return forward, inputs, weights


def _sum(parts: Iterable[Parts]) -> Parts:
    sums: dict[str, float] = {}
    for one in parts:
        for name, seconds in one.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return sums


def _total(parts: Parts) -> float:
    return sum(parts.values())
