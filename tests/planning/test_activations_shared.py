"""Counted activations of one rank among several, held against what autograd is seen to keep there: equal integers.

A rank is this process on a fake group (see `fake_ranks`): the engine's own layout of the model, real tensors.
"""

from typing import Any

import pytest
import torch

from fake_ranks import fake_rank
from intaglio.adapters.attach import attach
from intaglio.models.decoder import Decoder
from intaglio.parallel import context, experts, tensor
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.vocabulary import output_matrix
from intaglio.parts.context import Causal, Packed
from intaglio.planning.activations import activations
from intaglio.planning.adapters import ranks_of
from intaglio.planning.layouts import local_spec
from intaglio.planning.losses import language_model_loss, log_prob_loss
from intaglio.planning.tape import Shared
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.token_logprobs import chunked_log_probs
from measured_memory import kept, saved
from tiny_specs import LATENT, LAYER, RMS, ZOO, attention, block, decoder, with_attention, with_moe

MIXTURES = {
    "experts": with_moe(),
    "experts, latent": ZOO["one dense, then experts, latent"],
    "narrow experts": with_moe(expert={"intermediate_size": 12, "activation": "gelu"}),
    "experts in groups": ZOO["experts in groups"],
}

SPECS = {
    "LLaMA-like": decoder(block(attention=attention(num_kv_heads=4), repeat=2), final_norm=LAYER),
    "GPT-like": ZOO["learned positions, tied"],
    "scaled embeddings": ZOO["tied"],
    **{f"{placement}": ZOO[f"{placement} layer_norm"] for placement in ("post", "residual", "sandwich", "parallel")},
    "offset norms": decoder(block(norm={**RMS, "unit_offset": True}, repeat=2)),
    "window": with_attention(window=4),
    "soft-capped": with_attention(softcap=20.0, window=5),
    "norms of heads": with_attention(qk_norm={"norm": RMS}),
    "norms of projections, no rotation": with_attention(qk_norm={"norm": LAYER, "over": "projection"}, rope=None),
    "biases": with_attention(bias={"q": True, "o": True}),
    "latent": ZOO["latent, compressed queries"],
    "latent, values as wide as keys": decoder(block(attention={**LATENT, "v_head_dim": 12})),
    **MIXTURES,
}

TENSOR = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 4},
    {"tp": 4, "sequence_parallel": False},
]
CONTEXT: list[dict[str, Any]] = [
    {"cp": 2},
    {"cp": 4},
    {"cp": 2, "cp_method": "all_gather"},
    {"cp": 4, "cp_method": "all_gather"},
    {"cp": 2, "tp": 2},
    {"cp": 2, "tp": 2, "cp_method": "all_gather", "sequence_parallel": False},
]
EXPERTS = [
    {"dp": 2, "ep": 2},
    {"dp": 4, "ep": 4},
    {"dp": 2, "ep": 2, "tp": 2},
    {"dp": 2, "ep": 2, "cp": 2},
]
LORA = LoRASpec(r=3, lora_alpha=7)


def shared_by(layout: ParallelSpec, rank: int) -> Shared:
    """How this rank shares, by hand: tp are neighbours, then cp."""
    return Shared(
        tensor=layout.tp,
        sequence=layout.tp if layout.sequence_parallel else 1,
        context=layout.cp,
        gathers=layout.cp_method == "all_gather",
        experts=layout.ep,
        tensor_place=rank % layout.tp,
        context_place=rank // layout.tp % layout.cp,
    )


