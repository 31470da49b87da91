"""Serving by arithmetic: caches by kind of layer, what there is room for, how fast memory lets it be."""

from dataclasses import replace

import pytest

from intaglio.errors import UserError
from intaglio.lineage import preset
from intaglio.planning.cache import cache_bytes, cached_bytes_by_kind
from intaglio.planning.devices import devices
from intaglio.planning.serving import ServingSpec, plan_serving
from intaglio.specs import DecoderSpec
from tiny_specs import LATENT, attention, block, decoder

H100 = devices()["h100"]


def spec_of(name: str) -> DecoderSpec:
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec


def test_caches_by_hand() -> None:
    mixed = decoder(
        block(attention=attention(num_kv_heads=2)), block(attention=attention(num_kv_heads=2, window=4), repeat=2),
        block(attention=LATENT),
    )  # fmt: skip
    of_token = 2 * 2 * 8 * 2  # keys and values, two heads, eight features, two bytes
    found = cached_bytes_by_kind(mixed, 32, "bfloat16", block=4)
    assert found == {"full": 32 * of_token, "window 4": 2 * 8 * of_token, "latent": 32 * (16 + 4) * 2}
    assert cache_bytes(mixed, 30, "bfloat16", block=4) == sum(found.values())  # whole blocks
    halves = cached_bytes_by_kind(mixed, 32, "bfloat16", tp=2, block=4)
    assert halves == {"full": 16 * of_token, "window 4": 8 * of_token, "latent": found["latent"]}
    assert cached_bytes_by_kind(mixed, 32, "bfloat16", tp=4, block=4)["full"] == halves["full"]  # a head at least


@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma3-12b", "deepseek-v3", "mixtral-8x7b"])
def test_blocks_of_one_are_what_the_spec_counts(name: str) -> None:
    spec = spec_of(name)
    windows = sum(cached for kind, cached in cached_bytes_by_kind(spec, 4096, "bfloat16", block=1).items())
    assert windows == spec.kv_cache_bytes(4096, "bfloat16")


def test_what_fits_is_the_most_that_does() -> None:
    spec = spec_of("llama3.1-8b")
    plan = plan_serving(spec, ServingSpec(context=4096), H100)
    each = sum(plan.kv_by_kind.values())
    assert each == 4096 * 2 * 8 * 128 * 2 * 32
    assert plan.weights == 2 * spec.num_parameters()
    assert plan.largest_concurrency * each <= plan.budget < (plan.largest_concurrency + 1) * each
    assert plan.concurrency == plan.largest_concurrency > 50
    assert cache_bytes(spec, plan.largest_context, "bfloat16") <= plan.budget
    assert plan.peak_bytes == sum(plan.plain()["components"].values()) < H100.memory


def test_decoding_reads_weights_and_caches() -> None:
    spec = spec_of("llama3.1-8b")
    one = plan_serving(spec, ServingSpec(context=2048, concurrency=1), H100)
    table = spec.vocab_size * spec.hidden_size * 2  # is looked up
    read = 2 * spec.num_parameters() - table + sum(one.kv_by_kind.values())
    assert one.seconds_per_token == pytest.approx(read / H100.bandwidth)
    many = plan_serving(spec, ServingSpec(context=2048, concurrency=64), H100)
    assert 30 < many.tokens_per_second / one.tokens_per_second < 64
    faster = plan_serving(spec, ServingSpec(context=2048, concurrency=1), replace(H100, bandwidth=2 * H100.bandwidth))
    assert faster.tokens_per_second == pytest.approx(2 * one.tokens_per_second)


def test_few_tokens_meet_few_experts() -> None:
    spec = spec_of("mixtral-8x7b")
    small, large = (plan_serving(spec, ServingSpec(context=256, concurrency=n), H100, tp=2) for n in (1, 64))
    read = small.seconds_per_token * H100.bandwidth - sum(small.kv_by_kind.values())
    active = (spec.num_active_parameters() - spec.vocab_size * spec.hidden_size) * 2 / 2  # two devices
    assert read == pytest.approx(active, rel=0.01)
    assert large.seconds_per_token > 3 * small.seconds_per_token


def test_four_bits_leave_room() -> None:
    spec = spec_of("llama3.1-8b")
    plain, few = (plan_serving(spec, ServingSpec(weights=kind), H100) for kind in ("plain", "nf4"))
    assert few.weights < 0.4 * plain.weights
    assert few.largest_concurrency > plain.largest_concurrency


def test_what_does_not_fit() -> None:
    spec = spec_of("llama3.1-70b")
    assert plan_serving(spec, ServingSpec(), H100).largest_concurrency == 0
    assert plan_serving(spec, ServingSpec(), H100, tp=4).largest_concurrency > 0
    with pytest.raises(UserError, match="the model takes 131072"):
        plan_serving(spec, ServingSpec(context=200_000), H100)
    with pytest.raises(UserError, match="tp 3"):
        plan_serving(spec, ServingSpec(), H100, tp=3)
