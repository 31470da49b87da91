"""Adapters that are served beside the model they are for: what the API's own process needs of one.

The weights are for the engine, whose process reads them. What is read here turns a request into tokens and back: a
directory may bring the chat template, the tokenizer and the sampling defaults that its adapter was trained for.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate
from intaglio.text.tokenizer import Tokenizer, read_eos_ids, read_signs

__all__ = ["ServedAdapter", "ServedBase", "check_free", "find_inside", "read_adapter"]

_OUTSIDE = "no folder inside the one that adapters are loaded from"


@dataclass(frozen=True)
class ServedBase:
    """What requests for the model itself are answered with, and those for an adapter that brings nothing of its own.

    Attributes:
        tokenizer: of the model.
        template: in place of the tokenizer's own chat template.
        defaults: fields of `SamplingParams` for requests that do not set them.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServedAdapter(ServedBase):
    """What requests for one adapter are answered with.

    Attributes:
        name: what clients call it.
        root: the PEFT directory.
        ends: tokens that end its texts, and not the model's own.
        created: when it was loaded, in seconds since 1970.
    """

    name: str = ""
    root: str = ""
    ends: frozenset[int] = frozenset()
    created: int = field(default_factory=lambda: int(time.time()))


def check_free(name: str, models: Collection[str], adapters: Collection[str] = ()) -> None:
    """Refuses what an adapter cannot be called beside these models and adapters.

    Raises:
        UserError: no name for an adapter, or one that is taken.
    """
    from intaglio.adapters.attach import check_name

    check_name(name)
    if name in models:
        raise UserError(f"{name!r} is what the model itself is called", mend="give the adapter another name")
    if name in adapters:
        raise UserError(f"there is an adapter {name!r} already", mend="unload it first")


def read_adapter(name: str, folder: Path, base: ServedBase) -> ServedAdapter:
    """What a PEFT directory says of requests, without its weights.

    A chat template that it brings comes before all others: it is what the adapter was trained with.

    Raises:
        UserError: no adapter, or the tokenizer of another vocabulary.
    """
    from intaglio.adapters.peft_files import config_of_adapter
    from intaglio.engine.generation_config import stated_fields

    config_of_adapter(folder)
    tokenizer = _tokenizer(folder, base.tokenizer)
    return ServedAdapter(
        tokenizer,
        template=base.template if tokenizer.chat_templates == base.tokenizer.chat_templates else None,
        defaults={**base.defaults, **stated_fields(folder)},
        name=name,
        root=str(folder),
        ends=tokenizer.eos_token_ids.union(read_eos_ids(folder)) - base.tokenizer.eos_token_ids,
    )


def _tokenizer(folder: Path, base: Tokenizer) -> Tokenizer:
    """The adapter's, or the base's own where both are one: a tokenizer may take 100 MB."""
    if not (folder / "tokenizer.json").is_file():
        template = read_signs(folder)[0].get("default")
        return base if template in (None, base.chat_template) else base.with_template(template)
    own = Tokenizer.from_directory(folder)
    if _vocabulary(own) != _vocabulary(base):
        what = f"its tokenizer has {own.vocab_size} tokens that are not the {base.vocab_size} of the model"
        raise UserError(what, where=str(folder), mend="merge it (`intaglio merge`) and serve the merged model")
    own.chat_templates = own.chat_templates or base.chat_templates
    return base if _is_one(own, base) else own


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    vocabulary: dict[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
    return vocabulary


def _is_one(own: Tokenizer, base: Tokenizer) -> bool:
    alike = own.special_tokens == base.special_tokens and own.chat_templates == base.chat_templates
    ends = own.eos_token_ids <= base.eos_token_ids
    return alike and ends and own.backend.to_str() == base.backend.to_str()


def find_inside(folder: Path, asked: str) -> Path:
    """The directory that a client names, with every symbolic link followed.

    Args:
        folder: what may be loaded lies in here.
        asked: relative to `folder`, or absolute.

    Raises:
        UserError: it, or something in it, lies elsewhere; the same words whether anything is there or not.
    """
    try:
        root, found = folder.resolve(), (folder / asked).resolve()
        inside = found.is_relative_to(root) and found.is_dir()
        if inside and all(file.resolve().is_relative_to(root) for file in found.rglob("*")):
            return found
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long, a NUL
        pass
    raise UserError(_OUTSIDE, where="lora_path")
