"""A chat template put on a base model: its tokens, rows for them, where it stops, all of it written down."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intaglio.checkpoints.models import find_model, load_model, load_tokenizer
from intaglio.checkpoints.save import save_model, token_ids
from intaglio.errors import UserError
from intaglio.files import whole_directory
from intaglio.models.resize import grow_vocabulary
from intaglio.text.base_or_instruct import judge_tokenizer, turn_end, write_applied
from intaglio.text.chat_templates import find_template, fitting_template, tokens_of_template
from intaglio.text.jinja import ChatTemplate
from intaglio.text.tokenizer import Tokenizer, read_mapping

__all__ = ["Applied", "apply_template"]

_CHATTING = ("decoder", "recurrent")
_DEFAULT = "chatml"


@dataclass(frozen=True)
class Applied:
    """What was done, as it stands in the new directory.

    Attributes:
        template: its name or file.
        base: the model it was put on, as it was named.
        was: what that model was: base, instruct or unclear.
        ends: what ends an answer from now on, besides what did before.
        added_tokens: new tokens and their ids; their rows are the mean of all others.
        vocab_size: rows before and after.
    """

    template: str
    base: str
    was: str
    ends: str
    added_tokens: dict[str, int]
    vocab_size: tuple[int, int]


def apply_template(name: str | Path, out: Path, template: str | None = None, replace: bool = False) -> Applied:
    """Writes a model with a chat template into the new directory `out`.

    Args:
        name: a model with weights (see `find_model`).
        out: written whole or not at all.
        template: one of ours or a file; None: the one whose tokens the model has, else ChatML.
        replace: put it over a template that the model has already.

    Raises:
        UserError: the model has a template, or is no model to chat with; or the template ends answers in no token.
    """
    path, tokenizer = find_model(name), load_tokenizer(name)
    if tokenizer.chat_template is not None and not replace:
        mend = "keep it, or say --replace: what the model has learned is then written otherwise"
        raise UserError("the model has a chat template of its own", where=str(name), mend=mend)
    template = template or fitting_template(tokenizer) or _DEFAULT
    source = find_template(template)
    special = tokens_of_template(source) or ()
    end = _end_of_turn(tokenizer, source, template)
    chatting = tokenizer.with_template(source, special, [end])
    model = load_model(name)
    if model.spec.kind not in _CHATTING:
        raise UserError(f"a model of kind {model.spec.kind} reads no conversations", where=str(name))
    rows = model.spec.vocab_size
    grow_vocabulary(model, min(tokenizer.num_ids, rows), chatting.num_ids)
    ids = chatting.backend.get_vocab(with_added_tokens=True)
    new = {token: ids[token] for token in special if tokenizer.token_id(token) is None}
    done = Applied(template, str(name), judge_tokenizer(tokenizer).kind, end, new, (rows, model.spec.vocab_size))
    with whole_directory(out) as beside:
        save_model(model, beside, chatting, _other_settings(path))
        write_applied(beside, asdict(done))
    return done


def _end_of_turn(tokenizer: Tokenizer, source: str, name: str) -> str:
    """The token that ends an answer: one that the template names, or one that is special already.

    Raises:
        UserError: nothing does, or what does is no token; or the template fails.
    """
    end = turn_end(ChatTemplate(source, tokenizer.special_tokens, name=name))
    known = {*(tokens_of_template(source) or ()), *map(tokenizer.token, tokenizer.special_token_ids)}
    ends = [token for token in known if token and end.startswith(token)]
    if not ends:
        what = f"answers end in {end!r}, which is no special token" if end else "nothing stands behind an answer"
        raise UserError(what, where=name, mend="name the token that ends one in the template: {# tokens: ... #}")
    return max(ends, key=len)


def _other_settings(path: Path) -> dict[str, Any]:
    """The model's generation settings but for its token ids, which the tokenizer knows."""
    settings = read_mapping(path / "generation_config.json") if path.is_dir() else {}
    return {key: value for key, value in settings.items() if key not in token_ids(None, {})}
