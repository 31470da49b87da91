"""Bytes of the KV cache against the context, for kinds of attention in one model and for known models, from specs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from intaglio.atlas.charts import Axis, Curve, chart, short_bytes_tick
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.lineage import preset
from intaglio.specs import DecoderSpec

__all__ = ["CacheBytes", "with_attention"]


@dataclass(frozen=True)
class CacheBytes(Figure):
    """See above.

    Attributes:
        model: whose attention is exchanged.
        latent: the model whose latent attention it gets.
        window: that bounds its cache.
        known: models as they are.
        contexts: in tokens.
    """

    name: ClassVar[str] = "cache-bytes"
    title: ClassVar[Words] = Words("What the cache takes", "缓存占多少")
    claim: ClassVar[Words] = Words(
        "The cache grows with length, layers and K/V heads. MQA shares one K/V among all heads, GQA one among each "
        "group; a latent or a window takes less again.",
        "缓存随长度、层数和 K/V 头数增长。MQA 让所有头共用一组 K/V，GQA 让每组共用一组；潜向量或窗口再省一步。",
    )
    model: str = "llama-7b"
    latent: str = "deepseek-v2-lite"
    window: int = 4096
    known: tuple[str, ...] = ("gpt3-175b", "llama-7b", "llama2-70b", "mistral-7b", "deepseek-v3", "gemma3-4b")
    contexts: tuple[int, ...] = tuple(1 << power for power in range(9, 18))

    def data(self) -> Any:
        spec = preset(self.model).spec
        latent = preset(self.latent).spec
        assert isinstance(spec, DecoderSpec)
        assert isinstance(latent, DecoderSpec)
        heads = spec.blocks[0].attention.num_heads
        kinds = {
            f"MHA {heads}": spec,
            f"GQA {heads}:{heads // 4}": with_attention(spec, num_kv_heads=heads // 4),
            "MQA": with_attention(spec, num_kv_heads=1),
            "MLA": spec.updated(layers=[b.updated(attention=latent.blocks[0].attention) for b in spec.blocks]),
            f"MHA, {self.window}": with_attention(spec, window=self.window),
        }
        return {
            "model": self.model,
            "kinds": {name: [[c, one.kv_cache_bytes(c)] for c in self.contexts] for name, one in kinds.items()},
            "known": {name: self._curve(name) for name in self.known},
        }

    def _curve(self, name: str) -> list[list[int]]:
        """As far as the model reads."""
        spec = preset(name).spec
        limit = spec.context_limit or max(self.contexts)
        return [[c, spec.kv_cache_bytes(c)] for c in self.contexts if c <= limit]

    def caption(self, data: Any) -> Words:
        kinds = list(data["kinds"].items())
        (first, most), (_, least) = kinds[0], min(kinds, key=lambda one: one[1][-1][1])
        name = min(kinds, key=lambda one: one[1][-1][1])[0]
        context, top = most[-1]
        times = f"{top / least[-1][1]:.0f}"
        return Words(
            f"Bytes in bf16 for one sequence. In {data['model']}, {first} keeps {short_bytes_tick(top)} at "
            f"{context:,} tokens, and {name} 1/{times} of it. The other panel has published models, each as far "
            "as it reads.",
            f"一个序列的字节数（bf16）。在 {data['model']} 中，{context:,} 个词元时 {first} 要 "
            f"{short_bytes_tick(top)}，{name} 是它的 1/{times}。另一格是已发布的模型，各画到其上下文的尽头。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        x = Axis(say("tokens of the sequence", "序列的词元数"), base=2, show=_tokens)
        y = Axis(say("bytes", "字节"), base=2, show=short_bytes_tick)
        titles = {
            "kinds": say(f"{data['model']} with other attention", f"{data['model']} 换用各种注意力"),
            "known": say("Known models", "已知模型"),
        }
        return [
            chart(title, [Curve(n, p, look, True) for look, (n, p) in enumerate(data[key].items())], x, y)
            for key, title in titles.items()
        ]


def with_attention(spec: DecoderSpec, **changes: Any) -> DecoderSpec:
    """The same model, these fields of every layer's attention changed."""
    return spec.updated(layers=[b.updated(attention=b.attention.updated(**changes)) for b in spec.blocks])


def _tokens(value: float) -> str:
    return f"{value / 1024:.0f}k" if value >= 1024 else f"{value:.0f}"
