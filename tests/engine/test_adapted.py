"""Several adapters in one engine: each text is what the merged model alone says, whoever it is batched with."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from intaglio import native
from intaglio.adapters.attach import attach
from intaglio.adapters.merge import merge
from intaglio.adapters.peft_files import save_adapter
from intaglio.adapters.served import read_updates
from intaglio.engine.adapted import Adapters
from intaglio.engine.engine import Engine, EngineConfig, Output
from intaglio.engine.packed import pack
from intaglio.engine.quantized import BITS, Weights, quantize
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.parts.updates import AdapterUpdates, Affine
from intaglio.specs.adapter import LoRASpec
from native_build import native_file, with_native
from tiny_specs import ZOO, attention, block, decoder
from toy_llms import random_model, toy_tokenizer

__all__ = ["native_file", "with_native"]  # fixtures

TOKENIZER = toy_tokenizer()
SPEC = decoder(block(repeat=2, attention=attention(num_kv_heads=2)), max_position_embeddings=64)
SHORT = {"r": 4, "lora_alpha": 12, "target_modules": ("q_proj", "v_proj", "down_proj")}
WIDE = {
    "r": 2,
    "lora_alpha": 2,
    "use_rslora": True,
    "target_modules": ("q_proj", "k_proj", "o_proj", "gate_proj", "lm_head"),
}
SETTINGS = {"short": SHORT, "wide": WIDE}
PROMPTS = [[7, 3, 11, 5, 9], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49], [5], [9, 9, 30, 31, 12, 13]]


def adapted(name: str, seed: int = 0, weights: Weights | None = None) -> Decoder:
    """The model with a moved adapter on, its matrices being what so many bits stand for."""
    model = based(weights)
    attach(model, LoRASpec(**SETTINGS[name]), seed=seed)
    dice = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.15 * torch.randn(parameter.shape, generator=dice))
    return model


@cache
def merged(name: str | None, seed: int = 0, weights: Weights | None = None) -> Decoder:
    if name is None:
        return based(weights)
    model = adapted(name, seed, weights)
    merge(model)
    return model


@torch.no_grad()
def based(weights: Weights | None) -> Decoder:
    model = random_model(SPEC)
    for path, module in model.named_modules():
        if weights and isinstance(module, torch.nn.Linear):
            module.weight.copy_(quantize(module.weight, 8 if path == "lm_head" else BITS[weights]).weight())
    return model


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], AdapterUpdates]:
    """By name and seed."""
    folder, found = tmp_path_factory.mktemp("adapters"), {}
    for name, seed in (("short", 0), ("wide", 0), ("short", 5)):
        save_adapter(adapted(name, seed), folder / f"{name}{seed}")
        found[name, seed] = read_updates(folder / f"{name}{seed}", merged(None), folder)
    return found


Updates = Mapping[tuple[str, int], AdapterUpdates]


def engine_of(updates: Updates, model: Decoder | None = None, **config: Any) -> Engine:
    """An engine with both adapters."""
    model = random_model(SPEC) if model is None else model
    engine = Engine(model, TOKENIZER, EngineConfig(**{"num_blocks": 64, "block_size": 4, **config}))
    for name in SETTINGS:
        engine.load_adapter(name, updates[name, 0])
    return engine


def greedy(count: int = 6, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "ignore_eos": True, "logprobs": 0, **fields})


def drain(engine: Engine) -> list[list[Output]]:
    """By request, in the order in which the first outputs came; all choices one behind the other."""
    rows: dict[str, list[Output]] = {}
    for _ in range(1000):
        if not engine.has_work:
            return [sorted(rows[key], key=lambda output: output.choice) for key in sorted(rows)]
        for output in engine.step():
            rows.setdefault(output.request_id, []).append(output)
    raise AssertionError("it does not end")


def run(
    engine: Engine, wanted: Sequence[tuple[Sequence[int], str | None]], params: SamplingParams
) -> list[list[Output]]:
    for row, (prompt, adapter) in enumerate(wanted):
        engine.add(str(row), prompt, params, adapter=adapter)
    return drain(engine)


def alone(
    prompt: Sequence[int], adapter: str | None, params: SamplingParams, seed: int = 0, weights: Weights | None = None
) -> list[Output]:
    engine = Engine(merged(adapter, seed, weights), TOKENIZER, EngineConfig(num_blocks=64, block_size=4))
    engine.add("0", prompt, params)
    return drain(engine)[0]


def ids(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def log_probs(outputs: Sequence[Output]) -> list[float]:
    return [one.log_prob for output in outputs for one in output.logprobs or []]


def prompt_log_probs(outputs: Sequence[Output]) -> list[float]:
    return [one.log_prob for one in outputs[0].prompt_logprobs or [] if one]


MIXED: list[tuple[Sequence[int], str | None]] = [
    (PROMPTS[0], "short"),
    (PROMPTS[1], None),
    (PROMPTS[2], "wide"),
    (PROMPTS[3], "short"),
    (PROMPTS[1], "wide"),
]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_tokens_per_step": 3},  # prompts in chunks
        {"num_blocks": 7, "prefix_caching": False},  # preemption
        {"deterministic": True},
        {"max_sequences": 2},
    ],
    ids=str,
)
def test_a_mixed_batch_says_what_each_merged_model_says(config: dict[str, Any], updates: Updates) -> None:
    engine, params = engine_of(updates, **config), greedy(8, prompt_logprobs=0)
    said = run(engine, MIXED, params)
    for outputs, (prompt, adapter) in zip(said, MIXED, strict=True):
        expected = alone(prompt, adapter, params)
        assert ids(outputs) == ids(expected)
        assert log_probs(outputs) == pytest.approx(log_probs(expected), abs=1e-4)
        assert prompt_log_probs(outputs) == pytest.approx(prompt_log_probs(expected), abs=1e-4)
    assert engine.stats().preemptions > 0 or "num_blocks" not in config
    assert len({tuple(ids(run(engine, [(PROMPTS[1], name)], params)[0])) for name in (None, "short", "wide")}) == 3


def test_choices_fork_under_their_adapter(updates: Updates) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=6, ignore_eos=True, logprobs=0)
    said = run(engine_of(updates), MIXED, params)
    for outputs, (prompt, adapter) in zip(said, MIXED, strict=True):
        expected = alone(prompt, adapter, params)
        assert ids(outputs) == ids(expected)
        assert log_probs(outputs) == pytest.approx(log_probs(expected), abs=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_of_no_adapter_are_as_without_any(deterministic: bool, updates: Updates) -> None:
    engine = engine_of(updates, deterministic=deterministic, prefix_caching=False)
    by_itself = run(engine, [(PROMPTS[1], None)], greedy())[0]
    beside = run(engine, MIXED, greedy())[1]
    assert ids(by_itself) == ids(beside)
    if deterministic:
        assert log_probs(by_itself) == log_probs(beside)
        under = run(engine, [(PROMPTS[3], "short")], greedy())[0]
        assert log_probs(under) == log_probs(run(engine, MIXED, greedy())[3])
    assert log_probs(by_itself) == pytest.approx(log_probs(beside), abs=1e-5)


def test_the_prefix_cache_knows_the_adapter(updates: Updates) -> None:
    engine, prompt = engine_of(updates), PROMPTS[1]
    for adapter, salt, cached in (
        ("short", b"", 0),
        ("wide", b"", 0),
        (None, b"", 0),
        (None, (1).to_bytes(8) + bytes(8), 0),  # a user who guesses what tells adapters apart
        ("short", b"", 8),
        (None, b"", 8),
        ("short", b"mine", 0),
    ):
        engine.add("0", prompt, greedy(), adapter=adapter, salt=salt)
        outputs = drain(engine)[0]
        assert outputs[0].cached_tokens == cached
        assert ids(outputs) == ids(alone(prompt, adapter, greedy()))


def test_another_adapter_of_the_same_name_reads_nothing_of_the_first(updates: Updates) -> None:
    engine = engine_of(updates)
    run(engine, [(PROMPTS[1], "short")], greedy())
    engine.unload_adapter("short")
    engine.load_adapter("short", updates["short", 5])
    outputs = run(engine, [(PROMPTS[1], "short")], greedy())[0]
    assert outputs[0].cached_tokens == 0
    assert ids(outputs) == ids(alone(PROMPTS[1], "short", greedy(), seed=5))
    assert ids(outputs) != ids(alone(PROMPTS[1], "short", greedy()))


def test_what_runs_keeps_an_adapter_that_is_unloaded(updates: Updates) -> None:
    engine = engine_of(updates)
    engine.add("0", PROMPTS[0], greedy(8), adapter="short")
    first = engine.step()
    engine.unload_adapter("short")
    with pytest.raises(UserError, match="no adapter 'short'"):
        engine.add("1", PROMPTS[0], greedy(), adapter="short")
    engine.load_adapter("short", updates["short", 5])
    engine.add("1", PROMPTS[0], greedy(8), adapter="short")
    old, new = drain(engine)
    assert ids([*first, *old]) == ids(alone(PROMPTS[0], "short", greedy(8)))
    assert ids(new) == ids(alone(PROMPTS[0], "short", greedy(8), seed=5))


@pytest.mark.parametrize("ended_by", ["end", "abort"])
def test_nothing_is_left_of_an_adapter_that_is_gone(ended_by: str, updates: Updates) -> None:
    model = random_model(SPEC)
    engine = engine_of(updates, model)
    engine.add("0", PROMPTS[0], greedy(3, n=2), adapter="short")
    engine.step()
    for name in SETTINGS:
        engine.unload_adapter(name)
    assert engine.adapters == []
    assert any(module._forward_hooks for module in model.modules())
    if ended_by == "abort":
        engine.abort("0")
    else:
        drain(engine)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_name_is_taken_once_and_must_be_known(updates: Updates) -> None:
    engine = engine_of(updates)
    assert engine.adapters == ["short", "wide"]
    with pytest.raises(UserError, match="there is an adapter 'short' already"):
        engine.load_adapter("short", updates["short", 5])
    with pytest.raises(UserError, match="no adapter 'shirt'; did you mean short"):
        engine.add("0", PROMPTS[0], greedy(), adapter="shirt")
    with pytest.raises(UserError, match="no adapter 'other'"):
        engine.unload_adapter("other")
    assert not engine.has_work


@pytest.mark.parametrize(
    ("dtype", "weights", "bound"),  # inputs in bf16 are rounded to 8 bits where weights are integers
    [
        (torch.float32, "int8", 1e-4),
        (torch.float32, "int4", 1e-4),
        (torch.bfloat16, None, 0.1),
        (torch.bfloat16, "int4", 0.3),
    ],
)
def test_packed_models_with_native_operators(
    dtype: torch.dtype, weights: Weights | None, bound: float, with_native: None, updates: Updates
) -> None:
    """A layer that an adapter changes goes operator by operator; rows of none keep their bits."""
    model = pack(random_model(SPEC).to(dtype), weights)
    engine = engine_of(updates, model, prefix_caching=False)
    base = log_probs(run(engine, [(PROMPTS[1], None)], greedy())[0])
    assert log_probs(run(engine, MIXED, greedy())[1]) == base
    params = greedy(1, prompt_logprobs=0)
    for outputs, (prompt, adapter) in zip(run(engine, MIXED, params), MIXED, strict=True):
        expected, plain = (
            torch.tensor(prompt_log_probs(alone(prompt, name, params, weights=weights))) for name in (adapter, None)
        )
        if adapter and len(prompt) > 1:
            found = torch.tensor(prompt_log_probs(outputs))
            assert (found - expected).norm() < bound * (expected - plain).norm()


def test_layers_without_an_update_stay_in_one_call(with_native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    layer_ = native.layer_

    def counted(*given: Any) -> None:
        calls.append(1)
        layer_(*given)

    monkeypatch.setattr(native, "layer_", counted)
    model = pack(random_model(SPEC).bfloat16())
    engine = Engine(model, TOKENIZER, EngineConfig(num_blocks=64, block_size=4))
    width = SPEC.hidden_size
    update = Affine(torch.ones(width, 1), torch.ones(1, width))
    engine.load_adapter("a", AdapterUpdates({"layers.1.attention.o_proj": update}))
    for adapter, count in ((None, 2), ("a", 1)):
        calls.clear()
        engine.add("0", PROMPTS[0], greedy(1), adapter=adapter)
        engine.step()
        assert len(calls) == count


def test_vectors_and_scores_under_an_adapter(updates: Updates) -> None:
    engine = engine_of(updates)
    expected = Engine(merged("wide"), TOKENIZER, EngineConfig(num_blocks=64)).embed(PROMPTS)
    torch.testing.assert_close(engine.embed(PROMPTS, adapter="wide"), expected, atol=1e-5, rtol=1e-5)
    assert (engine.embed(PROMPTS) - expected).abs().max() > 0.01
    model = SequenceClassifier(random_model(SPEC), 2)
    init_head(model, seed=0)
    scorer = Engine(model, TOKENIZER, EngineConfig(num_blocks=64))
    base = scorer.score(PROMPTS)
    shift = torch.tensor([1.0, -1.0])
    scorer.load_adapter("a", AdapterUpdates({"score": Affine(shift=shift)}))
    assert scorer.score(PROMPTS) == base
    torch.testing.assert_close(torch.tensor(scorer.score(PROMPTS, adapter="a")), torch.tensor(base) + shift)


def test_experts_of_other_rows_are_untouched() -> None:
    """Shared rows of a mixture are sorted by expert; updates of its attention are by row all the same."""
    model = random_model(ZOO["experts and a shared one"])
    adapters, width = Adapters(model), model.spec.hidden_size
    update = Affine(shift=torch.ones(width))
    adapters.load("a", AdapterUpdates({"layers.0.feed_forward.shared.down_proj": update}))
    tokens = torch.tensor([PROMPTS[1]])
    with torch.inference_mode():
        base = model(tokens)
        number = adapters.number("a")
        with adapters.running([(0, 4), (number, 6)]):
            mixed = model(tokens)
    assert torch.equal(mixed[:, :4], base[:, :4])
    assert (mixed[:, 4:] - base[:, 4:]).abs().max() > 0.01
