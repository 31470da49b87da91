"""Turns after each other, each with the model's own answers before it."""

from typing import Any

from intaglio.evaluation.load.conversations import Turn, hold, turns_of
from intaglio.evaluation.load.latency import Sample
from virtual_time import run_virtual


class Parrot:
    """Answers with how many messages there were."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.asked: list[tuple[Any, int, float | None]] = []
        self.fails_at = fails_at

    async def __call__(self, prompt: Any, max_tokens: int, due: float | None) -> Sample:
        failed = len(self.asked) == self.fails_at
        self.asked.append((prompt, max_tokens, due))
        return Sample(0.0, max_tokens, text=f"{len(prompt)} heard", error="HTTP 500" if failed else "")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_each_turn_has_the_answers_before_it() -> None:
    parrot = Parrot()
    system = {"role": "system", "content": "Be."}
    conversation = (Turn([system, user("a")], 3), Turn("b", 4), Turn([user("c")], 5))
    samples = run_virtual(hold(parrot, conversation, 7.0))
    first = [system, user("a")]
    second = [*first, {"role": "assistant", "content": "2 heard"}, user("b")]
    third = [*second, {"role": "assistant", "content": "4 heard"}, user("c")]
    assert parrot.asked == [(first, 3, 7.0), (second, 4, None), (third, 5, None)]
    assert [sample.turn for sample in samples] == [0, 1, 2]


def test_behind_a_turn_that_failed_nothing_is_asked() -> None:
    parrot = Parrot(fails_at=1)
    samples = run_virtual(hold(parrot, (Turn("a", 1), Turn("b", 1), Turn("c", 1))))
    assert [sample.error for sample in samples] == ["", "HTTP 500"]


def test_a_single_turn_may_be_anything() -> None:
    parrot = Parrot()
    for said in ("text", [1, 2], [user("a")]):
        run_virtual(hold(parrot, (Turn(said, 1),)))
    assert [prompt for prompt, _, _ in parrot.asked] == ["text", [1, 2], [user("a")]]


def test_answers_part_the_turns() -> None:
    answer = {"role": "assistant", "content": "x"}
    tool = {"role": "tool", "content": "y"}
    assert turns_of([answer, user("a"), answer, answer, tool, user("b"), answer]) == [[user("a")], [tool, user("b")]]
