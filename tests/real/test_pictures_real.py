"""Pictures of docs whose numbers take a training, a model or a clock: found again, they say the same."""

import pytest

from intaglio.atlas.book import BOOK
from intaglio.files import read_json
from script_modules import load_script

pytestmark = [pytest.mark.real, pytest.mark.prove]

pictures = load_script("pictures")


@pytest.mark.parametrize("name", [name for name in BOOK if name not in pictures.QUICK | pictures.TIMED])
def test_a_run_finds_what_the_picture_shows(name: str) -> None:
    figure = BOOK[name]
    if not pictures.kept(figure).is_file():
        pytest.skip("no page shows it")
    kept = figure.caption(read_json(pictures.kept(figure))).en
    assert pictures.says_the_same(kept, pictures.found_again(figure)), f"make pictures ARGS={name}"


@pytest.mark.parametrize("name", sorted(pictures.TIMED))
def test_a_clock_tells_of_the_same_things(name: str) -> None:
    """Another machine, or a busy one, has other times; what is said of them is the same."""
    figure = BOOK[name]
    if not pictures.kept(figure).is_file():
        pytest.skip("no page shows it")
    kept = figure.caption(read_json(pictures.kept(figure))).en
    assert pictures.without_numbers(kept) == pictures.without_numbers(pictures.found_again(figure))
