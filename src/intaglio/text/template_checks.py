"""Whether a chat template, a tokenizer and a model fit each other."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from intaglio.errors import UserError
from intaglio.text.base_or_instruct import EXCHANGE, turn_end
from intaglio.text.chat import Rendered, chat_template_of, render_chat
from intaglio.text.chat_templates import WELL_KNOWN_TOKENS, load_template, template_names, tokens_of_template
from intaglio.text.jinja import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = ["SAMPLES", "TemplateCheck", "check_template", "likeness"]

SAMPLES = (
    EXCHANGE,
    [*EXCHANGE, {"role": "user", "content": "And how large?"}, {"role": "assistant", "content": "As a thumb."}],
    [{"role": "system", "content": "Answer briefly."}, *EXCHANGE],
)
"""Conversations that templates are told apart by."""

_MARK = re.compile(r"<\|[^<>|\s]+\|>")


@dataclass
class TemplateCheck:
    """What was found.

    Attributes:
        problems: what does not fit, so that training or answers go wrong.
        notes: what is worth knowing.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_template(tokenizer: Tokenizer, rows: int | None = None) -> TemplateCheck:
    """Looks at a tokenizer's own template.

    Args:
        tokenizer: with its template.
        rows: tokens the model has embeddings for, if known.
    """
    check = TemplateCheck(list(_beyond(tokenizer, rows)))
    try:
        template = chat_template_of(tokenizer)
        rendered = render_chat(tokenizer, SAMPLES[1])
        end = turn_end(template)
    except UserError as error:
        check.problems.append(error.what)
        return check
    check.problems += _no_tokens(rendered.text, tokenizer)
    check.problems += _no_end(end, tokenizer)
    check.notes += _no_mask(rendered)
    if (bos := tokenizer.bos_token) and tokenizer.adds_bos and rendered.text.startswith(bos):
        check.notes.append(f"template and tokenizer both write {bos}: here it comes once, elsewhere perhaps twice")
    check.notes.append(likeness(template, tokenizer))
    return check


def likeness(template: ChatTemplate, tokenizer: Tokenizer) -> str:
    """In words, which template of ours writes the same."""
    texts = _texts(template)
    alike = {}
    for name in template_names():
        ours = _texts(ChatTemplate(load_template(name), tokenizer.special_tokens))
        alike[name] = sum(a == b for a, b in zip(texts, ours, strict=True) if a is not None)
    best = max(alike, key=lambda name: alike[name])
    if not alike[best]:
        return "the template is like none of ours"
    share = "" if alike[best] == len(texts) else f" in {alike[best]} of {len(texts)} conversations"
    return f"the template writes what {best} writes{share}"


def _texts(template: ChatTemplate) -> list[str | None]:
    """What it makes of the samples; None of one that it refuses."""
    texts: list[str | None] = []
    for sample in SAMPLES:
        try:
            texts.append(template.render(sample))
        except UserError:
            texts.append(None)
    return texts


def _beyond(tokenizer: Tokenizer, rows: int | None) -> Iterator[str]:
    if rows is None:
        return
    if tokenizer.num_ids > rows:
        yield f"the tokenizer has ids up to {tokenizer.num_ids - 1}, the model has embeddings for {rows} tokens"
    for stop in sorted(stop for stop in tokenizer.eos_token_ids if stop >= rows):
        yield f"the stop token {stop} is beyond the model's {rows} tokens"


def _no_tokens(text: str, tokenizer: Tokenizer) -> Iterator[str]:
    """Marks around turns that would be read letter by letter; a template that names its tokens has no others."""
    named = tokens_of_template(tokenizer.chat_template or "")
    marks = {*WELL_KNOWN_TOKENS, *_MARK.findall(text)} if named is None else set(named)
    for mark in sorted(mark for mark in marks if mark in text):
        if tokenizer.token_id(mark) is None:
            yield f"the template writes {mark}, which is no token of the model's"


def _no_end(end: str, tokenizer: Tokenizer) -> Iterator[str]:
    stops = sorted(filter(None, map(tokenizer.token, tokenizer.eos_token_ids)))
    if not any(end.startswith(stop) for stop in stops):
        behind = f"answers end in {end!r}" if end else "nothing stands behind an answer"
        yield f"{behind}, and the model stops at {', '.join(stops) or 'nothing'}"


def _no_mask(rendered: Rendered) -> Iterator[str]:
    try:
        _ = rendered.assistant_mask
    except UserError as error:
        yield f"what the assistant wrote cannot be told: {error.what}"
