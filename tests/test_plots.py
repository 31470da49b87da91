"""Pictures: what is drawn where, with fonts that have the characters, or one line that says why not."""

import struct
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.plots import _fonts_for, _visible, draw_curves, draw_heat_map

fonts = pytest.importorskip("matplotlib.font_manager")
images = pytest.importorskip("matplotlib.image")


def has_chinese() -> bool:
    try:
        return bool(_fonts_for("我爱你"))
    except UserError:
        return False


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_a_heat_map_is_dark_where_the_numbers_are_large(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    draw_heat_map(path, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], ["a", "b"], ["x", "y", "z"], title="where")
    picture = images.imread(path)[..., :3]
    dark = (picture[..., 2] - picture[..., 0] > 0.25) & (picture.max(axis=-1) < 0.6)
    down, across = dark.nonzero()
    upper, lower = across[down < down.mean()].mean(), across[down > down.mean()].mean()
    assert dark.any()
    assert upper < lower  # the first row's is on the left, the second's on the right
    assert [file.name for file in tmp_path.iterdir()] == ["map.png"]


@pytest.mark.skipif(not has_chinese(), reason="no font with Chinese is installed: `make system` brings one")
def test_chinese_names_have_glyphs(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    draw_heat_map(tmp_path / "map.png", [[0.9, 0.1], [0.2, 0.8]], ["我", "爱"], ["Ich", "liebe"])
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
    draw_heat_map(tmp_path / "other.png", [[0.9, 0.1], [0.2, 0.8]], ["你", "爱"], ["Ich", "liebe"])
    one, other = (images.imread(tmp_path / name) for name in ("map.png", "other.png"))
    assert one.shape == other.shape
    assert (one != other).any()  # two boxes would be alike


def test_a_character_that_no_font_has_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "findSystemFonts", list)
    with pytest.raises(UserError, match=r"no font here shows '爱'; `make system` installs one") as caught:
        draw_heat_map(tmp_path / "map.png", [[1.0]], ["爱"], ["love"])
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_no_font_is_looked_for_where_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: pytest.fail("looked"))
    assert _fonts_for("Größe ␣▁Ġ été Жук") == ["DejaVu Sans"]


def test_a_file_that_is_no_font_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf")])
    with pytest.raises(UserError, match="no font here shows"):
        _fonts_for("爱")


def test_spaces_and_control_characters_are_seen_and_dollars_are_no_formulas(tmp_path: Path) -> None:
    assert [_visible(name) for name in (" the", "\n", "a\tb", "<eos>", "$x$")] == [
        "␣the",
        "\\n",
        "a\\tb",
        "<eos>",
        "$x$",
    ]
    draw_heat_map(tmp_path / "map.png", [[1.0]], ["$\\frac{1$"], [" $"])


def test_the_picture_grows_with_its_names(tmp_path: Path) -> None:
    draw_heat_map(tmp_path / "small.png", [[1.0] * 3] * 2, ["a"] * 2, ["b"] * 3)
    draw_heat_map(tmp_path / "large.png", [[1.0] * 30] * 20, ["a"] * 20, ["b"] * 30)
    assert all(
        large > 2 * small
        for small, large in zip(size(tmp_path / "small.png"), size(tmp_path / "large.png"), strict=True)
    )


def test_curves_are_drawn(tmp_path: Path) -> None:
    draw_curves(tmp_path / "curves.png", {"loss": {"train": [(0, 2.0), (1, 1.0)]}, "rate": {"": [(0, 1.0)]}}, "step")
    assert size(tmp_path / "curves.png")[0] > 900
