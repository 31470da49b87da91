"""The roads of a task, walked: each once, its results kept, so that whoever stops us finds what is done.

FOLDER/
    task.yaml       what is measured
    roads/          a file of results for each road that is done
    rows/, runs/    what was trained on, and the runs, which are gone on with where they were stopped
    documents/, index/
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from intaglio.advice.outcome import Outcome
from intaglio.advice.prompts import Messages, behind_examples, behind_passages
from intaglio.advice.roads import ROADS, Road
from intaglio.advice.speaker import Reply, Speaker
from intaglio.advice.task import Case, TaskSpec
from intaglio.advice.workshop import Say, Workshop
from intaglio.errors import UserError
from intaglio.evaluation.metrics import exact_match, f1, normalise
from intaglio.files import read_json, whole_file, write_json
from intaglio.specs import load_yaml

__all__ = ["measure", "score"]

Ask = Callable[[Case], Messages]


def measure(workshop: Workshop, folder: Path, say: Say) -> list[Outcome]:
    """Walks the task's roads that are not in `folder` yet.

    Raises:
        UserError: the folder has another task.
        KeyboardInterrupt: a signal ended it; the roads that were done are kept, and training goes on where it was.
    """
    _claim(folder, workshop.task)
    roads = [road for road in ROADS if road.name in workshop.task.roads]
    found: list[Outcome] = []
    for place, road in enumerate(roads, 1):
        file = folder / "roads" / f"{road.name.replace(' ', '-')}.json"
        if not file.exists():
            say(f"road {place}/{len(roads)}: {road.name}")
            write_json(file, asdict(_walk(road, workshop, found)))
        found.append(Outcome(**read_json(file)))
    return found


def score(metric: str, text: str, wanted: str) -> float:
    """How right an answer is, 0 to 1; see `TaskSpec`."""
    match metric:
        case "exact":
            return float(exact_match([text], [wanted])[0])
        case "contains":
            return float(normalise(wanted) in normalise(text))
        case _:
            return f1(text, [wanted])


def _claim(folder: Path, task: TaskSpec) -> None:
    file = folder / "task.yaml"
    if not file.exists():
        with whole_file(file) as beside:
            beside.write_text(yaml.safe_dump(task.plain(), sort_keys=False, allow_unicode=True), encoding="utf-8")
    elif load_yaml(file) != task.plain():
        raise UserError("holds measurements of another task", where=str(file), mend="take another --out")


def _walk(road: Road, workshop: Workshop, before: Sequence[Outcome]) -> Outcome:
    task, base = workshop.task, workshop.base()
    shots = _best(task.shots, workshop, base, _with_examples) if road.examples else 0
    passages = _passages(workshop, base, before) if road.retrieval else 0
    ask = _with_passages(workshop, base, passages) if passages else _with_examples(workshop, base, shots)
    training, speaker = 0.0, base
    if road.training != "none":
        training = workshop.train(road, [(ask(case), case.answer) for case in workshop.sides.train])
        speaker = workshop.trained(road)
    replies, seconds = _answers(speaker, ask, workshop.sides.test, task.timed)
    wanted = [case.answer for case in workshop.sides.test]
    return Outcome(
        name=road.name,
        scores=[score(task.metric, reply.text, right) for reply, right in zip(replies, wanted, strict=True)],
        texts=[reply.text for reply in replies],
        seconds=seconds,
        prompt_tokens=float(np.mean([reply.prompt_tokens for reply in replies])),
        answer_tokens=float(np.mean([reply.answer_tokens for reply in replies])),
        training_seconds=training,
        index_seconds=workshop.library.seconds if road.retrieval else 0.0,
        shots=shots,
        passages=passages,
    )


def _with_examples(workshop: Workshop, base: Speaker, shots: int) -> Ask:
    examples = workshop.sides.train[workshop.task.chosen_on :][:shots]
    return lambda case: behind_examples(case, examples)


def _with_passages(workshop: Workshop, base: Speaker, passages: int) -> Ask:
    find, most = workshop.library.find, workshop.task.passage_tokens
    return lambda case: behind_passages(case, find(case, passages), base.count, most)


def _passages(workshop: Workshop, base: Speaker, before: Sequence[Outcome]) -> int:
    """How many stand in a prompt: as many as on the road before, if one had some."""
    chosen = next((one.passages for one in before if one.passages), 0)
    return chosen or _best(workshop.task.passages, workshop, base, _with_passages)


def _best(choices: Sequence[int], workshop: Workshop, base: Speaker, asker: Callable[..., Ask]) -> int:
    """The choice with which the model does best on the first rows of the train side; of equals the smallest."""
    cases = workshop.sides.train[: workshop.task.chosen_on]

    def quality(choice: int) -> float:
        ask = asker(workshop, base, choice)
        replies = base.answer([ask(case) for case in cases])
        return sum(score(workshop.task.metric, r.text, case.answer) for r, case in zip(replies, cases, strict=True))

    return max(sorted(choices), key=quality) if len(choices) > 1 else choices[0]


def _answers(speaker: Speaker, ask: Ask, cases: Sequence[Case], timed: int) -> tuple[list[Reply], list[float]]:
    """All answers; the first `timed` one after the other, from the question to the last token, with their seconds."""
    replies, seconds = [], []
    for case in cases[:timed]:
        start = time.perf_counter()
        replies += speaker.answer([ask(case)])
        seconds.append(time.perf_counter() - start)
    return [*replies, *speaker.answer([ask(case) for case in cases[timed:]])], seconds
