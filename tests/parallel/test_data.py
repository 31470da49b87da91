"""Data parallelism and ZeRO: parity with one process, what is sent, what stays where. One spawn of four ranks."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from intaglio.adapters.attach import attach
from intaglio.adapters.quantize import quantize
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.models.recurrent import RecurrentModel
from intaglio.parallel.data import MicroBatches, shard, sum_gradients
from intaglio.parallel.gradients import clip_gradients, gradient_norm
from intaglio.parallel.measure import StateBytes, state_bytes
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.whole import whole
from intaglio.planning.adapters import ranks_of, trained_shapes
from intaglio.planning.shards import Rank
from intaglio.planning.states import states_of, tensors_of
from intaglio.specs import DecoderSpec, RecurrentSpec, validate_model
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.stepping.master import MasterWeights
from ranks import run_ranks
from tiny_specs import MOE, block, decoder

WORLD, STEPS, TURNS = 4, 3, 4  # ranks, optimizer steps, micro-batches of a rank in each
PLAIN = decoder(block(repeat=3))
TIED = decoder(block(repeat=2, norm={"kind": "layer_norm"}), tie_embeddings=True, positions={"kind": "learned"})
SPARSE = decoder(block(feed_forward={**MOE, "num_experts_per_tok": 1, "load_balancing_coef": 0.0}))
LAYOUTS = {
    "zero 0": (PLAIN, {}),
    "zero 1": (PLAIN, {"zero": 1}),
    "zero 2": (PLAIN, {"zero": 2}),
    "zero 3": (PLAIN, {"zero": 3}),
    "hsdp": (PLAIN, {"zero": 2, "hsdp": 2}),
    "tied, zero 1, hsdp": (TIED, {"zero": 1, "hsdp": 2}),
    "tied, zero 3, offload": (TIED, {"zero": 3, "offload": True}),
    "experts, zero 0": (SPARSE, {}),
    "experts, zero 3": (SPARSE, {"zero": 3}),
}


ODD = decoder(
    block(repeat=2, attention={"num_heads": 3, "rope": {}}, norm={"kind": "layer_norm"}), vocab_size=61, hidden_size=18
)
LORA = LoRASpec(r=3, target_modules="all-linear")
HELD: dict[str, tuple[dict[str, Any], torch.dtype, LoRASpec | None, QuantizationSpec | None]] = {
    "zero 0": ({"dp": 4}, torch.bfloat16, None, None),
    "zero 2": ({"dp": 4, "zero": 2}, torch.bfloat16, None, None),
    "zero 3, hsdp": ({"dp": 4, "zero": 3, "hsdp": 2}, torch.float32, None, None),
    "lora, zero 0": ({"dp": 4}, torch.bfloat16, LORA, None),
    "lora, zero 2": ({"dp": 4, "zero": 2}, torch.bfloat16, LORA, None),
    "lora, zero 3": ({"dp": 4, "zero": 3}, torch.bfloat16, LORA, None),
    "qlora, zero 1": ({"dp": 4, "zero": 1}, torch.bfloat16, LORA, QuantizationSpec()),
    "qlora, zero 3": ({"dp": 4, "zero": 3}, torch.bfloat16, LORA, QuantizationSpec()),
}


class Counted(TorchDispatchMode):
    """Collectives by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.calls[func._schema.name.removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


def _model(spec: DecoderSpec, dtype: torch.dtype = torch.float64) -> Decoder:
    model = Decoder(spec)
    init_weights(model, 3)
    return model.to(dtype)


def _batches(step: int) -> list[Tensor]:
    """All ranks' micro-batches of a step, ragged."""
    dice = torch.Generator().manual_seed(step)
    return [torch.randint(64, (1, 3 + (5 * step + turn) % 7), generator=dice) for turn in range(TURNS * WORLD)]


def _loss(model: Decoder, ids: Tensor) -> Tensor:
    hidden = model.hidden_states(ids)[0, :-1]
    return chunked_cross_entropy(hidden, model.lm_head.weight, ids[0, 1:], chunk=3)


def _targets(step: int) -> int:
    return sum(ids.shape[1] - 1 for ids in _batches(step))


@cache
def _alone(spec: DecoderSpec) -> tuple[dict[str, Tensor], list[float]]:
    model = _model(spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for ids in _batches(step):
            (_loss(model, ids) / _targets(step)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}, norms


def _together(spec: DecoderSpec, layout: ParallelSpec) -> tuple[dict[str, Tensor], list[float], Counter[str], Any]:
    model, mesh = _model(spec), build_mesh(layout, "cpu")
    shard(model, mesh, layout, torch.float64)
    masters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-2, fused=True)
    micro, norms, counted = MicroBatches(model, layout), [], Counted()
    for step in range(STEPS):
        optimizer.zero_grad()
        counted = Counted()
        mine = _batches(step)[dist.get_rank() :: WORLD]
        with counted:
            for turn, ids in enumerate(mine):
                micro.begin(turn == len(mine) - 1)
                (_loss(model, ids) / _targets(step)).backward()
            if not layout.zero:
                sum_gradients(masters.values(), mesh)
        norm = gradient_norm(masters.values())
        clip_gradients(masters.values(), 0.5, norm)
        norms.append(float(norm))
        optimizer.step()
    held = state_bytes(model, list(masters.values()), [optimizer])
    _check_whole(model, masters)
    return {name: _full(p) for name, p in masters.items()}, norms, counted.calls, held


def _plainly(zero: int) -> Counter[str]:
    """What one step sends where the five groups are FSDP2's own, with its settings for a stage and no more."""
    model: Any = _model(PLAIN)
    for group in (model.embed_tokens, *model.layers, [model.norm, model.lm_head], model):
        fully_shard(group, reshard_after_forward=zero == 3)
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return _counted(model, modules, zero, lambda ids: model(ids).logsumexp(dim=-1).sum())


def _as_usual(*, end: bool, embeddings: bool) -> Counter[str]:
    """Ours at zero 3, without what spares the end a gather, and the embedding one."""
    model: Any = _model(PLAIN)
    layout = ParallelSpec(dp=WORLD, zero=3)
    shard(model, build_mesh(layout, "cpu"), layout, torch.float64)
    if end:
        model.norm.set_reshard_after_forward(True)
    if embeddings:
        model.embed_tokens.set_unshard_in_backward(True)
    return _counted(model, [], 3, lambda ids: model.hidden_states(ids).sum())  # an end that is given back is not read


def _counted(model: nn.Module, modules: list[FSDPModule], zero: int, loss: Callable[[Tensor], Tensor]) -> Counter[str]:
    counted = Counted()
    with counted:
        for turn, ids in enumerate(_batches(0)[dist.get_rank() :: WORLD]):
            for module in modules if zero < 3 else ():
                if zero == 1:
                    module.set_requires_gradient_sync(turn == TURNS - 1, recurse=False)
                module.set_reshard_after_backward(turn == TURNS - 1, recurse=False)
            loss(ids).backward()
    return counted.calls


def _full(p: Tensor) -> Tensor:
    return p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()


def _check_whole(model: Decoder, masters: Mapping[str, Tensor]) -> None:
    """Ranks read at their own pace what is whole, and nothing is left of it."""
    with whole(model) as plain, torch.no_grad():
        for _ in range(dist.get_rank()):
            plain(torch.tensor([[1, 2, 3]]))
        copied = {name: p.clone() for name, p in plain.named_parameters()}
    assert all(isinstance(p, DTensor) == isinstance(masters[name], DTensor) for name, p in model.named_parameters())
    assert copied.keys() == masters.keys()
    for name, p in copied.items():
        torch.testing.assert_close(p, _full(masters[name]), rtol=0, atol=0)


def _low_precision() -> tuple[Tensor, Tensor]:
    """One step's gradients in bf16, of one process with masters and of ranks with shards: largest, largest apart."""
    alone = _model(PLAIN, torch.float32)
    masters = MasterWeights(alone, torch.bfloat16)
    for ids in _batches(0):
        _loss(alone, ids).backward()
    layout = ParallelSpec(dp=WORLD, zero=2)
    model = _model(PLAIN, torch.float32)
    shard(model, build_mesh(layout, "cpu"), layout, torch.bfloat16)
    shards, micro = dict(model.named_parameters()), MicroBatches(model, layout)
    for turn, ids in enumerate(_batches(0)[dist.get_rank() :: WORLD]):
        micro.begin(turn == TURNS - 1)
        _loss(model, ids).backward()
    assert {p.grad.dtype for p in shards.values() if p.grad is not None} == {torch.float32}
    apart = [(_full(p.grad) - masters.masters[name].grad).abs().max() for name, p in shards.items()]  # type: ignore
    return torch.stack([m.grad.abs().max() for m in masters.masters.values()]).max(), torch.stack(apart).max()  # type: ignore


def _apart(spec: DecoderSpec, weights: dict[str, Tensor], norms: list[float]) -> tuple[float, float]:
    """The largest differences from one process, of parameters and of norms."""
    expected, expected_norms = _alone(spec)
    assert weights.keys() == expected.keys()
    of_weights = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
    return of_weights, max(abs(a - b) for a, b in zip(norms, expected_norms, strict=True))


def _all() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (spec, settings) in LAYOUTS.items():
        weights, norms, calls, held = _together(spec, ParallelSpec(dp=WORLD, **settings))
        found[name] = (_apart(spec, weights, norms) if dist.get_rank() == 0 else (0.0, 0.0), calls, held)
    found["bf16"] = _low_precision()
    found["held"] = {name: _held(name) for name in HELD}
    found["unreached"] = _unreached()
    found["plain"] = [_plainly(zero) for zero in (1, 2, 3)]
    found["as usual"] = [_as_usual(end=end, embeddings=first) for end in (False, True) for first in (False, True)]
    return found


def _held(name: str) -> StateBytes:
    """What a rank holds after a step."""
    settings, dtype, lora, quantization = HELD[name]
    layout, model = ParallelSpec(**settings), _model(ODD, torch.float32)
    if lora is not None:
        model.to(dtype)
        if quantization is not None:
            quantize(model, quantization)
        attach(model, lora)
    computed = dtype if lora is None else torch.float32
    shard(model, build_mesh(layout, "cpu"), layout, computed)
    masters = MasterWeights(model, torch.float32 if layout.zero else computed)
    optimizer = torch.optim.AdamW(masters.parameters(), fused=True)
    _loss(model, torch.arange(5)[None]).backward()
    optimizer.step()
    return state_bytes(model, masters.parameters(), [optimizer])


def _unreached() -> list[Tensor]:
    """Sums of gradients of which some ranks have none."""
    mesh, parameters = build_mesh(ParallelSpec(dp=WORLD), "cpu"), [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    parameters[dist.get_rank() % 2].sum().backward()
    sum_gradients(parameters, mesh)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@pytest.fixture(scope="module")
def ran() -> list[dict[str, Any]]:
    return run_ranks(WORLD, _all)


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_steps_equal_those_of_one_process(ran: list[dict[str, Any]], name: str) -> None:
    of_weights, of_norms = ran[0][name][0]
    assert of_weights < 1e-9
    assert of_norms < 1e-9


@pytest.mark.parametrize("name", HELD)
def test_what_a_rank_holds_is_what_is_planned_to_the_byte(ran: list[dict[str, Any]], name: str) -> None:
    settings, dtype, lora, quantization = HELD[name]
    layout = ParallelSpec(**settings)
    trained = None if lora is None else trained_shapes(ODD, lora, ranks_of(ODD, lora))
    for number, rank in enumerate(ran):
        place = Rank(shard=number % layout.shards)
        tensors = tensors_of(ODD, layout, place, trained=trained)
        planned = states_of(tensors, dtype.itemsize, adapted=lora is not None, quantization=quantization)
        weights = planned.weights + planned.adapters
        expected = StateBytes(weights, planned.master_weights, planned.gradients, planned.optimizer_states)
        assert rank["held"][name] == expected


def test_ranks_that_do_not_reach_a_parameter_take_part_with_zeros(ran: list[dict[str, Any]]) -> None:
    for rank in ran:
        assert [gradient.tolist() for gradient in rank["unreached"]] == [[2.0] * 3] * 2


GATHER, REDUCE, SUM = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero 0", {SUM: 1}),
        ("zero 1", {GATHER: 5, REDUCE: 5}),
        ("zero 2", {GATHER: 5, REDUCE: 5 * TURNS}),
        # every layer for forward and backward; the embedding for the forward, the end for both at once
        ("zero 3", {GATHER: (2 * 3 + 2) * TURNS, REDUCE: 5 * TURNS}),
        ("hsdp", {GATHER: 5, REDUCE: 5 * TURNS, SUM: 5 * TURNS}),
    ],
)
def test_what_is_sent_in_a_step(ran: list[dict[str, Any]], name: str, expected: dict[str, int]) -> None:
    for rank in ran:
        assert dict(rank[name][1]) == expected


