"""`intaglio generate`: continue a prompt, or a file of them; where a model writes a text of its own, its answer."""

import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.cli.alignment import draw_alignment, require_alignment
from intaglio.errors import UserError
from intaglio.files import read_text

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM, Completion, Timing
    from intaglio.engine.sampling_params import SamplingParams

_MAX_TOKENS = 256
_ADVISED = "Default: as the model's own directory says."
_UNSEARCHED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
"""What beam search has no use for."""


def generate(
    model: options.Model,
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; `-` reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Prompts: one a line, or .jsonl with a `prompt` in each.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message; render the chat.")] = False,
    system: options.System = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="New tokens at most; default: 256, or a target's longest.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help=f"0: always the likeliest token. {_ADVISED}")] = None,
    top_k: Annotated[int | None, typer.Option(help=f"{options.TOP_K} {_ADVISED}")] = None,
    top_p: Annotated[float | None, typer.Option(help=f"{options.TOP_P} {_ADVISED}")] = None,
    min_p: Annotated[float | None, typer.Option(help=f"{options.MIN_P} {_ADVISED}")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help=f"{options.REPETITION_PENALTY} {_ADVISED}")] = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    num_beams: Annotated[
        int | None, typer.Option(min=1, help=f"Above 1: search for the likeliest whole text. {_ADVISED}")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help=f"Beam search ranks texts by log P / length^X. {_ADVISED}")
    ] = None,
    show_attention: Annotated[
        Path | None, typer.Option(help="Draw where a Seq2Seq with attention looked for each token, as a PNG file.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 16,
    adapter: options.Adapter = None,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Continue a prompt with a model's own words, or translate it where the model is an encoder-decoder."""
    prompts = _prompts(prompt, file)
    if system and not chat:
        raise UserError("a system message needs --chat", where="--system")
    if show_attention and file:
        raise UserError("one prompt has one picture", where="--show-attention", mend="give a prompt in place of --file")
    asked = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
        "stop": tuple(stop) if stop else None,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
    }
    said = {name: value for name, value in asked.items() if value is not None}
    _check(said)
    llm = options.load_llm(model, dtype, device, threads, adapter)
    if show_attention:
        require_alignment(llm)
    params = _params(llm, said)
    ids = [_encode(llm, text, chat, system) for text in prompts]
    if len(prompts) == 1 and not json:
        made = _show(llm, ids[0], params)
    else:
        made = _batches(llm, prompts, ids, params, batch_size, json)
    if show_attention:
        draw_alignment(llm, ids[0], made, show_attention)


def _check(said: dict[str, Any]) -> None:
    """What no model could be asked for is told before one is read."""
    from intaglio.engine.sampling_params import SamplingParams

    undecided = set() if "num_beams" in said else {"length_penalty"}  # the model's directory may ask for beams
    SamplingParams(**{"temperature": 0, **{name: said[name] for name in said.keys() - undecided}})


def _params(llm: "LLM", said: dict[str, Any]) -> "SamplingParams":
    """What the user says; where he is silent, what the model's own directory does.

    Beams that the directory recommends are not taken where the user samples, or stops at a text: both exclude them.
    """
    longest = {} if "max_tokens" in said else {"max_tokens": _room(llm)}
    beams = {"num_beams": 1} if not said.keys().isdisjoint(_UNSEARCHED) else {}
    return llm.recommended(**{**longest, **beams, **said})


def _room(llm: "LLM") -> int:
    """New tokens at most where the user does not say: what a target may have, where it has a context of its own."""
    from intaglio.engine.session import session_class

    context = None if session_class(llm.model).continues else llm.model.spec.context_limit
    return min(_MAX_TOKENS, context or _MAX_TOKENS)


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if (prompt is None) == (file is None):
        raise UserError("give a prompt or --file, one of the two", where="generate")
    if file is None:
        assert prompt is not None
        return [_standard_input() if prompt == "-" else _checked(prompt, "prompt")]
    return list(_read_prompts(file))


def _standard_input() -> str:
    try:
        return _checked(sys.stdin.read(), "standard input")
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", where="standard input") from error


def _checked(prompt: str, where: str) -> str:
    """The prompt, if a tokenizer can take it."""
    if not prompt:
        raise UserError("the prompt is empty", where=where, mend="give at least one character")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair: a byte that is no text, or a broken JSON escape
        raise UserError("not UTF-8 text", where=where) from error
    return prompt


def _read_prompts(file: Path) -> Iterator[str]:
    lines = read_text(file).split("\n")
    if not any(line.strip() for line in lines):
        raise UserError("no prompt in it", where=str(file))
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _json_prompt(line, f"{file}:{number}") if file.suffix == ".jsonl" else line


def _json_prompt(line: str, where: str) -> str:
    try:
        prompt = json_module.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError("not a JSON object with a 'prompt'", where=where) from error
    if not isinstance(prompt, str):
        raise UserError(f"'prompt' is not text but {type(prompt).__name__}", where=where)
    return _checked(prompt, where)


def _encode(llm: "LLM", text: str, chat: bool, system: str | None) -> list[int]:
    if not chat:
        return llm.tokenizer.encode(text)
    from intaglio.text.chat import render_chat

    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    return render_chat(llm.tokenizer, messages, add_generation_prompt=True).ids


def _show(llm: "LLM", ids: list[int], params: "SamplingParams") -> list[int]:
    """Prints the answer to one prompt, and returns its tokens."""
    made = _search(llm, ids, params) if params.num_beams > 1 else _stream(llm, ids, params)
    _say_speed(llm.timing)
    return made


def _stream(llm: "LLM", ids: list[int], params: "SamplingParams") -> list[int]:
    made = []
    for piece in llm.stream([ids], [params]):
        print(piece.text, end="", flush=True)
        made.append(piece.token_id)
    print()
    return made


def _search(llm: "LLM", ids: list[int], params: "SamplingParams") -> list[int]:
    (best,) = llm.complete([ids], params)
    print(best.text)
    return best.token_ids


def _batches(
    llm: "LLM", prompts: list[str], ids: list[list[int]], params: "SamplingParams", size: int, as_json: bool
) -> list[int]:
    """Answers every prompt, and returns the tokens of the first one's answer."""
    from intaglio.engine.generate import most_tokens
    from intaglio.engine.llm import Timing

    for row, tokens in enumerate(ids):  # none may be refused halfway
        most_tokens(llm.model, tokens, params, row)
    answers: list[dict[str, Any]] = []
    spent = Timing()
    for start in range(0, len(ids), size):
        completions = llm.complete(ids[start : start + size], params)
        spent += llm.timing
        for prompt, completion in zip(prompts[start:], completions, strict=False):
            answers.append(_answer(prompt, completion))
            if not as_json:
                print(json_module.dumps(answers[-1], ensure_ascii=False))
    if as_json:
        found = answers[0] if len(answers) == 1 else {"completions": answers}
        print(json_module.dumps({**found, **options.speed_of(spent)}, ensure_ascii=False))
    else:
        _say_speed(spent)
    first: list[int] = answers[0]["token_ids"]
    return first


def _answer(prompt: str, completion: "Completion") -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.token_ids),
    }


def _say_speed(timing: "Timing") -> None:
    first = f"first after {timing.first_s:.2f} s, " if timing.first_s else ""  # beams have no first token
    print(
        f"[{timing.new_tokens} tokens, {timing.tokens_per_second:.1f} tokens/s, {first}"
        f"memory {options.peak_memory() / 1e6:.0f} MB]",
        file=sys.stderr,
    )
