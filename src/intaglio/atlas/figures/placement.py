"""Where the norm stands and what reaches each layer at initialisation: gradients of tiny models, from 6 to 96 layers.

Two ways to begin: as this code does (N(0, 0.02), matrices into the stream divided by sqrt(2 * layers)), and Xavier's,
as in Xiong et al. 2020 (arXiv 2002.04745), whose theorem 1 says that without the straight path the last layer's
gradient does not fall with depth, and with it does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.specs import DecoderSpec
from intaglio.specs.decoder import Placement

__all__ = ["NormPlacement", "identity_gradient", "layer_gradients"]

_PLACEMENTS: Final[tuple[Placement, ...]] = ("post", "pre", "residual", "sandwich")
_VOCABULARY: Final = 64


@dataclass(frozen=True)
class NormPlacement(Figure):
    """See above.

    Attributes:
        depths: layers of the models, from the fewest.
        width: of the residual stream.
        seeds: weights and tokens.
    """

    name: ClassVar[str] = "norm-placement"
    title: ClassVar[Words] = Words("Where the norm stands", "归一化放在哪里")
    claim: ClassVar[Words] = Words(
        "Post: dy/dx = dNorm/dz (1 + dF/dx), the identity path is bent in every layer. Pre and residual: dy/dx = 1 "
        "+ ..., it is kept whole.",
        "Post：dy/dx = dNorm/dz (1 + dF/dx)，恒等路径在每层被弯折。Pre 与 residual：dy/dx = 1 + …，完整保留。",
    )
    depths: tuple[int, ...] = (6, 12, 24, 48, 96)
    width: int = 32
    seeds: int = 2

    def data(self) -> Any:
        return {
            "depths": list(self.depths),
            "identity": {kind: [self._mean(identity_gradient, kind, n) for n in self.depths] for kind in _PLACEMENTS},
            "xavier": {kind: self._layers(kind, xavier=True) for kind in _PLACEMENTS},
            "ours": {kind: self._layers(kind, xavier=False) for kind in _PLACEMENTS},
        }

    def _layers(self, kind: Placement, *, xavier: bool) -> dict[str, list[float]]:
        """By depth of the model, the gradients of its layers."""
        return {str(depth): self._mean(partial(layer_gradients, xavier=xavier), kind, depth) for depth in self.depths}

    def _mean(self, measure: Any, kind: Placement, depth: int) -> Any:
        """Geometric, over the seeds."""
        spec = placed(kind, depth, self.width)
        logs = torch.stack([torch.as_tensor(measure(spec, seed)).log() for seed in range(self.seeds)])
        return logs.mean(dim=0).exp().tolist()

    def caption(self, data: Any) -> Words:
        least, most = data["depths"][0], data["depths"][-1]
        lost = f"{data['identity']['post'][-1] / data['identity']['post'][0]:.0e}"
        last = {
            kind: data["xavier"][kind][str(most)][-1] / data["xavier"][kind][str(least)][-1] for kind in _PLACEMENTS
        }
        return Words(
            "First panel: the gradient that the sum's straight branch alone hands to the input, what the "
            f"sublayers add being held fixed. Post loses all but {lost} of it between {least} and {most} layers, "
            "the others nothing. The rest: gradients of each layer's last matrix in full. With Xavier's start the "
            f"last layer's is {last['post']:.2g} times as large at {most} layers as at {least} for post, and "
            f"{last['pre']:.2g} times for pre, which is why post needs a warm-up; our start divides what goes into "
            f"the stream, and evens it out. {self.seeds} seeds, {self.width} wide: what trains is decided by "
            "training, not by this.",
            f"第一格：固定子层所加之量，只看求和的直路把多少梯度交给输入。从 {least} 层到 {most} 层，post 只剩 "
            f"{lost}，其余毫无损失。其他格：每层最后一个矩阵的完整梯度。用 Xavier 初始化时，{most} 层模型的最后一层"
            f"梯度相对 {least} 层，post 为 {last['post']:.2g} 倍，pre 为 {last['pre']:.2g} 倍，这就是 post 需要预热"
            f"的原因；我们的初始化缩小进入残差流的矩阵，使之平整。{self.seeds} 个种子，宽 {self.width}：能否训练由"
            "训练决定，而不是由此图。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        depths, most = data["depths"], str(data["depths"][-1])
        count = Axis(say("layers of the model", "模型层数"), base=2, ticks=depths)
        place = Axis(say(f"layer, of {most}", f"第几层（共 {most} 层）"))
        size = Axis(say("norm of the gradient", "梯度范数"), base=10, show=_tick)
        straight = {kind: list(zip(depths, norms, strict=True)) for kind, norms in data["identity"].items()}
        last = {kind: [(n, data["xavier"][kind][str(n)][-1]) for n in depths] for kind in _PLACEMENTS}
        return [
            chart(say("The identity path alone", "只看恒等路径"), _curves(straight, True), count, size),
            chart(say("Last layer, Xavier's start", "最后一层，Xavier 初始化"), _curves(last, True), count, size),
            chart(
                say("Every layer, Xavier's start", "各层，Xavier 初始化"),
                _curves(_by_layer(data["xavier"], most)),
                place,
                size,
            ),
            chart(
                say("Every layer, our start", "各层，本代码的初始化"),
                _curves(_by_layer(data["ours"], most)),
                place,
                size,
            ),
        ]


def placed(kind: Placement, layers: int, width: int) -> DecoderSpec:
    """A small GPT with its norms there."""
    block = {
        "repeat": layers,
        "placement": kind,
        "norm": {"kind": "layer_norm"},
        "attention": {"num_heads": 2, "rope": {}},
        "feed_forward": {"intermediate_size": 4 * width, "activation": "gelu"},
    }
    sizes = {"vocab_size": _VOCABULARY, "hidden_size": width, "max_position_embeddings": 16}
    return DecoderSpec.model_validate({**sizes, "layers": [block]})


def identity_gradient(spec: DecoderSpec, seed: int) -> float:
    """|d (features behind the last layer, along a random direction) / d embeddings|, sublayers held fixed, over 1.

    1 where the path from the embeddings is straight.
    """
    model, ids = _model(spec, seed, xavier=True)
    for block in model.layers:
        for sublayer in (block.attention, block.feed_forward):
            sublayer.register_forward_hook(lambda _, __, out: out.detach())
    ends: list[Tensor] = []
    model.embed_tokens.register_forward_hook(lambda _, __, out: _kept(ends, out.detach().requires_grad_()))
    model.layers[-1].register_forward_hook(lambda _, __, out: _kept(ends, out))
    model(ids)
    start, end = ends
    direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad((end * direction).sum(), start)
    return float(gradient.norm() / direction.norm())


def layer_gradients(spec: DecoderSpec, seed: int, *, xavier: bool) -> list[float]:
    """|d loss / d last matrix| of each layer, on random tokens."""
    model, ids = _model(spec, seed, xavier=xavier)
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    matrices = [block.feed_forward.down_proj.weight for block in model.layers]
    return [float(gradient.norm()) for gradient in torch.autograd.grad(loss, matrices)]


def _model(spec: DecoderSpec, seed: int, *, xavier: bool) -> tuple[Any, Tensor]:
    model = Decoder(spec)
    init_weights(model, seed)
    generator = torch.Generator().manual_seed(seed)
    if xavier:  # a stream of size 1 from the start, as sublayers of size 1 are for
        nn.init.normal_(model.embed_tokens.weight, generator=generator)
    for matrix in _matrices(model) if xavier else ():
        nn.init.xavier_normal_(matrix, generator=generator)
    return model, torch.randint(_VOCABULARY, (4, 16), generator=generator)


def _matrices(model: Decoder) -> Iterator[Tensor]:
    return (parameter for parameter in model.layers.parameters() if parameter.ndim >= 2)


def _kept(ends: list[Tensor], out: Tensor) -> Tensor:
    ends.append(out)
    return out


def _tick(value: float) -> str:
    return f"{value:g}" if value > 1e-3 else f"{value:.0e}"


def _by_layer(norms: dict[str, dict[str, list[float]]], depth: str) -> dict[str, list[tuple[float, float]]]:
    return {kind: list(enumerate(found[depth], 1)) for kind, found in norms.items()}


def _curves(points: Mapping[Any, list[tuple[float, float]]], marks: bool = False) -> list[Curve]:
    return [Curve(kind, found, look, marks) for look, (kind, found) in enumerate(points.items())]
