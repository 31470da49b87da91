"""The formulas that papers give, beside ours: what they say of the same job, and where and why they differ. No torch.

Legend: P parameters of a model part (N / (tp pp)), d ranks that share shards, s tokens, b sequences, h features, a
heads, t ranks of tensor parallelism, L layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from intaglio.planning.job_plan import JobPlan
from intaglio.specs import AttentionSpec, DecoderSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["Comparison", "megatron_layer_bytes", "side_by_side", "zero_bytes"]


@dataclass(frozen=True)
class Comparison:
    """One formula.

    Attributes:
        name: whose it is, and of what.
        formula: as it is written.
        theirs: bytes by it.
        ours: bytes of the same thing in the plan.
        why: what the difference is made of.
    """

    name: str
    formula: str
    theirs: float
    ours: int
    why: str


def zero_bytes(parameters: float, ranks: int, stage: int) -> float:
    """Model states of mixed-precision Adam, 2 + 2 + 12 bytes a parameter, under a stage of ZeRO.

    (Rajbhandari et al. 2020, arXiv 1910.02054, section 5 and figure 1.)

    Args:
        parameters: of the model part that a rank computes with.
        ranks: that share.
        stage: 0 to 3.
    """
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    return parameters * (16 - shared + shared / ranks)


def megatron_layer_bytes(
    tokens: int,
    sequence: int,
    hidden: int,
    heads: int,
    tp: int = 1,
    *,
    sequence_parallel: bool = False,
    again: str = "",
) -> float:
    """Activations of a layer of GPT in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198, table 2).

    Args:
        tokens: s b.
        sequence: s.
        hidden: h.
        heads: a.
        tp: t.
        sequence_parallel: whether what lies between the matrices is shared out.
        again: `selective` makes scores again, `full` all but the layer's input; else nothing.
    """
    scores = 0 if again == "selective" else 5 * heads * sequence / hidden
    if again == "full":
        return tokens * hidden * 2
    if sequence_parallel:
        return tokens * hidden * (34 + scores) / tp
    return tokens * hidden * (10 + (24 + scores) / tp)


def side_by_side(plan: JobPlan) -> list[Comparison]:
    """Both for the rank that needs most."""
    return [*_states(plan), *_activations(plan)]


def _states(plan: JobPlan) -> Iterator[Comparison]:
    if plan.job.adapter is not None:
        return
    layout, worst = plan.layout, plan.worst
    part = plan.spec.num_parameters() / (layout.tp * layout.pp.ranks)
    shared = {0: "16 P", 1: "4 P + 12 P / d", 2: "2 P + 14 P / d", 3: "16 P / d"}[layout.zero]
    ours = worst.states.total + _whole(plan)
    yield Comparison(
        "ZeRO, model states", shared, zero_bytes(part, layout.shards, layout.zero), ours, _why_states(plan)
    )


def _whole(plan: JobPlan) -> int:
    """What is whole while the backward runs, of parameters and gradients."""
    at = next(moment.parts for moment in plan.worst.moments if moment.name == "backward")
    return sum(at.get(name, 0) for name in ("gathered parameters", "whole gradients", "sent gradients"))


def _why_states(plan: JobPlan) -> str:
    layout, uneven = plan.layout, ""
    if layout.pp.ranks > 1:
        uneven = "; this rank's stages are not an even share of the layers"
    if plan.job.dtype == "float32":
        return "in fp32 weights are their own masters: 16 bytes a parameter, as 4 + 4 + 8" + uneven
    if not layout.zero:
        return "gradients are kept in fp32, 4 bytes where the paper has 2: 18 bytes a parameter" + uneven
    what = {
        1: "whole: bf16 parameters, and fp32 gradients while micro-batches are added up (the paper: 2 + 2 bytes)",
        2: "whole: bf16 parameters; gradients are shared out in fp32 (the paper: bf16)",
        3: "a layer and the next are gathered, which the paper's formula leaves out",
    }[layout.zero]
    return f"shards are fp32 parameters, gradients and two moments, 16 bytes a parameter; {what}{uneven}"


def _activations(plan: JobPlan) -> Iterator[Comparison]:
    """Of one micro-batch in all layers of the rank."""
    spec, job, layout = plan.spec, plan.job, plan.layout
    attention = spec.blocks[0].attention
    if not isinstance(attention, AttentionSpec) or layout.pp.ranks > 1:
        return
    again = {1: "full", "selective": "selective"}.get(job.checkpointing, "")
    split = layout.tp > 1 and layout.sequence_parallel
    of_layer = megatron_layer_bytes(
        job.tokens // layout.cp, job.sequence, spec.hidden_size, attention.num_heads, layout.tp,
        sequence_parallel=split, again=again,
    )  # fmt: skip
    moment = next(one.parts for one in plan.worst.moments if one.name == "loss")
    ours = sum(size for name, size in moment.items() if name.startswith("activations"))
    yield Comparison(
        "Megatron, activations", _formula(layout, again), of_layer * spec.num_layers, ours, _why_kept(spec, again)
    )


def _formula(layout: ParallelSpec, again: str) -> str:
    if again == "full":
        return "2 s b h L"
    scores = "" if again == "selective" else " + 5 a s / h"
    if layout.tp == 1:
        return f"s b h (34{scores}) L"
    return f"s b h (34{scores}) / t L" if layout.sequence_parallel else f"s b h (10 + (24{scores}) / t) L"


def _why_kept(spec: DecoderSpec, again: str) -> str:
    if again == "full":
        return "the input of each layer, and what embeddings and the last norm keep"
    if again == "selective":
        return (
            "ours keeps products and attention and makes norms and activations again; theirs makes scores alone again"
        )
    gated = any(getattr(block.feed_forward, "gated", False) for block in spec.blocks)
    return (
        "fused attention keeps no scores, there is no dropout, and keys and values have their own number of heads"
        + ("; a gated feed-forward keeps four features of its own width in place of 8 h" if gated else "")
    )
