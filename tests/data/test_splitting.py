"""Held-out examples: by what they say, whatever their order, and not what training has already said."""

import numpy as np
import pytest

from intaglio.data.examples import Example
from intaglio.data.splitting import held_out, held_out_prompts, split
from intaglio.data.store import InMemory, Store
from intaglio.errors import UserError


def example(ids: list[int] | np.ndarray, where: str = "f") -> Example:
    return Example(np.asarray(ids, dtype=np.int32), np.ones(len(ids), dtype=bool), where)


def texts(store: Store) -> set[tuple[int, ...]]:
    return {tuple(store[i].ids.tolist()) for i in range(len(store))}


def test_about_the_share_is_held_out_and_nothing_is_on_both_sides() -> None:
    store = InMemory([example([n, n + 1]) for n in range(2000)])
    found = split(store, 0.1)
    assert 140 < len(found.validation) < 260
    assert texts(found.train) | texts(found.validation) == texts(store)
    assert not texts(found.train) & texts(found.validation)


def test_a_document_stays_on_its_side_whatever_else_is_there() -> None:
    few = InMemory([example([n]) for n in range(300)])
    more = InMemory([example([n]) for n in reversed(range(900))])
    assert texts(split(few, 0.2).validation) == texts(split(more, 0.2).validation) & texts(few)


def test_row_by_row_the_same_are_held_out() -> None:
    store = InMemory([example([n, n + 1]) for n in range(500)])
    outside = InMemory([store[i] for i in np.flatnonzero(held_out(store, 0.1)).tolist()])
    assert texts(outside) == texts(split(store, 0.1).validation)
    assert not held_out(store, 0.0).any()


def test_equal_documents_are_on_one_side() -> None:
    store = InMemory([example([n % 100], f"f:{n}") for n in range(300)])
    found = split(store, 0.3)
    assert not texts(found.train) & texts(found.validation)
    assert len(found.train) + len(found.validation) == 300


def test_the_examples_of_a_file_stay_together_whatever_the_file_is_called() -> None:
    def held_out(name: str) -> set[str]:
        store = InMemory([example([n], f"{name}{n // 10}.jsonl:{n % 10 + 1}") for n in range(400)])
        found = split(store, 0.3, by="file")
        sides = [{side[i].where.split(":")[0] for i in range(len(side))} for side in (found.train, found.validation)]
        assert not sides[0] & sides[1]
        return {file.removeprefix(name) for file in sides[1]}

    assert held_out("there/a/") == held_out("b") != set()


def test_what_a_file_of_the_other_side_says_too_is_not_held_out() -> None:
    files = [[example([100 * file + n], f"{file}.jsonl:{n + 1}") for n in range(3)] for file in range(40)]
    common = [example([7, 7, 7], f"{file}.jsonl:4") for file in range(40)]
    found = split(InMemory([*(one for file in files for one in file), *common]), 0.3, by="file")
    assert (7, 7, 7) in texts(found.train)
    assert (7, 7, 7) not in texts(found.validation)
    assert found.removed == len(found.validation) // 3


def test_near_copies_are_not_held_out() -> None:
    rng = np.random.default_rng(0)
    originals = [rng.integers(0, 1000, 200) for _ in range(60)]
    copies = [np.concatenate([text[:190], [n]]) for n, text in enumerate(originals)]
    others = [rng.integers(0, 1000, 200) for _ in range(60)]
    store = InMemory([example(ids) for ids in [*originals, *copies, *others, np.arange(5)]])
    plain, careful = split(store, 0.3), split(store, 0.3, near=0.5)
    assert plain.removed == 0
    assert texts(careful.train) == texts(plain.train)
    assert texts(careful.validation) < texts(plain.validation)
    begins = {text[:100] for text in texts(careful.train)}
    assert not begins & {text[:100] for text in texts(careful.validation) if len(text) > 5}
    assert {tuple(text) for text in others} & texts(plain.validation) <= texts(careful.validation)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_is_between_nothing_and_everything(share: float) -> None:
    with pytest.raises(UserError, match="validation share"):
        split(InMemory([example([1]), example([2])]), share)


def test_an_empty_side_is_an_error() -> None:
    store = InMemory([example([1]), example([2])])
    with pytest.raises(UserError, match="nothing is left for validation of 2 examples"):
        split(store, 1e-9)
    with pytest.raises(UserError, match="nothing is left for training"):
        split(store, 1 - 1e-9)


def test_all_that_goes_on_from_a_prompt_is_on_one_side() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, 8).astype(np.int32) for _ in range(500)]
    outside = held_out_prompts([*prompts, *reversed(prompts)], 0.2)
    assert outside[:500].tolist() == outside[:499:-1].tolist()
    assert 60 < outside[:500].sum() < 140
    assert not held_out_prompts(prompts, 0).any()
    for share, side in ((1e-9, "validation"), (1 - 1e-9, "training")):
        with pytest.raises(UserError, match=f"nothing is left for {side} of 2 examples"):
            held_out_prompts(prompts[:2], share)
    with pytest.raises(UserError, match=r"a validation share of 1\.5"):
        held_out_prompts(prompts, 1.5)
