"""What answering a request takes: the engine, the tokenizer, and what the server was told when it was started."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intaglio.engine.interface import Pooling
from intaglio.errors import UserError
from intaglio.retrieval.answer import Grounding
from intaglio.serving.client import AsyncEngine, EngineUnavailable
from intaglio.serving.errors import ApiError
from intaglio.serving.limits import Admission, Limits
from intaglio.text.chat import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Service"]


@dataclass
class Service:
    """One served model.

    Attributes:
        engine: runs it.
        tokenizer: of the model.
        names: what clients may call it; the first is what `/v1/models` says.
        root: where it came from.
        defaults: fields of `SamplingParams` for requests that do not set them (`generation_config.json`).
        limits: on requests.
        template: in place of the tokenizer's own chat template.
        trust_templates: whether a request may bring a template. It runs in a sandbox, but may run for long.
        pooling: how the vectors of a text's tokens become one.
        log_prompts: whether prompts may be written to the log.
        grounding: finds sources for conversations; None where the model answers by itself.
        created: when the server was started, in seconds since 1970.
    """

    engine: AsyncEngine
    tokenizer: Tokenizer
    names: tuple[str, ...]
    root: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    template: ChatTemplate | None = None
    trust_templates: bool = False
    pooling: Pooling = "mean"
    log_prompts: bool = False
    grounding: Grounding | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.admission = Admission(self.limits)

    def check_ready(self) -> None:
        """Refuses requests while there is no engine to answer them.

        Raises:
            EngineUnavailable: it is loading, draining or dead.
        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the engine is {self.engine.state}")

    def check_model(self, name: str | None) -> None:
        """Refuses what is meant for another model; no name means this one.

        Raises:
            ApiError: HTTP 404.
        """
        if name is not None and name not in self.names:
            known = ", ".join(self.names)
            raise ApiError(404, f"there is no such model; served: {known}", param="model", code="model_not_found")

    def template_of(self, source: str | None) -> ChatTemplate | None:
        """The chat template for a request that brings one or None; None for the tokenizer's own.

        Raises:
            UserError: it brings one and is not trusted, or one that is not Jinja.
        """
        if source is None:
            return self.template
        if not self.trust_templates:
            raise UserError("templates of clients are not trusted by this server", where="chat_template")
        return ChatTemplate(source, self.tokenizer.special_tokens)
