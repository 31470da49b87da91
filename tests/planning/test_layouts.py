"""Layouts that a model can have, and what of it one rank computes."""

import pytest

from intaglio.errors import UserError
from intaglio.planning.layouts import local_spec, require_possible
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from tiny_specs import LATENT, attention, block, decoder, with_attention, with_moe

EIGHT = with_attention(num_heads=8, num_kv_heads=2)


@pytest.mark.parametrize(("spec", "layout", "said"), [
    (EIGHT, {"tp": 3}, "tp 3 does not divide the model's query heads"),
    (EIGHT, {"tp": 4}, "tp 4 does not divide the model's key/value heads"),
    (EIGHT, {"tp": 2, "cp": 2}, r"cp 2 x tp 2 does not divide the model's key/value heads \(2\); take cp_method"),
    (EIGHT, {"cp": 4}, "cp 4 does not divide the model's key/value heads"),
    (with_moe(), {"dp": 16, "ep": 16}, "ep 16 does not divide the model's experts"),
    (EIGHT, {"dp": 2, "ep": 2}, "no experts to spread"),
    (EIGHT, {"pp": {"ranks": 2}}, "2 stages, and the model has 1 layers"),
    (decoder(block(feed_forward={"intermediate_size": 6})), {"tp": 4}, "intermediate features"),
    (decoder(block(attention=LATENT)), {"tp": 3}, r"query heads \(4\)"),
    (decoder(block(attention=LATENT)), {"cp": 3}, r"cp 3 does not divide the model's query heads \(4\)"),
    (decoder(vocab_size=5), {"tp": 4}, "tp 4 leaves a rank without a row of the 5"),
])  # fmt: skip
def test_what_does_not_divide_is_named(spec: DecoderSpec, layout: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        require_possible(spec, ParallelSpec.model_validate(layout), 32)
    assert "\n" not in str(refused.value)


def test_collected_keys_need_no_heads() -> None:
    require_possible(EIGHT, ParallelSpec(cp=4, cp_method="all_gather"))
    with pytest.raises(UserError, match="share 3 tokens"):
        require_possible(EIGHT, ParallelSpec(cp=4, cp_method="all_gather"), 3)


def test_a_rank_computes_a_smaller_model() -> None:
    spec = decoder(block(attention=LATENT), block(attention=attention(num_kv_heads=2)), with_moe().blocks[0].plain())
    latent, grouped, mixture = local_spec(spec, 2).blocks
    assert latent.attention.num_heads == 2
    assert (grouped.attention.num_heads, grouped.attention.plain()["num_kv_heads"]) == (2, 1)
    assert grouped.attention.num_parameters(32) * 2 == spec.blocks[1].attention.num_parameters(32)
    assert mixture.feed_forward.plain()["expert"]["intermediate_size"] == 8
    assert local_spec(spec, 1) is spec
