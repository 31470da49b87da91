"""Bytes that a job needs at least, in a moment: for a search that plans memory only where it could do. No torch.

Of a pipeline it is the first rank that is looked at, which holds most micro-batches. Its tensors are counted as if all
were cut evenly, and of the activations what no attention and no feed-forward can do without (`rank_plan` has all). Of
an adapter only the frozen weights are counted.
"""

from functools import lru_cache
from math import prod

from intaglio.planning.jobs import JobSpec
from intaglio.planning.stages import own_stages, stages_of
from intaglio.planning.work import matrices_of
from intaglio.specs import AttentionSpec, BlockSpec, DecoderSpec, FeedForwardSpec, dtype_bytes
from intaglio.specs.parallel import ParallelSpec, PipelineSpec

__all__ = ["in_flight", "least_bytes"]

_FLOAT = 4


def least_bytes(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec) -> int:
    """Never more than `plan_job` says of the fullest rank."""
    layers = _layers(spec, layout.pp.ranks, layout.pp.chunks_a_rank, layout.pp.schedule)
    states = sum(_states(spec, job, layout, number) for stage in layers for number in stage)
    live = in_flight(layout.pp, layout.pp.micro_batches or job.accumulation)
    if layout.pp.ranks == 1:
        live = 1
    return int(states + live * min(_kept(spec, job, layout, stage) for stage in layers))


@lru_cache(maxsize=512)
def _layers(spec: DecoderSpec, ranks: int, chunks: int, schedule: str) -> tuple[range, ...]:
    """Of the first rank's stages."""
    pipeline = PipelineSpec(ranks=ranks, chunks=chunks, schedule=schedule) if ranks > 1 else PipelineSpec()
    every = stages_of(spec, pipeline.stages)
    return tuple(every[number].layers for number in own_stages(pipeline, 0))


def in_flight(pipeline: PipelineSpec, micro_batches: int) -> int:
    """Pairs of a micro-batch and a stage that the first rank holds at once, at least."""
    ranks, chunks, every = pipeline.ranks, pipeline.chunks_a_rank, micro_batches * pipeline.chunks_a_rank
    rounds = (chunks - 1) * (micro_batches // max(1, micro_batches // ranks))
    least = {
        "1f1b": ranks,
        "interleaved_1f1b": rounds + 2 * (ranks - 1) + 1,
        "interleaved_zero_bubble": rounds + ranks,
        "zbv_zero_bubble": min(micro_batches, 2 * ranks - 1),
        "dual_pipe_v": 2 * ranks,
    }
    return min(every, least.get(pipeline.schedule, every))


def _states(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, number: int) -> float:
    """Of one layer: what stays, and what is whole in the backward."""
    experts, rest = _elements(spec.blocks[number], spec.hidden_size)
    kept = (rest / layout.shards + experts / max(layout.shards, layout.ep)) / layout.tp
    itemsize = dtype_bytes(job.dtype)
    if job.adapter is not None:
        return 0.0 if layout.offload else kept * (itemsize if job.quantization is None else 0.5)
    moments = {"adamw": 2, "muon": 1, "paged_adamw": 0}[job.optimizer]
    computed = itemsize if not layout.zero and itemsize < _FLOAT else 0
    stays = 0.0 if layout.offload else kept * (_FLOAT * (2 + moments) + computed)
    whole = (rest + experts / layout.ep) / layout.tp
    count = layout.pp.micro_batches or job.accumulation
    return stays + whole * itemsize * (layout.zero in (1, 2)) + whole * _FLOAT * (layout.zero == 1 and count > 1)


@lru_cache(maxsize=256)
def _elements(block: BlockSpec, size: int) -> tuple[int, int]:
    """Of a layer's matrices: of experts, and of the rest."""
    sizes = {name: prod(shape) for name, shape in matrices_of(block, size)}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return experts, sum(sizes.values()) - experts


def _kept(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, layers: range) -> float:
    """Of one micro-batch in a stage."""
    if job.adapter is not None:
        return 0.0
    tokens = job.tokens // layout.cp * dtype_bytes(job.dtype)
    return tokens * sum(_features(spec, job, layout, number) for number in layers)


def _features(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, number: int) -> float:
    """Of a token in a layer: its input; queries, keys, values and what attention makes of them; both halves of a gate.

    With nothing checkpointed also the second residual, what goes into the matrices, and what goes into the last one.
    """
    block, every = spec.blocks[number], job.checkpointing
    between = spec.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    whole = every == 0 or (every != "selective" and number % int(every) > 0)
    if not whole and every != "selective":
        return between
    attention, feed_forward, inside = block.attention, block.feed_forward, 0
    if isinstance(attention, AttentionSpec):
        inside += 2 * (attention.num_heads + attention.kv_heads) * attention.width
    if isinstance(feed_forward, FeedForwardSpec) and feed_forward.gated:
        inside += (3 if whole else 2) * feed_forward.intermediate_size
    return between * (4 if whole and block.placement == "pre" else 1) + inside / layout.tp
