"""Work per generated token with and without a cache of keys and values, counted while a small model generates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from intaglio.atlas.charts import Axis, Curve, chart, short, short_bytes_tick
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.engine.cache import ContiguousCache
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.specs import DecoderSpec

__all__ = ["KVCache"]


@dataclass(frozen=True)
class KVCache(Figure):
    """See above.

    Attributes:
        tokens: that are generated, each after all before it.
        hidden_size, layers: of the model, whose weights are random: what they are does not change the work.
    """

    name: ClassVar[str] = "kv-cache"
    title: ClassVar[Words] = Words("Decoding with and without a KV cache", "有无 KV 缓存的解码")
    claim: ClassVar[Words] = Words(
        "Without a cache every new token computes all keys and values again; the cache trades that work for memory.",
        "没有缓存时，每个新词元都要重新计算所有的键和值；缓存用内存换掉这些计算。",
    )
    tokens: int = 48
    hidden_size: int = 64
    layers: int = 2

    def data(self) -> Any:
        spec = self.spec()
        model = Decoder(spec).eval()
        init_weights(model, 0)
        ids = torch.randint(spec.vocab_size, (1, self.tokens), generator=torch.Generator().manual_seed(0))
        cache = ContiguousCache(spec, 1, self.tokens)
        rows = list(_steps(model, ids, cache))
        return {
            "parameters": spec.num_parameters(),
            "without": [without for without, _, _ in rows],
            "with": [having for _, having, _ in rows],
            "largest_difference": max(apart for _, _, apart in rows),
            "cache_bytes": sum(tensor.nbytes for tensor in cache.tensors()),
        }

    def spec(self) -> DecoderSpec:
        """Of the model that generates."""
        block = {
            "repeat": self.layers,
            "norm": {"kind": "rms_norm"},
            "attention": {"num_heads": 4, "rope": {}},
            "feed_forward": {"intermediate_size": 4 * self.hidden_size, "activation": "silu", "gated": True},
        }
        sizes = {"vocab_size": 256, "hidden_size": self.hidden_size, "max_position_embeddings": self.tokens}
        return DecoderSpec.model_validate({**sizes, "layers": [block]})

    def caption(self, data: Any) -> Words:
        times = f"{sum(data['without']) / sum(data['with']):.0f}"
        apart, size = f"{data['largest_difference']:.0e}", short_bytes_tick(data["cache_bytes"])
        count = len(data["with"])
        return Words(
            f"FLOPs counted by torch's counter while a model of {data['parameters']:,} parameters reads {count} "
            f"tokens one after the other. All of them together take {times} times the work without the cache; with "
            f"it, {size} are kept. Both make the same logits: the largest difference is {apart}.",
            f"一个 {data['parameters']:,} 参数的模型逐个读入 {count} 个词元，由 torch 的计数器统计 FLOPs。没有缓存"
            f"时总计算量是 {times} 倍；有缓存时保留 {size}。两者的输出相同：最大差异 {apart}。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {"without": say("without a cache", "无缓存"), "with": say("with a cache", "有缓存")}
        x = Axis(say("number of the token", "第几个词元"))
        each = [
            Curve(name, [(i, flops) for i, flops in enumerate(data[key], 1)], look)
            for look, (key, name) in enumerate(names.items())
        ]
        summed = [Curve(one.name, list(_running(one.points)), one.look) for one in each]
        work = Axis("FLOPs", low=0, show=short)
        return [
            chart(say("Work for one token", "生成一个词元的计算量"), each, x, work),
            chart(say("Work so far", "累计计算量"), summed, x, work),
        ]


@torch.no_grad()
def _steps(model: Decoder, ids: Tensor, cache: ContiguousCache) -> Iterator[tuple[int, int, float]]:
    """For each token: FLOPs without the cache and with it, and how far the logits are apart.

    The fused kernel for CPUs is one that the counter does not know, so attention is written out.
    """
    for place in range(ids.shape[1]):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as whole:
            looked = model(ids[:, : place + 1])[:, -1]
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as one:
            kept = model(ids[:, place : place + 1], torch.tensor([[place]]), cache)[:, -1]
        yield whole.get_total_flops(), one.get_total_flops(), float((looked - kept).abs().max())


def _running(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    total = 0.0
    for x, y in points:
        total += y
        yield x, total