def both(spec: DecoderSpec, layout: ParallelSpec, mesh: Any, rank: int, number: int) -> tuple[int, int]:
    """Seen and counted; what else there is to choose is chosen by a number."""
    tokens, documents = (12, [5, 6, 1]) if number % 2 else (13, [5, 7, 1])  # ranks divide the one, not the other
    dtype, lora = (torch.float32, torch.bfloat16)[number // 2 % 2], LORA if number % 3 == 0 else None
    packed = number % 5 > 0
    model = Decoder(spec).to(dtype)
    if lora:
        attach(model, lora)
    tensor.parallelize(model, mesh, layout)
    if layout.ep > 1:
        experts.parallelize(model, experts.expert_mesh(mesh, layout), layout)
    context.parallelize(model, mesh, layout)
    positions = [torch.arange(n) for n in (documents if packed else [tokens])]
    found = kept(model, Packed(documents) if packed else Causal(), torch.cat(positions)[None])
    ranks = None if lora is None else ranks_of(spec, lora)
    counted = activations(
        local_spec(spec, layout.tp), tokens, dtype.itemsize, documents if packed else None, ranks=ranks,
        shared=shared_by(layout, rank),
    )  # fmt: skip
    return found, counted.kept


@pytest.mark.parametrize("last", [False, True], ids=["first rank", "last rank"])
@pytest.mark.parametrize("fields", [*TENSOR, *CONTEXT, *EXPERTS], ids=str)
def test_a_rank_keeps_what_is_counted(fields: dict[str, Any], last: bool) -> None:
    layout = ParallelSpec(**fields)
    rank = layout.world - 1 if last else 0
    with fake_rank(rank, layout.world):
        mesh = build_mesh(layout, "cpu")
        specs = MIXTURES if layout.ep > 1 else SPECS
        pairs = {
            name: both(spec, layout, mesh, rank, number + last) for number, (name, spec) in enumerate(specs.items())
        }
    assert {name: found for name, (found, _) in pairs.items()} == {name: count for name, (_, count) in pairs.items()}


def test_collected_keys_are_kept_by_all_and_have_masks() -> None:
    spec, dtype = with_attention(num_kv_heads=2), 4
    alone, first, last = (
        activations(spec, 16, dtype, [16], shared=shared).by_kind["attention"]
        for shared in (Shared(), *(Shared(context=2, gathers=True, context_place=place) for place in (0, 1)))
    )
    assert last - first == 8 * 8 * dtype  # the later queries have eight keys more to look at
    others, masks = 2 * 8 * 16 * dtype, 8 * 8 * dtype  # eight more keys and values, of two heads
    assert first == alone // 2 + others + masks


LOSSES = [
    {},
    {"tp": 2},
    {"tp": 2, "loss_parallel": False},
    {"tp": 4},
    {"tp": 4, "loss_parallel": False},
    {"cp": 2},
    {"cp": 2, "tp": 2},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("fields", LOSSES, ids=str)
def test_a_loss_of_a_shared_vocabulary_keeps_what_is_counted(
    fields: dict[str, Any], trained: bool, dtype: torch.dtype
) -> None:
    layout, spec, tokens, chunk = ParallelSpec(**fields), decoder(), 26, 8
    with fake_rank(0, layout.world):
        mesh, model = build_mesh(layout, "cpu"), Decoder(spec).to(dtype)
        model.lm_head.requires_grad_(trained)
        tensor.parallelize(model, mesh, layout)
        context.parallelize(model, mesh, layout)
        weight, vocabulary = output_matrix(model.lm_head)
        hidden = torch.randn(tokens, spec.hidden_size, dtype=dtype, requires_grad=True)
        labels = torch.randint(spec.vocab_size, (tokens,))
        losses = (chunked_cross_entropy, language_model_loss), (chunked_log_probs, log_prob_loss)
        for loss, count in losses:

            def work(loss: Any = loss) -> torch.Tensor:
                placed = labels.ne(-100).nonzero()[:, 0]
                found: torch.Tensor = loss(hidden[placed], weight, labels[placed], chunk=chunk, vocabulary=vocabulary)
                return found

            counted = count(spec, tokens, dtype.itemsize, chunk, trained=trained, layout=layout)
            assert saved(work, model) == counted.kept, loss
