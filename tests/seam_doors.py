"""One model, many doors: the log-probabilities of the same tokens by every way that leads to the model.

A door takes texts as ids, of unlike lengths, and tells of each text the log-probabilities of all tokens but its first.

Legend: N tokens of all texts, T of one, V vocabulary.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import torch
from torch import Tensor

from intaglio.adapters.attach import attach
from intaglio.adapters.models import load_model
from intaglio.adapters.peft_files import save_adapter
from intaglio.engine.cache import ContiguousCache
from intaglio.engine.engine import Engine
from intaglio.engine.interface import EngineConfig
from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import DecoderSession
from intaglio.parts.context import PAD, Packed
from intaglio.serving import worker
from intaglio.serving.app import create_app
from intaglio.serving.messages import Launch
from intaglio.serving.remote import LocalEngine
from intaglio.serving.service import Service
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "SMALL",
    "Place",
    "Rows",
    "api",
    "by_api",
    "by_cache",
    "by_engine",
    "by_paged_steps",
    "by_training",
    "by_transformers",
    "echoed",
    "generated",
    "local_api",
    "make_adapter",
]

Rows = Sequence[Sequence[int]]
SMALL = EngineConfig(block_size=4, num_blocks=256, max_tokens_per_step=24)
"""Prompts go in chunks, beside each other, and their blocks are many."""


class Place(NamedTuple):
    """A model on disk, and what it is asked.

    Attributes:
        folder: its directory.
        dtype: in which it runs.
        rows: texts as ids; the last five of each were made by the engine.
        made: the log-probabilities that it told while it made them.
        wanted: those of the training forward.
    """

    folder: Path
    dtype: str
    rows: list[list[int]]
    made: list[list[float]]
    wanted: list[list[float]]

    def gaps(self, found: list[list[float]]) -> list[float]:
        """How far each number is from the training forward's; a door may tell of the last tokens alone."""
        pairs = zip(found, self.wanted, strict=True)
        gaps = [abs(a - b) for one, row in pairs for a, b in zip(one, row[-len(one) :], strict=True)]
        assert len(gaps) >= 5 * len(self.rows)
        return gaps


def by_training(model: Any, rows: Rows) -> list[list[float]]:
    """One packed forward over all texts, as every objective makes it."""
    lengths = [len(row) for row in rows]
    ids = torch.tensor([[token for row in rows for token in row]])
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        logits = model.logits(model.hidden_states(ids, places, Packed(lengths))[0])  # (N, V)
    return [_of_tokens(told[:-1], row) for told, row in zip(logits.split(lengths), rows, strict=True)]


def by_cache(model: Any, rows: Rows, chunk: int = 3) -> list[list[float]]:
    """The contiguous cache, texts padded on the left: first a chunk, then token by token."""
    longest, weight = max(map(len, rows)), model.embed_tokens.weight
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
    places = torch.tensor([[PAD] * (longest - len(row)) + list(range(len(row))) for row in rows])
    cache = ContiguousCache(model.spec, len(rows), longest, dtype=weight.dtype)
    ends = [longest - chunk, *range(longest - chunk + 1, longest + 1)]
    with torch.no_grad():
        spans = zip([0, *ends], ends, strict=False)
        parts = [model(ids[:, a:b], places[:, a:b], context=cache) for a, b in spans]
    logits = torch.cat(parts, dim=1)
    return [_of_tokens(told[longest - len(row) : -1], row) for told, row in zip(logits, rows, strict=True)]


def by_paged_steps(model: Any, rows: Rows, last: int = 5) -> list[list[float]]:
    """Paged blocks, all but the last few tokens at once and those one by one; of these alone."""
    session = DecoderSession(model, [last + 1] * len(rows))
    with torch.no_grad():
        logits = [session.prefill([row[:-last] for row in rows])]
        logits += [session.step(torch.tensor(column)) for column in zip(*(row[-last:-1] for row in rows), strict=True)]
    told = torch.stack(logits, dim=1)  # (B, last, V)
    return [_of_tokens(one, row[-last - 1 :]) for one, row in zip(told, rows, strict=True)]


