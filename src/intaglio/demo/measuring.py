"""The stages that pull and measure: a real model, how fast it writes, and how often it is right before and after."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from intaglio.demo.data import write_rows
from intaglio.demo.stage import Desk, Found
from intaglio.evaluation.intervals import paired_difference
from intaglio.evaluation.results import Results, read_results
from intaglio.lineage.resolve import resolve_spec
from intaglio.specs import DecoderSpec

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM

__all__ = ["MODEL", "after", "before", "gain", "pull_all", "right", "told"]

MODEL: Final = "smollm2-135m-instruct"
_QUESTION: Final = "What is photosynthesis?"
_RESULTS: Final = "eval"


def pull_all(desk: Desk) -> Found:
    """The model, and the rows that it is trained on and asked about."""
    import intaglio.checkpoints.pull as pulling

    path = pulling.pull(MODEL, say=desk.say, progress=True)
    _, spec, _ = resolve_spec(str(path))
    assert isinstance(spec, DecoderSpec)
    files = write_rows(desk, desk.folder / "pull", desk.sized(200, 60), 4000)
    return {
        "path": str(path),
        **{name: str(file) for name, file in files.items()},
        "parameters": spec.num_parameters(),
        "layers": spec.num_layers,
        "kv_bytes_per_token": spec.kv_bytes_per_token("bfloat16"),
    }


def before(desk: Desk) -> Found:
    """The model as it was pulled: tokens a second, and the exam."""
    from intaglio.engine.llm import LLM
    from intaglio.engine.sampling_params import SamplingParams

    llm = LLM(desk.found["pull"]["path"])
    params = SamplingParams(temperature=0, max_tokens=desk.sized(64, 32))
    answer = "".join(llm.chat([{"role": "user", "content": _QUESTION}], params))
    speed = llm.timing.tokens_per_second
    return {"question": _QUESTION, "answer": answer, "tokens_per_second": speed, **_examined(desk, llm, "before")}


def after(desk: Desk) -> Found:
    """The trained model: the exam again, and the gain on the same questions."""
    from intaglio.engine.llm import LLM

    found = _examined(desk, LLM(desk.found["merge"]["path"]), "after")
    first, second = (right(desk.folder / stage / _RESULTS) for stage in ("before", "after"))
    return {**found, "gain": gain(first, second)}


def gain(first: Mapping[str, float], second: Mapping[str, float]) -> Found:
    """How much more is right the second time, with its 95 % interval.

    Args:
        first, second: item -> 1 for a right answer; the second has every item of the first.
    """
    difference, low, high = paired_difference([second[name] for name in first], [*first.values()])
    return {"difference": difference, "low": low, "high": high}


def _examined(desk: Desk, llm: "LLM", stage: str) -> Found:
    """The exam, by the likelihood of each answer in a chat: what `intaglio eval MODEL --chat --tasks FILE` says."""
    from intaglio.evaluation.runs import Settings, evaluate, units_of
    from intaglio.evaluation.subjects.local import LocalSubject
    from intaglio.evaluation.tasks.own_rows import own_rows

    settings = Settings(chat=True)
    task = own_rows(Path(desk.found["pull"]["exam"]), "headlines")
    subject = LocalSubject(llm.model, llm.tokenizer, llm.complete, name=stage)
    return told(evaluate(units_of([task], settings), subject, settings, desk.folder / stage / _RESULTS))


def told(results: Results) -> Found:
    """The share of right answers with its interval, and how many were asked."""
    (result,) = results.tasks.values()
    score = result.metrics["acc"]
    return {"score": {"mean": score.mean, "low": score.low, "high": score.high}, "rows": score.n}


def right(folder: Path) -> dict[str, float]:
    """Item -> 1 for a right answer."""
    (result,) = read_results(folder).tasks.values()
    return {outcome.id: outcome.scores["acc"] for outcome in result.outcomes}
