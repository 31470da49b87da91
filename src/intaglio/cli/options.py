"""Options that several verbs share."""

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM, Timing

__all__ = [
    "API_KEY",
    "MIN_P",
    "RAG_BUDGET",
    "REPETITION_PENALTY",
    "TOP_K",
    "TOP_P",
    "Adapter",
    "Device",
    "Dtype",
    "Json",
    "MaxTokens",
    "MinP",
    "Model",
    "RepetitionPenalty",
    "Seed",
    "Stop",
    "System",
    "Threads",
    "TopK",
    "TopP",
    "load_llm",
    "peak_memory",
    "speed_of",
]

API_KEY = "INTAGLIO_API_KEY"
"""The environment variable that holds a server's key, for the server and for whoever asks it."""

RAG_BUDGET = 1536
"""Tokens of a prompt with sources at most, where nothing is said: five passages, and little for a CPU to read."""

TOP_K = "Sample among so many likeliest tokens; 0: all."
TOP_P = "Sample among the likeliest tokens with this probability together."
MIN_P = "Sample among tokens with this share of the likeliest one's probability."
REPETITION_PENALTY = "Above 1: tokens that occurred become less likely."

Model = Annotated[str, typer.Argument(help="A pulled name, a model directory or a GGUF file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Adapter = Annotated[Path | None, typer.Option(help="A PEFT directory, merged into the model while it runs.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; default: as stored.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: as many as cores.")]
System = Annotated[str | None, typer.Option(help="A system message before the conversation.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="New tokens at most.")]
TopK = Annotated[int, typer.Option(help=TOP_K)]
TopP = Annotated[float, typer.Option(help=TOP_P)]
MinP = Annotated[float, typer.Option(help=MIN_P)]
RepetitionPenalty = Annotated[float, typer.Option(help=REPETITION_PENALTY)]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be given several times.")]


def load_llm(model: str, dtype: str | None, device: str, threads: int | None, adapter: Path | None = None) -> "LLM":
    """The model, with an adapter merged into it if one is given, and as many threads as asked for.

    Raises:
        UserError: see `LLM` and `load_merged`; or a device that is not there.
    """
    import torch

    from intaglio.engine.llm import LLM
    from intaglio.errors import UserError

    if threads:
        torch.set_num_threads(threads)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {device!r} here: {str(error).splitlines()[0]}", where="--device") from error
    if adapter is None:
        return LLM(model, dtype=dtype, device=device)
    from intaglio.adapters.merge import load_merged

    loaded, tokenizer = load_merged(model, adapter, dtype=dtype, device=device)
    return LLM(model, loaded=loaded, tokenizer=tokenizer)


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def speed_of(timing: "Timing") -> dict[str, Any]:
    """Speed, and the memory of the process, for JSON."""
    return {
        "prompt_tokens": timing.prompt_tokens,
        "new_tokens": timing.new_tokens,
        "first_token_s": round(timing.first_s, 4),
        "total_s": round(timing.total_s, 4),
        "tokens_per_second": round(timing.tokens_per_second, 2),
        "peak_memory_bytes": peak_memory(),
    }
