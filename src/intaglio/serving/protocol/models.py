"""`/v1/models`, and the routes that load adapters and show the tokenizer: what is asked and what is answered."""

from typing import Annotated, Any, Literal

from pydantic import Field

from intaglio.serving.protocol.chat import MessageBody, ToolBody
from intaglio.serving.protocol.common import Answer, Body, Listed, TokenIds

__all__ = [
    "DetokenizeBody",
    "Detokenized",
    "LoadAdapterBody",
    "ModelCard",
    "ModelList",
    "TokenizeBody",
    "Tokenized",
    "TokenizerInfo",
    "UnloadAdapterBody",
    "Unloaded",
]


class ModelCard(Answer):
    """A model or an adapter that is served; `root` is where it came from, `parent` the model that an adapter is for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(Answer):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class LoadAdapterBody(Body):
    """A PEFT directory to load, by vLLM's names for these things.

    Attributes:
        lora_name: what requests will call it: letters, digits, `_` and `-`.
        lora_path: in the folder that adapters are loaded from; relative to it, or absolute.
    """

    lora_name: Annotated[str, Field(pattern=r"^[\w-]+$", max_length=256)]
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]


class UnloadAdapterBody(Body):
    """An adapter to let go."""

    lora_name: str


class Unloaded(Answer):
    """The name is free again."""

    id: str
    object: Literal["model"]
    deleted: Literal[True]


class TokenizeBody(Body):
    """A text or a conversation to turn into token ids, as completions and chat do.

    Attributes:
        prompt: a text; or
        messages: a conversation.
        add_special_tokens: whether a text gets what the tokenizer adds around it.
        return_token_strs: whether the tokens are told as the vocabulary spells them.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Listed[MessageBody], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[Listed[ToolBody], Field(max_length=128)] | None = None
    return_token_strs: bool = False


class Tokenized(Answer):
    """Token ids, how many, and how many the model reads at most."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeBody(Body):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: TokenIds


class Detokenized(Answer):
    """The text, special tokens and all."""

    prompt: str


class TokenizerInfo(Answer):
    """What a client needs to know of the tokenizer."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int
