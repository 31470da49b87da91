"""How a road asks: behind examples as turns, behind passages in as many tokens as they may have."""

from intaglio.advice.prompts import behind_examples, behind_passages
from intaglio.advice.task import Case
from intaglio.retrieval.index import Chunk
from intaglio.retrieval.search import Hit

CASE = Case("who?", ({"role": "system", "content": "s"}, {"role": "user", "content": "Briefly: who?"}), "me")


def hits(*texts: str) -> list[Hit]:
    """Passages that were found."""
    return [Hit(Chunk(text, text, f"{n}.txt", 1, 1, ""), 1.0) for n, text in enumerate(texts)]


def asked(*texts: str, most: int) -> str:
    """What the last message says, a word being a token."""
    *before, last = behind_passages(CASE, hits(*texts), lambda text: len(text.split()), most)
    assert before == [CASE.messages[0]]
    return str(last["content"])


def test_examples_are_turns() -> None:
    example = Case("what?", ({"role": "user", "content": "Briefly: what?"},), "that")
    turns = behind_examples(CASE, [example])
    assert [turn["content"] for turn in turns] == ["Briefly: what?", "that", "s", "Briefly: who?"]
    assert behind_examples(CASE, []) == [*CASE.messages]


def test_passages_stand_before_the_question_while_there_is_room() -> None:
    assert asked("a b", "c d", "e f", most=4) == "a b\n\nc d\n\nUse what stands above.\n\nBriefly: who?"
    assert asked("a b", "c d", most=3) == "a b\n\nUse what stands above.\n\nBriefly: who?"


def test_the_first_passage_is_cut_rather_than_left_out() -> None:
    assert asked("a b c d e f", "g h i", most=4) == "a b\n\nUse what stands above.\n\nBriefly: who?"


def test_nothing_found_leaves_the_question() -> None:
    assert asked(most=4) == "Briefly: who?"
