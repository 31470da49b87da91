"""What answering a request takes: the engine, the tokenizer, and what the server was told when it was started."""

import asyncio
import logging
import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intaglio.engine.interface import Pooling
from intaglio.errors import UserError
from intaglio.retrieval.answer import Grounding
from intaglio.serving.adapters import ServedAdapter, ServedBase, check_free, read_adapter
from intaglio.serving.client import AsyncEngine, EngineUnavailable
from intaglio.serving.errors import ApiError
from intaglio.serving.limits import Admission, Limits
from intaglio.text.chat import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Service"]

logger = logging.getLogger(__name__)


@dataclass
class Service:
    """One served model, and the adapters that are loaded beside it.

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
        adapter_folder: what clients may load adapters from; None where they may load none.
        created: when the server was started, in seconds since 1970.
        adapter: the name of the one that requests run under; None for the model itself.
        ends: tokens that end its texts, and not the model's own.
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
    adapter_folder: Path | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    adapter: str | None = field(default=None, init=False)
    ends: frozenset[int] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.limits)
        self._adapters: dict[str, ServedAdapter] = {}
        self._changing = asyncio.Lock()

    def check_ready(self) -> None:
        """Refuses requests while there is no engine to answer them.

        Raises:
            EngineUnavailable: it is loading, draining or dead.
        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the engine is {self.engine.state}")

    @property
    def adapters(self) -> dict[str, ServedAdapter]:
        """Those that the engine holds, by name."""
        return {name: adapter for name, adapter in self._adapters.items() if name in self.engine.adapters}

    def of(self, name: str | None) -> "Service":
        """The service as the model of this name gives it; no name means the first.

        What differs under an adapter is how texts are read and written, and what requests leave open; room and limits
        are those of all.

        Raises:
            ApiError: HTTP 404, there is no such model.
        """
        if name is None or name in self.names:
            return self
        adapters = self.adapters
        if name not in adapters:
            known = ", ".join([*self.names, *adapters])
            raise ApiError(404, f"there is no such model; served: {known}", param="model", code="model_not_found")
        chosen, adapter = copy(self), adapters[name]
        chosen.adapter, chosen.tokenizer, chosen.template = name, adapter.tokenizer, adapter.template
        chosen.defaults, chosen.ends = adapter.defaults, adapter.ends
        return chosen

    def admit_adapter(self, name: str, folder: Path) -> None:
        """Takes an adapter that the engine loads by itself when it starts.

        Raises:
            UserError: see `check_free` and `read_adapter`.
        """
        check_free(name, self.names)
        self._adapters[name] = read_adapter(name, folder, self._base)

    async def load_adapter(self, name: str, folder: Path) -> ServedAdapter:
        """Loads an adapter while requests run.

        Raises:
            UserError: see `check_free` and `read_adapter`; or the engine cannot take it.
            EngineUnavailable: there is no engine to load it.
        """
        async with self._changing:
            self.check_ready()
            check_free(name, self.names, self.adapters)
            adapter = await asyncio.to_thread(read_adapter, name, folder, self._base)
            await self.engine.load_adapter(name, str(folder))
            self._adapters[name] = adapter
        logger.info("loaded the adapter %s from %r", name, adapter.root)
        return adapter

    async def unload_adapter(self, name: str) -> None:
        """Takes no further request under an adapter; those that run keep it to their end.

        Raises:
            ApiError: HTTP 404, there is none of this name.
            EngineUnavailable: there is no engine.
        """
        async with self._changing:
            self.check_ready()
            if name not in self.adapters:
                raise ApiError(404, "there is no adapter of this name", param="lora_name", code="model_not_found")
            await self.engine.unload_adapter(name)
        logger.info("unloaded the adapter %s", name)

    @property
    def _base(self) -> ServedBase:
        return ServedBase(self.tokenizer, self.template, self.defaults)

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
