"""Base or instruct? What a model's files say of it: its chat template, and the tokens at which it stops.

Neither is proof. Some base models carry the template of the instruct model made from them; what they lack is the habit
of stopping behind an answer, so that their own settings do not stop there either. Where the files contradict each
other the answer is "unclear", and a probe of the weights (`evaluation.probe`) can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from intaglio.errors import UserError
from intaglio.files import write_json
from intaglio.text.chat_templates import load_template, template_names, tokens_of_template
from intaglio.text.jinja import ChatTemplate
from intaglio.text.tokenizer import Tokenizer, read_mapping, read_signs

__all__ = ["EXCHANGE", "Verdict", "judge_directory", "judge_tokenizer", "read_applied", "turn_end", "write_applied"]

APPLIED_FILE: Final = "intaglio_template.json"
_ANSWER = "Twelve of them."
EXCHANGE = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": _ANSWER}]
"""The shortest conversation."""


@dataclass(frozen=True)
class Verdict:
    """What a model is, and how we know.

    Attributes:
        kind: base, instruct, or unclear where the signs contradict each other.
        reasons: what says so, a sentence each.
    """

    kind: Literal["base", "instruct", "unclear"]
    reasons: tuple[str, ...]


def judge_directory(folder: Path) -> Verdict:
    """What the files of a model directory say; its vocabulary is not read.

    Raises:
        UserError: a file is not what it should be.
    """
    templates, named, stops = read_signs(folder)
    return _of_record(read_applied(folder)) or _judge(templates.get("default"), named, stops)


def judge_tokenizer(tokenizer: Tokenizer) -> Verdict:
    """The same of a tokenizer that is at hand: a GGUF file's, say."""
    stops = frozenset(filter(None, map(tokenizer.token, tokenizer.eos_token_ids)))
    return _judge(tokenizer.chat_template, tokenizer.special_tokens, stops)


def turn_end(template: ChatTemplate) -> str:
    """What a template writes behind an answer, white space aside: `<|im_end|>`, say, or nothing.

    Raises:
        UserError: it cannot write one question and its answer.
    """
    return template.render(EXCHANGE).rpartition(_ANSWER)[2].strip()


def write_applied(folder: Path, record: Mapping[str, Any]) -> None:
    """Records that a template was put on a model whose weights have not learned it; training leaves the record out.

    Args:
        folder: the model's.
        record: `template`, its name; `was`, the kind of model before; `added_tokens`, the new ids by token.
    """
    write_json(folder / APPLIED_FILE, record)


def read_applied(folder: Path) -> dict[str, Any]:
    """That record; empty where there is none.

    Raises:
        UserError: it is no JSON object.
    """
    return read_mapping(folder / APPLIED_FILE)


def _of_record(applied: Mapping[str, Any]) -> Verdict | None:
    """The verdict over a model whose template was put on it, if it was."""
    if not applied:
        return None
    reason = f"its chat template ({applied['template']}) was put on by `intaglio template apply`; it has not learned it"
    return (
        Verdict("base", (reason,))
        if applied["was"] == "base"
        else Verdict("unclear", (reason, f"it was {applied['was']} before"))
    )


def _judge(source: str | None, named: Mapping[str, str], stops: frozenset[str]) -> Verdict:
    at = ", ".join(sorted(stops)) or "no token"
    if source is None:
        ends = sorted(stops & _turn_ends())
        if ends:
            return Verdict("unclear", ("it has no chat template", f"yet it stops at {ends[0]}, which ends a turn"))
        return Verdict("base", ("it has no chat template", f"it stops at {at}, which ends no turn"))
    has = "it has a chat template"
    try:
        end = turn_end(ChatTemplate(source, named))
    except UserError as error:
        return Verdict("unclear", (has, f"which cannot write one question and its answer ({error.what})"))
    if found := [stop for stop in stops if end.startswith(stop)]:
        return Verdict("instruct", (has, f"it stops at {found[0]}, which ends an answer there"))
    behind = f"answers end in {end!r} there" if end else "nothing stands behind an answer there"
    return Verdict("unclear", (has, f"{behind}, and it stops at {at}, as base models with a borrowed template do"))


def _turn_ends() -> set[str]:
    """The tokens of our templates with which an answer ends."""
    sources = [source for source in map(load_template, template_names()) if tokens_of_template(source)]
    nothing = {"bos_token": "", "eos_token": ""}  # EOS ends every text, and so tells nothing
    return {turn_end(ChatTemplate(source, nothing)) for source in sources} - {""}