def test_what_is_sent_is_what_fsdp2_sends_but_for_two_things(ran: list[dict[str, Any]]) -> None:
    """Five groups, four micro-batches: 5 and 5, 5 and 20, 40 and 20, as it is; at zero 3 the end stays between its
    forward and its backward, and the embedding is not gathered for its backward, which spares a gather each."""
    for rank in ran:
        assert [dict(calls) for calls in rank["plain"]] == [
            {GATHER: 5, REDUCE: 5},
            {GATHER: 5, REDUCE: 20},
            {GATHER: 40, REDUCE: 20},
        ]
        assert [dict(calls) for calls in rank["as usual"]] == [
            {GATHER: 32, REDUCE: 20},
            {GATHER: 36, REDUCE: 20},
            {GATHER: 36, REDUCE: 20},
            {GATHER: 40, REDUCE: 20},
        ]


def _sized(spec: DecoderSpec) -> int:
    return sum(p.numel() for p in Decoder(spec).parameters())


@pytest.mark.parametrize(
    ("name", "ranks"), [("zero 0", 1), ("zero 1", 4), ("zero 2", 4), ("zero 3", 4), ("hsdp", 2), ("experts, zero 3", 4)]
)
def test_a_rank_holds_its_share_and_no_more(ran: list[dict[str, Any]], name: str, ranks: int) -> None:
    spec, tensors = LAYOUTS[name][0], len(list(Decoder(LAYOUTS[name][0]).parameters()))
    share = _sized(spec) * 8 // ranks
    for rank in ran:
        assert rank[name][2] == StateBytes(share, 0, share, 2 * share + 4 * tensors)


def test_gradients_in_less_precision_are_summed_in_fp32(ran: list[dict[str, Any]]) -> None:
    for rank in ran:
        largest, apart = rank["bf16"]
        assert apart <= 1e-5 * largest


def test_what_is_no_decoder_is_for_zero_0() -> None:
    spec = validate_model(
        {"kind": "recurrent", "vocab_size": 8, "embedding_size": 4, "hidden_size": 4, "cell": {"kind": "gru"}}, "test"
    )
    assert isinstance(spec, RecurrentSpec)
    refuse: Callable[..., None] = shard
    with pytest.raises(UserError, match=r"^parallel: only decoders are shared out, and this is a RecurrentModel"):
        refuse(RecurrentModel(spec), None, ParallelSpec(dp=2, zero=2), torch.float32)
