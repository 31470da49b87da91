"""How questions are put: examples that are never the question, letters, chats."""

from dataclasses import replace

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.framing import Shots, arranged, framed, subset
from intaglio.evaluation.tasks.item import Item, Task


def item(number: int, category: str = "") -> Item:
    """A question about a number."""
    asked = f"Q: {number}?\nA:"
    return Item(str(number), asked, (" odd", " even"), (1 - number % 2,), category=category, stem=f"{number}?")


TASK = Task("parity", "choice", tuple(item(number) for number in range(8)), joint="\n")


def test_without_shots_a_text_is_prefix_intro_and_question() -> None:
    task = replace(TASK, prefix="Think. ")
    assert framed(task, replace(item(3), intro="Odd or even?\n"), [], chat=False) == "Think. Odd or even?\nQ: 3?\nA:"


def test_shots_are_worked_and_never_the_question_itself() -> None:
    source = Shots(TASK, 0)
    for one in TASK.items:
        drawn = source.of(one, 7)
        assert sorted(int(shot.id) for shot in drawn) == [n for n in range(8) if n != int(one.id)]
    two = source.of(TASK.items[3], 2)
    text = framed(TASK, TASK.items[3], two, chat=False)
    assert text == "\n".join([*(one.question + one.choices[one.gold[0]] for one in two), "Q: 3?\nA:"])
    with pytest.raises(UserError, match="8 shots, and there are 7 examples"):
        source.of(TASK.items[0], 8)


def test_draws_hang_on_the_seed_and_fewer_shots_begin_more() -> None:
    def drawn(seed: int, count: int) -> list[str]:
        return [shot.id for shot in Shots(TASK, seed).of(TASK.items[5], count)]

    assert drawn(0, 4) == drawn(0, 4) == drawn(0, 7)[:4]
    assert len({tuple(drawn(seed, 4)) for seed in range(6)}) > 3


def test_examples_of_their_own_are_taken_and_of_the_same_category() -> None:
    examples = tuple(item(n, category) for n, category in ((10, "a"), (11, "b"), (12, "a"), (13, "b")))
    task = replace(TASK, items=(item(1, "b"), item(2, "c"), item(10, "a")), examples=examples, draw="first")
    source = Shots(task, 0)
    assert [one.id for one in source.of(task.items[0], 2)] == ["11", "13"]
    assert [one.id for one in source.of(task.items[1], 3)] == ["10", "11", "12"]
    assert [one.id for one in source.of(task.items[2], 1)] == ["12"]
    assert [one.id for one in source.of(task.items[2], 3)] == ["11", "12", "13"]  # its own has but one


def test_a_subset_is_drawn_by_the_seed_and_keeps_its_order_and_its_examples() -> None:
    few = subset(TASK, 3, 1)
    numbers = [int(one.id) for one in few.items]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3
    assert subset(TASK, 3, 1) == few
    assert len({tuple(one.id for one in subset(TASK, 3, seed).items) for seed in range(8)}) > 3
    assert Shots(few, 0).of(few.items[0], 7)
    assert subset(TASK, 8, 1) is TASK
    assert subset(TASK, None, 1) is TASK


def test_letters_stand_in_front_of_the_listed_choices() -> None:
    task = arranged(TASK, "letter")
    one = task.items[3]
    assert framed(task, one, [], chat=False) == "3?\nA. odd\nB. even\nAnswer:"
    assert (one.choices, one.gold) == ((" A", " B"), (0,))
    shown = framed(task, one, [task.items[2]], chat=False)
    assert isinstance(shown, str)
    assert shown.startswith("2?\nA. odd\nB. even\nAnswer: B\n\n3?")
    chinese = arranged(replace(TASK, language="zh"), "letter")
    assert chinese.items[0].question.endswith("\n答案：")
    assert arranged(TASK, None).items == arranged(TASK, "answer").items == TASK.items
    assert arranged(replace(TASK, scoring="letter"), None).items == task.items
    many = replace(item(1), choices=tuple(map(str, range(27))))
    with pytest.raises(UserError, match="27 choices are more than there are letters"):
        arranged(replace(TASK, items=(many,)), "letter")


def test_written_choices_are_a_task_of_generation() -> None:
    task = arranged(TASK, "generate")
    one = task.items[3]
    assert (task.kind, task.metrics, one.references, one.choices) == ("generation", ("choice",), ("A",), ())
    assert one.fields["letters"] == "AB"
    assert framed(task, one, [task.items[2]], chat=False) == (
        "2?\nA. odd\nB. even\nAnswer: B\n\n3?\nA. odd\nB. even\nAnswer:"
    )
    told = framed(task, one, [], chat=True)
    assert told == [
        {"role": "user", "content": "3?\nA. odd\nB. even\n\nReply with the letter of the right answer alone."}
    ]


def test_a_chat_has_its_shots_as_turns() -> None:
    told = framed(replace(TASK, prefix="Odd?\n"), TASK.items[3], [TASK.items[2]], chat=True)
    assert told == [
        {"role": "user", "content": "Odd?\n2?"},
        {"role": "assistant", "content": "even"},
        {"role": "user", "content": "3?"},
    ]
    system = {"role": "system", "content": "Be brief."}
    one = replace(item(3), messages=(system, {"role": "user", "content": "3?"}), intro="Now: ")
    assert framed(TASK, one, [], chat=False) == [system, {"role": "user", "content": "Now: 3?"}]
    listed = arranged(replace(TASK, items=(one,)), "generate").items[0]
    assert listed.messages[0] == system
    assert listed.messages[1]["content"].startswith("3?\nA. odd")


def test_free_answers_are_worked_by_their_first_reference_or_as_they_say() -> None:
    one = Item("1", "Q: 1 + 1?\nA:", references=("2", "two"))
    task = Task("sums", "generation", (one,))
    assert framed(task, one, [one], chat=False) == "Q: 1 + 1?\nA: 2\n\nQ: 1 + 1?\nA:"
    told = framed(task, one, [replace(one, worked=" 1 and 1 is 2")], chat=False)
    assert isinstance(told, str)
    assert told.startswith("Q: 1 + 1?\nA: 1 and 1 is 2\n\n")
