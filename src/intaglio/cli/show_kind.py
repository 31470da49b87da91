"""Base or instruct: what `intaglio show` says of a model's files, and with --probe of its weights."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.evaluation.probe import Probe

__all__ = ["kind_data", "print_kind"]


def kind_data(folder: Path | None, probe: bool) -> dict[str, Any] | None:
    """What the model in `folder` is and how we know; None of a preset, or of a model without a tokenizer.

    Raises:
        UserError: there are no weights to probe.
    """
    if folder is None or not (folder / "tokenizer.json").is_file():
        if probe:
            raise UserError("there is nothing to probe", where="--probe", mend="name a directory or a pulled model")
        return None
    from intaglio.text.base_or_instruct import judge_directory

    verdict = judge_directory(folder)
    data: dict[str, Any] = {"kind": verdict.kind, "reasons": list(verdict.reasons), "probe": None}
    if probe:
        template, found = _probe(folder)
        data |= {"kind": found.kind, "probe": {"template": template, **asdict(found)}}
        data["reasons"].append(_in_words(template, found))
    return data


def print_kind(console: Console, data: dict[str, Any] | None) -> None:
    """A section of the report; nothing where there is nothing to say."""
    if data is None:
        return
    names = {"base": "A base model", "instruct": "An instruct model", "unclear": "Base or instruct: unclear"}
    reasons = Group(*(Text(reason) for reason in data["reasons"]))
    console.print(Text(names[data["kind"]], style="bold"))
    console.print(Padding(reasons, (0, 0, 1, 2)))


def _probe(folder: Path) -> "tuple[str, Probe]":
    """Under the model's own template; without one, under the one of ours that suits its tokens."""
    from intaglio.checkpoints.models import load_model, load_tokenizer
    from intaglio.evaluation.probe import probe_turn_ends
    from intaglio.text.chat import ChatTemplate
    from intaglio.text.chat_templates import fitting_template, load_template

    tokenizer = load_tokenizer(folder)
    model = load_model(folder)
    if tokenizer.chat_template is not None:
        return "its own template", probe_turn_ends(model, tokenizer)
    name = fitting_template(tokenizer) or "alpaca"
    template = ChatTemplate(load_template(name), tokenizer.special_tokens, name=name)
    return name, probe_turn_ends(model, tokenizer, template)


def _in_words(template: str, probe: "Probe") -> str:
    return (
        f"behind a complete answer under {template} the end of the turn has {probe.logprob:.1f} nats in the mean "
        f"(chance {probe.uniform:.1f}), and is the likeliest token in {probe.ended} of {probe.asked}"
    )
