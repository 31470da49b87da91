"""`intaglio chat`: a conversation that keeps its history."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import write_json

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM
    from intaglio.engine.sampling_params import SamplingParams

_HELP = "/reset forgets the conversation, /save FILE writes it as JSON, /exit (or Ctrl-D) ends."


def chat(
    model: options.Model,
    system: options.System = None,
    load: Annotated[Path | None, typer.Option(help="Go on with a conversation that /save wrote.")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.95,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    adapter: options.Adapter = None,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> None:
    """Talk to a model; answers stream, the history is kept."""
    from intaglio.engine.sampling_params import SamplingParams
    from intaglio.text.chat import chat_template_of

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    opening = _opening(system, load)
    llm = options.load_llm(model, dtype, device, threads, adapter)
    chat_template_of(llm.tokenizer)  # without one no turn can succeed: told now
    print(_HELP, file=sys.stderr)
    _converse(llm, params, opening)


def _opening(system: str | None, load: Path | None) -> list[dict[str, str]]:
    if load is None:
        return [{"role": "system", "content": system}] if system else []
    if system:
        raise UserError("the loaded conversation has its own beginning", where="--system")
    from intaglio.files import read_json
    from intaglio.text.messages import check_messages

    messages: list[dict[str, str]] = read_json(load)
    try:
        if messages != []:  # /save before the first question
            check_messages(messages)
    except UserError as error:
        raise UserError(error.what, where=f"{load}: {error.where}", mend=error.mend) from error
    return messages


def _converse(llm: "LLM", params: "SamplingParams", opening: list[dict[str, str]]) -> None:
    messages = list(opening)
    tokens, seconds = 0, 0.0
    while (line := _read()) is not None:
        if line.startswith("/"):
            if line == "/exit":
                break
            messages = _command(line, messages, opening)
        elif line.strip():
            before = llm.timing
            messages = _turn(llm, params, messages, line)
            if llm.timing is not before:  # a turn that was refused took no time
                tokens, seconds = tokens + llm.timing.new_tokens, seconds + llm.timing.total_s
    if seconds:
        memory = options.peak_memory() / 1e6
        print(f"[{tokens} tokens, {tokens / seconds:.1f} tokens/s, memory {memory:.0f} MB]", file=sys.stderr)


def _read() -> str | None:
    """The next line, or None at the end of the input.

    Raises:
        UserError: bytes that are no text.
    """
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", where="standard input") from error


def _command(line: str, messages: list[dict[str, str]], opening: list[dict[str, str]]) -> list[dict[str, str]]:
    name, _, argument = line.partition(" ")
    if name == "/reset":
        return list(opening)
    if name == "/save" and argument.strip():
        try:
            write_json(Path(argument.strip()).expanduser(), messages)
        except UserError as error:
            print(f"intaglio: {error}", file=sys.stderr)
    else:
        print(_HELP, file=sys.stderr)
    return messages


def _turn(llm: "LLM", params: "SamplingParams", messages: list[dict[str, str]], line: str) -> list[dict[str, str]]:
    """One question and its answer; an error or Ctrl-C costs the turn, not the conversation."""
    asked = [*messages, {"role": "user", "content": line}]
    answer: list[str] = []
    try:
        for text in llm.chat(asked, params):
            answer.append(text)
            print(text, end="", flush=True)
    except UserError as error:
        print(f"intaglio: {error} (or /reset)", file=sys.stderr)
        return messages
    except KeyboardInterrupt:
        print(" [stopped]", file=sys.stderr)
    print()
    return [*asked, {"role": "assistant", "content": "".join(answer)}]
