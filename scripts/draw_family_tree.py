"""Draws docs/pictures/family-tree.svg from the presets: one row a generation, years with one from left to right."""

import sys
from html import escape
from pathlib import Path

from intaglio.lineage.presets import Generation, family_tree, preset
from intaglio.lineage.units import short_bytes, short_count
from intaglio.lineage.words import parts_in_words

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "family-tree.svg"
ROW, YEAR, LEFT, TOP, BOX = 36, 52, 20, 62, 116
WIDTH, SIZE_AT, CACHE_AT, PARTS_AT = 1450, 700, 860, 950
INK, FAINT, LINE, FILL = "#1f2328", "#59636e", "#9aa4af", "#eef3f8"


def draw() -> str:
    """The picture, as SVG."""
    rows = [generation for _, generation in family_tree()]
    height = TOP + ROW * len(rows) + 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
        *_head(rows, height),
        *(part for generation in rows for part in _branch(generation, rows)),
        *(part for generation in rows for part in _row(generation, rows)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(rows: list[Generation], height: int) -> list[str]:
    heads = ((SIZE_AT, "parameters"), (CACHE_AT, "KV a token"), (PARTS_AT, "parts of one layer, and positions"))
    lines = [f'<text x="{x}" y="30" fill="{FAINT}">{text}</text>' for x, text in heads]
    for year in sorted({one.year for one in rows}):
        x = _x(year, rows)
        lines.append(f'<text x="{x}" y="30" fill="{FAINT}">{year}</text>')
        lines.append(f'<path d="M{x} 40V{height - 14}" stroke="{LINE}" stroke-opacity="0.25" fill="none"/>')
    return lines


def _x(year: int, rows: list[Generation]) -> int:
    return LEFT + sorted({one.year for one in rows}).index(year) * YEAR


def _y(name: str, rows: list[Generation]) -> int:
    return TOP + ROW * [one.name for one in rows].index(name)


def _place(generation: Generation, rows: list[Generation]) -> int:
    """By year; a child of the same year stands a little to the right of its parent."""
    parent = _parent(generation, rows)
    same_year = parent is not None and parent.year == generation.year
    return _place(parent, rows) + 26 if parent and same_year else _x(generation.year, rows)


def _parent(generation: Generation, rows: list[Generation]) -> Generation | None:
    return next((one for one in rows if one.name == generation.parent), None)


def _branch(generation: Generation, rows: list[Generation]) -> list[str]:
    """The line from the parent's box down to this one."""
    parent = _parent(generation, rows)
    if parent is None:
        return []
    x, top, y = _place(parent, rows) + 12, _y(parent.name, rows) + 26, _y(generation.name, rows) + 13
    return [f'<path d="M{x} {top}V{y}H{_place(generation, rows)}" stroke="{LINE}" stroke-width="1.4" fill="none"/>']


def _row(generation: Generation, rows: list[Generation]) -> list[str]:
    x, y = _place(generation, rows), _y(generation.name, rows)
    spec = preset(generation.representative).spec
    size = short_count(spec.num_parameters())
    if spec.num_active_parameters() != spec.num_parameters():
        size += f" ({short_count(spec.num_active_parameters())} active)"
    cache, words = short_bytes(spec.kv_bytes_per_token("bfloat16")), ", ".join(parts_in_words(spec))
    texts = ((SIZE_AT, size), (CACHE_AT, cache), (PARTS_AT, words))
    return [
        f'<rect x="{x}" y="{y}" width="{BOX}" height="26" rx="5" fill="{FILL}" stroke="{LINE}"/>',
        f'<text x="{x + 9}" y="{y + 17}" font-weight="600" fill="{INK}">{escape(generation.title)}</text>',
        *(f'<text x="{at}" y="{y + 17}" font-size="12" fill="{FAINT}">{escape(text)}</text>' for at, text in texts),
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PICTURE.read_text(encoding="utf-8") == draw() else f"{PICTURE} is stale: run {sys.argv[0]}")
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE)
