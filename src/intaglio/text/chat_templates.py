"""The chat templates that ship with us: the formats of well-known families, as Jinja files in `templates/`.

A template says in a comment, `{# tokens: ... #}`, which special tokens it writes besides BOS and EOS, or `none`; a file
of the user's own may do the same.
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from intaglio.errors import UserError, nearest
from intaglio.files import read_text
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "WELL_KNOWN_TOKENS",
    "about_template",
    "find_template",
    "fitting_template",
    "load_template",
    "stand_in_tokenizer",
    "template_file",
    "template_names",
    "tokens_of_template",
]

WELL_KNOWN_TOKENS: Final = frozenset(
    "<|im_start|> <|im_end|> <|endoftext|> <|eot_id|> <|begin_of_text|> <|end_of_text|> <|start_header_id|> "
    "<|end_header_id|> <start_of_turn> <end_of_turn> <bos> <eos> [INST] [/INST] <<SYS>> <</SYS>> <|user|> "
    "<|assistant|> <|system|> <|end|> <s> </s>".split()
)
"""What chat templates of well-known families write around turns, and what begins and ends their texts."""

_FOLDER = files("intaglio.text") / "templates"


def template_names() -> list[str]:
    """Names `load_template` knows."""
    return sorted(file.name.removesuffix(".jinja") for file in _FOLDER.iterdir() if file.name.endswith(".jinja"))


def load_template(name: str) -> str:
    """The Jinja source of a chat template of ours.

    Raises:
        UserError: there is none of that name; says which are near.
    """
    return read_text(_file_of_ours(name))


def find_template(name: str) -> str:
    """The source of a template file, or of a template of ours.

    Raises:
        UserError: neither; or the file cannot be read.
    """
    return read_text(template_file(name))


def template_file(name: str) -> Path:
    """The file of the user's own that is meant, or else the one of a template of ours.

    Raises:
        UserError: neither.
    """
    return Path(name) if Path(name).is_file() else _file_of_ours(name)


def _file_of_ours(name: str) -> Path:
    if name not in template_names():
        raise UserError(f"there is no chat template {name!r}", mend=nearest(name, template_names()))
    return Path(str(_FOLDER / f"{name}.jinja"))


def tokens_of_template(source: str) -> tuple[str, ...] | None:
    """The special tokens that a template says it writes, in the order in which they would get their ids.

    None where it does not say, as most that come with models do not.
    """
    found = re.search(r"\{#-?\s*tokens:(.*?)-?#\}", source, flags=re.DOTALL)
    if found is None:
        return None
    tokens = tuple(found[1].split())
    return () if tokens == ("none",) else tokens


def about_template(source: str) -> str:
    """What a template's first comment says of it, in one line."""
    found = re.match(r"\s*\{#-?(.*?)-?#\}", source, flags=re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def fitting_template(tokenizer: Tokenizer) -> str | None:
    """The template of ours of which a tokenizer has all tokens, and the most of them; None where there is none.

    Base models often carry the tokens of the instruct models to be made from them.
    """
    tokens = {name: tokens_of_template(load_template(name)) or () for name in template_names()}
    fitting = [
        name for name in tokens if tokens[name] and all(tokenizer.token_id(token) is not None for token in tokens[name])
    ]
    return max(fitting, key=lambda name: len(tokens[name]), default=None)


def stand_in_tokenizer(source: str) -> Tokenizer:
    """A tokenizer to look at a template with where there is no model: a token for each byte and each special token.

    BOS is `<s>` and EOS `</s>`; special are the tokens that the template names, else those that are well known.
    """
    vocab = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    named = tokens_of_template(source)
    backend.add_special_tokens(sorted(WELL_KNOWN_TOKENS) if named is None else list(named))
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"}, chat_templates=source)
