"""What can be wrong with a row once it is rendered and encoded, and with the template that rendered it."""

from collections.abc import Iterator

from intaglio.data.examples import Example
from intaglio.data.formats import Sample
from intaglio.data.row_checks import Found, contents
from intaglio.text.chat_templates import WELL_KNOWN_TOKENS
from intaglio.text.tokenizer import Tokenizer

__all__ = ["check_ids", "check_learned", "check_rendering", "first_difference", "template_notes"]


def check_ids(example: Example, tokenizer: Tokenizer, context: int | None) -> Iterator[Found]:
    """Too many tokens, a special one twice in a row."""
    ids = example.ids
    if context is not None and len(ids) > context:
        yield "too long", f"has {len(ids)} tokens, {len(ids) - context} more than fit"
    special = tokenizer.special_token_ids - {tokenizer.unk_token_id}
    for token in sorted(special & {int(i) for i in ids[1:][ids[1:] == ids[:-1]]}):
        yield "doubled token", f"has {tokenizer.token(token)} twice in a row"


def check_learned(example: Example) -> Iterator[Found]:
    """No token to learn."""
    if not example.supervised.any():
        yield "nothing to learn", "has no supervised token"


def check_rendering(sample: Sample, rendered: str) -> Iterator[Found]:
    """Messages that the template leaves out or changes."""
    for name, text in contents(sample):
        if text.strip() not in rendered:
            yield "template", f"{name} is left out or changed"


def template_notes(sample: Sample, rendered: str, example: Example, tokenizer: Tokenizer) -> Iterator[str]:
    """Signs that the template is another model's: marks that are no tokens, an end at which the model does not stop."""
    around = rendered
    for _, text in contents(sample):
        around = around.replace(text.strip(), "", 1)
    for mark in sorted(mark for mark in WELL_KNOWN_TOKENS if mark in around):
        if tokenizer.token_id(mark) is None:
            yield f"the template writes {mark}, which is no token of the model's"
    learned = example.ids[example.supervised]
    if len(learned) and int(learned[-1]) not in tokenizer.eos_token_ids:
        end = tokenizer.token(int(learned[-1]))
        yield f"answers end in {end!r}, at which the model does not stop"


def first_difference(text: str, own: str) -> str:
    """In words, where `text` leaves the model's `own`."""
    pairs = enumerate(zip(text, own, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(text), len(own)))
    shown = slice(max(0, start - 10), start + 20)
    here, there = (repr(one[shown]) for one in (text, own))
    return f"which writes {there} where this one writes {here}"
