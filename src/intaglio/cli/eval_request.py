"""What `intaglio eval` is asked, its words turned into settings and subjects."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.cli import options
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.evaluation.runs import Settings
    from intaglio.evaluation.subjects.subject import Subject
    from intaglio.text.tokenizer import Tokenizer

__all__ = ["Asked", "numbers"]


@dataclass(frozen=True)
class Asked:
    """The options by their names; see `eval`."""

    model: str
    tasks: str
    shots: str
    limit: int | None
    seed: int
    chat: bool
    scoring: str | None
    list_choices: bool
    metrics: str
    max_tokens: int | None
    temperature: float
    samples: int
    adapter: Path | None
    beside: bool
    dtype: str | None
    device: str
    threads: int | None
    served: str | None
    tokenizer: str | None
    api_key: str | None
    concurrency: int
    batch_size: int

    @property
    def is_url(self) -> bool:
        """Whether a server is asked."""
        return self.model.startswith(("http://", "https://"))

    def settings(self) -> "Settings":
        """What decides the scores.

        Raises:
            UserError: a list of numbers is none.
        """
        from intaglio.evaluation.runs import Settings

        told: Any = self.scoring
        names = tuple(name.strip() for name in self.metrics.split(",") if name.strip())
        how: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature, "samples": self.samples}
        return Settings(numbers(self.shots, "--shots"), self.limit, self.seed, self.chat, told, metrics=names, **how)

    def subject(self) -> "Subject":
        """Who is asked: a model that is loaded now, or a server.

        Raises:
            UserError: see `load_llm` and `RemoteSubject`; or an option for the other kind.
        """
        self.check()
        return self._remote() if self.is_url else self._local()

    @property
    def key(self) -> str | None:
        """Of the server."""
        return self.api_key or os.environ.get(options.API_KEY)

    def check(self) -> None:
        """Refuses what has no effect.

        Raises:
            UserError: an option for the other kind of model.
        """
        here = {"--adapter": self.adapter, "--beside": self.beside, "--dtype": self.dtype, "--threads": self.threads}
        there = {"--served": self.served, "--tokenizer": self.tokenizer, "--api-key": self.api_key}
        for name, value in (here if self.is_url else there).items():
            if value:
                kind = "a server's model" if self.is_url else "a model that is loaded here"
                raise UserError(f"has no effect on {kind}", where=name)
        if self.beside and self.adapter is None:
            raise UserError("there is no adapter to leave unmerged", where="--beside", mend="give --adapter DIR")

    def _local(self) -> "Subject":
        from intaglio.evaluation.subjects.local import local_subject

        if self.beside:
            return self._beside()
        llm = options.load_llm(self.model, self.dtype, self.device, self.threads, self.adapter)
        return local_subject(llm, self.model, self.adapter)

    def _beside(self) -> "Subject":
        """The adapter computed beside the weights, as in training: not merged, and nothing rounded twice."""
        import torch

        from intaglio.adapters.merge import tokenizer_of
        from intaglio.adapters.models import load_model
        from intaglio.checkpoints.models import load_tokenizer
        from intaglio.engine.llm import LLM
        from intaglio.evaluation.subjects.local import local_subject

        assert self.adapter is not None, "checked before"
        if self.threads:
            torch.set_num_threads(self.threads)
        loaded = load_model(self.model, dtype=self.dtype, device=self.device, adapter=self.adapter)
        tokenizer = tokenizer_of(self.model, self.adapter)[0] or load_tokenizer(self.model)
        llm = LLM.around(loaded, tokenizer)  # packed, an adapter would be lost
        return local_subject(llm, self.model, self.adapter, merged=False)

    def _remote(self) -> "Subject":
        from intaglio.evaluation.subjects.asking import Asker
        from intaglio.evaluation.subjects.remote import RemoteSubject

        asker = Asker(self.model, self.key)
        return RemoteSubject(asker, self.served, tokenizer=self._tokenizer(), concurrency=self.concurrency)

    def _tokenizer(self) -> "Tokenizer | None":
        if self.tokenizer is None:
            return None
        from intaglio.checkpoints.models import load_tokenizer

        return load_tokenizer(self.tokenizer)


def numbers(text: str, where: str) -> tuple[int, ...]:
    """The numbers of a list with commas.

    Raises:
        UserError: it is none.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"{text!r} is no list of numbers", where=where, mend="write 0,1,2,4,8, say")
    return tuple(int(part) for part in parts)
