"""The tokenizer and the chat template that an option names, for verbs that run no model."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intaglio.text.chat import ChatTemplate
    from intaglio.text.tokenizer import Tokenizer

__all__ = ["chat_template", "tokenizer_of"]


def tokenizer_of(model: str) -> "Tokenizer":
    """The tokenizer of a pulled name, a directory or a GGUF file.

    Raises:
        UserError: see `load_tokenizer`.
    """
    from intaglio.text.tokenizer import Tokenizer

    if (Path(model) / "tokenizer.json").is_file():  # a directory needs no torch
        return Tokenizer.from_directory(model)
    from intaglio.checkpoints.models import load_tokenizer

    return load_tokenizer(model)


def chat_template(name: str, tokenizer: "Tokenizer") -> "ChatTemplate":
    """A template of ours or a file, with the tokenizer's special tokens.

    Raises:
        UserError: neither, or no Jinja.
    """
    from intaglio.text.chat import ChatTemplate
    from intaglio.text.chat_templates import find_template

    return ChatTemplate(find_template(name), tokenizer.special_tokens, name=name)
