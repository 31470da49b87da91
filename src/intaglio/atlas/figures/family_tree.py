"""The family tree from the presets, each name leading to a diagram of that generation's spec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from intaglio.atlas.diagrams import decoder_diagram, encoder_decoder_diagram
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.recurrent_diagrams import recurrent_diagram, seq2seq_diagram
from intaglio.atlas.svg import Canvas, text_width
from intaglio.lineage import family_tree, preset
from intaglio.lineage.units import short_bytes, short_count
from intaglio.specs import DecoderSpec, EncoderDecoderSpec, RecurrentSpec, Seq2SeqSpec, load_yaml
from intaglio.specs.model import validate_model

__all__ = ["FamilyTree", "changed_in_chinese", "diagram"]

_ROW, _STEP, _LEFT = 25.0, 12.0, 10.0


@dataclass(frozen=True)
class FamilyTree(Figure):
    """Every generation, parents above children; see `intaglio lineage`."""

    name: ClassVar[str] = "family-tree"
    title: ClassVar[Words] = Words("The family tree", "家谱")
    claim: ClassVar[Words] = Words(
        "Each generation took something from the one before, or changed one thing. Click a name for its diagram.",
        "每一代都从前一代减去一些，或改变一处。点击名字看它的结构图。",
    )

    def data(self) -> Any:
        rows = [generation for _, generation in family_tree()]
        depth: dict[str | None, int] = {None: -1}
        for one in rows:
            depth[one.name] = depth[one.parent] + 1
        return [_row(one, depth[one.name]) for one in rows]

    def caption(self, data: Any) -> Words:
        first, last = min(row["year"] for row in data), max(row["year"] for row in data)
        return Words(
            f"{len(data)} generations from {first} to {last}; the number is the parameters of the size that stands "
            "for each, counted from its spec. Of a mixture of experts those one token meets stand behind the "
            "stroke. A ⊕ is a residual sum: the line that goes around a sublayer is the identity path, and it "
            "stays straight wherever no norm stands on it.",
            f"{first} 到 {last} 年的 {len(data)} 代；数字是代表尺寸的参数量，由其规格算出。混合专家模型在斜线后是每"
            "个词元遇到的参数。⊕ 是残差求和：绕过子层的线是恒等路径，其上没有归一化时它就是直的。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        canvas = Canvas(400, _ROW * len(data) + 30)
        places = {row["name"]: (_LEFT + _STEP * row["depth"], 8 + _ROW * place) for place, row in enumerate(data)}
        for row in data:
            if row["parent"]:
                _branch(canvas, places[row["parent"]], places[row["name"]])
        for row in data:
            _name(canvas, row, *places[row["name"]])
        return [canvas]

    def leaves(self, data: Any, say: Say) -> Mapping[str, Sequence[Canvas]]:
        return {_target(row["name"]): [_leaf(row, say)] for row in data}


def _row(generation: Any, depth: int) -> dict[str, Any]:
    spec = preset(generation.representative).spec
    return {
        "name": generation.name,
        "title": generation.title,
        "year": generation.year,
        "parent": generation.parent,
        "depth": depth,
        "changed": generation.changed,
        "preset": generation.representative,
        "parameters": spec.num_parameters(),
        "active": spec.num_active_parameters(),
        "kv_bytes": spec.kv_bytes_per_token("bfloat16"),
        "spec": spec.plain(),
    }


def _branch(canvas: Canvas, parent: tuple[float, float], child: tuple[float, float]) -> None:
    x = parent[0] + 6
    canvas.path(f"M{x:.1f} {parent[1] + 20:.1f}V{child[1] + 10:.1f}H{child[0]:.1f}", "axis")


def _name(canvas: Canvas, row: Any, x: float, y: float) -> None:
    with canvas.link(f"#{_target(row['name'])}"):
        canvas.rect(x, y, text_width(row["title"], 12) + 16, 20, "box", round_by=4)
        canvas.text(x + 8, y + 14, row["title"])
    canvas.text(306, y + 14, str(row["year"]), "faint", size=11, anchor="end")
    size = short_count(row["parameters"])
    if row["active"] != row["parameters"]:
        size += f" / {short_count(row['active'])}"
    canvas.text(394, y + 14, size, "faint", size=11, anchor="end")


def _target(name: str) -> str:
    return f"generation-{name.replace('.', '-')}"


def _leaf(row: Any, say: Say) -> Canvas:
    picture = diagram(row["spec"], say)
    canvas = Canvas(picture.width, 0)
    canvas.text(12, 18, f"{row['title']} · {row['year']} · {row['preset']}", "strong", size=13)
    words = say(row["changed"], changed_in_chinese().get(row["name"], row["changed"]))
    y = canvas.lines(12, 38, words, picture.width - 24, "faint", size=11)
    if row["kv_bytes"]:
        size = short_bytes(row["kv_bytes"])
        canvas.text(12, y + 4, say(f"K and V of one token, bf16: {size}", f"每词元的 K 与 V（bf16）：{size}"), size=11)
        y += 16
    canvas.put(picture, 0, y + 2)
    canvas.height = y + 2 + picture.height
    return canvas


def diagram(spec: Mapping[str, Any], say: Say) -> Canvas:
    """The picture of a spec that is given as plain data."""
    match validate_model(spec):
        case DecoderSpec() as decoder:
            return decoder_diagram(decoder, say)
        case EncoderDecoderSpec() as both:
            return encoder_decoder_diagram(both, say)
        case RecurrentSpec() as recurrent:
            return recurrent_diagram(recurrent, say)
        case Seq2SeqSpec() as pair:
            return seq2seq_diagram(pair, say)


@cache
def changed_in_chinese() -> dict[str, str]:
    """`Generation.changed` of every generation, in Chinese."""
    return load_yaml(Path(__file__).parent / "changed.yaml")