def by_engine(engine: Engine, rows: Rows, adapter: str | None = None) -> list[list[float]]:
    """The engine's log-probabilities of prompts, all texts at once."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    for number, row in enumerate(rows):
        engine.add(str(number), row, params, adapter=adapter)
    found: dict[int, list[float]] = {}
    while engine.has_work:
        for output in engine.step():
            told = output.prompt_logprobs or []
            found.setdefault(int(output.request_id), [one.log_prob for one in told if one])
    return [found[number] for number in range(len(rows))]


def generated(llm: LLM, prompts: Rows, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """What the engine makes of prompts one after the other, so that beginnings come from the prefix cache: the whole
    texts, and the log-probabilities that it told of what it made."""
    params = SamplingParams(seed=5, max_tokens=count, ignore_eos=True)
    done = [llm.complete([prompt], params)[0] for prompt in prompts]
    texts = [[*prompt, *one.token_ids] for prompt, one in zip(prompts, done, strict=True)]
    return texts, [one.log_probs for one in done]


def echoed(rows: Rows, model: str | None = None) -> dict[str, Any]:
    """The body with which lm-eval asks for log-probabilities."""
    asked = {"max_tokens": 1, "temperature": 0, "seed": 1234, "logprobs": 1, "echo": True}
    return {"model": model, "prompt": [list(row) for row in rows], **asked}


def api(answer: httpx2.Response, rows: Rows) -> list[list[float]]:
    """The log-probabilities in an answer to `echoed`."""
    assert answer.status_code == 200, answer.text
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    told = [choice["logprobs"]["token_logprobs"] for choice in choices]
    assert [len(one) for one in told] == [len(row) + 1 for row in rows]
    return [one[1:-1] for one in told]


def by_api(folder: Path, rows: Rows, dtype: str, **adapters: Path) -> list[list[float]]:
    """The API over an engine in this process; under an adapter, if one is given."""

    async def ask() -> list[list[float]]:
        built, read = worker._build(Launch(str(folder), dtype, "cpu", None, SMALL))
        engine = LocalEngine(built, read, {name: str(path) for name, path in adapters.items()})
        async with local_api(engine, Tokenizer.from_directory(folder), **adapters) as client:
            body = echoed(rows, next(iter(adapters), None))
            return api(await client.post("/v1/completions", json=body), rows)

    return asyncio.run(ask())


@asynccontextmanager
async def local_api(engine: LocalEngine, tokenizer: Tokenizer, **adapters: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the API over a model that runs in a thread of this process."""
    service = Service(engine, tokenizer, ("base",))
    for name, folder in adapters.items():
        service.admit_adapter(name, folder)
    await engine.start()
    transport = httpx2.ASGITransport(app=create_app(service))
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://api", timeout=60) as client:
            yield client
    finally:
        await engine.stop()


def by_transformers(folder: Path, rows: Rows, dtype: str) -> list[list[float]]:
    """The directory as transformers opens it."""
    from reference import Reference

    model = Reference(folder).model.to(getattr(torch, dtype))
    with torch.no_grad():
        return [_of_tokens(model(torch.tensor([list(row)])).logits[0, :-1], row) for row in rows]


def make_adapter(base: Path, folder: Path, seed: int, tokenizer: Tokenizer | None = None, **settings: Any) -> Path:
    """An adapter with large random numbers, so that no two say the same."""
    model = load_model(base, dtype="float32")
    attach(model, LoRASpec(**settings))
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=dice)
    save_adapter(model, folder, base=str(base), tokenizer=tokenizer)
    return folder


def _of_tokens(logits: Tensor, row: Sequence[int]) -> list[float]:
    """Of (T - 1, V) and T tokens: how likely each one but the first was."""
    told = logits.float().log_softmax(dim=-1)
    return told.gather(-1, torch.tensor(row[1:])[:, None])[:, 0].tolist()
