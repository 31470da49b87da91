"""What a model cannot be cut into is refused before anything is cut, in the planner's words."""

from collections.abc import Callable
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel import context, experts, tensor
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from tiny_specs import MOE, block, decoder, with_attention

SPARSE = decoder(block(feed_forward=MOE))


@pytest.mark.parametrize(
    ("cut", "spec", "layout", "says"),
    [
        (tensor.parallelize, with_attention(num_kv_heads=2), {"tp": 4}, "tp 4 does not divide the model's key/value"),
        (tensor.parallelize, decoder(vocab_size=5), {"tp": 4}, "without a row"),
        (experts.parallelize, SPARSE, {"dp": 3, "ep": 3}, "ep 3 does not divide the model's experts"),
        (experts.parallelize, decoder(), {"dp": 2, "ep": 2}, "no experts to spread"),
        (context.parallelize, with_attention(num_kv_heads=2), {"cp": 4}, "take cp_method: all_gather"),
    ],
)
def test_a_model_is_left_whole(cut: Callable[..., None], spec: DecoderSpec, layout: dict[str, Any], says: str) -> None:
    model = Decoder(spec)
    before = {name: type(parameter) for name, parameter in model.named_parameters()}
    with pytest.raises(UserError) as refused:
        cut(model, None, ParallelSpec(**layout))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert {name: type(parameter) for name, parameter in model.named_parameters()} == before
