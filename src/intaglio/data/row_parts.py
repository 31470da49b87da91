"""A row as the samples it holds: one to learn from, or one for each of the answers that it compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intaglio.data.branches import fork, written_out
from intaglio.data.examples import Example, MaskPolicy, encode_sample
from intaglio.data.fields import blamed_on, tools_of
from intaglio.data.formats import Format, Sample, to_sample
from intaglio.data.preference_encoding import encode_prompt
from intaglio.data.preferences import Preference, Prompt, Said, Tools, answers_of, judged_of, preferences_of, prompt_of
from intaglio.data.readers import Row
from intaglio.data.row_checks import all_text
from intaglio.text.tokenizer import Tokenizer

__all__ = ["RowParts", "encode_parts", "parts_of"]


@dataclass(frozen=True)
class RowParts:
    """What one row holds.

    Attributes:
        samples: by the key of the answer; all share their prompt.
        compared: whether the answers are compared or judged, and do not teach what they say.
        answered: whether there is an answer at all.
        pairs: better and worse answers.
        label: whether the one answer was wanted, where somebody judged it.
    """

    samples: Mapping[str, Sample]
    compared: bool = False
    answered: bool = True
    pairs: tuple[Preference, ...] = ()
    label: bool | None = None

    @property
    def text(self) -> str:
        """All the row says, a prompt once for each of its answers."""
        return "\n".join(map(all_text, self.samples.values()))


def parts_of(row: Row, format: Format) -> RowParts:
    """The parts of a row of that format.

    Raises:
        UserError: as the format's own reader.
    """
    match format:
        case Format.PREFERENCE | Format.RANKED:
            return RowParts(_sides(row), compared=True, pairs=tuple(preferences_of(row)))
        case Format.UNPAIRED:
            return RowParts(_sides(row), compared=True, label=judged_of(row).label)
        case Format.PROMPT:
            alone = prompt_of(row)
            return RowParts({"prompt": _sample(row.where, alone.prompt, None, alone.tools)}, answered=False)
        case _:
            return RowParts({"": to_sample(row, format)})


def encode_parts(parts: RowParts, tokenizer: Tokenizer, policy: MaskPolicy) -> list[Example]:
    """The ids of each part as training would have them, prompt and answer in one; of a prompt alone nothing is learned.

    Raises:
        UserError: as `encode_sample` and `encode_preference`.
    """
    samples = list(parts.samples.values())
    if not parts.answered:
        return [_prompt_alone(samples[0], tokenizer, policy)]
    if parts.compared:
        return _forked(samples, tokenizer, policy)
    return [encode_sample(sample, tokenizer, policy) for sample in samples]


def _sides(row: Row) -> dict[str, Sample]:
    assert isinstance(row.value, dict)
    prompt, answers = answers_of(row)
    tools = tools_of(row.value)
    return {name: _sample(row.where, prompt, answer, tools) for name, answer in answers.items()}


def _sample(where: str, prompt: Said, answer: Said | None, tools: Tools) -> Sample:
    if isinstance(prompt, str):
        return Sample("completion", where, prompt=prompt, completion=answer)
    turns = (*prompt, *(answer or ()))
    return Sample("chat", where, messages=turns, prompt=prompt, completion=answer, tools=tools)


def _forked(samples: Sequence[Sample], tokenizer: Tokenizer, policy: MaskPolicy) -> list[Example]:
    first = samples[0]
    assert first.prompt is not None
    with blamed_on(first.where):
        answers = [sample.completion for sample in samples if sample.completion is not None]
        forked = fork(first.prompt, answers, first.tools, tokenizer, policy)
    unlearned = np.zeros(len(forked.prompt), dtype=np.bool_)
    return [
        Example(np.concatenate([forked.prompt, ids]), np.concatenate([unlearned, written_out(ids, mask)]), first.where)
        for ids, mask in forked.sides
    ]


def _prompt_alone(sample: Sample, tokenizer: Tokenizer, policy: MaskPolicy) -> Example:
    assert sample.prompt is not None
    ids = encode_prompt(Prompt(sample.where, sample.prompt, sample.tools), tokenizer, policy).prompt
    return Example(ids, np.zeros(len(ids), dtype=np.bool_), sample.where)
