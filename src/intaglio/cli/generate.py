"""`intaglio generate`: continue a prompt, or a file of them."""

import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import read_text

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM, Completion, Timing
    from intaglio.engine.sampling_params import SamplingParams


def generate(
    model: options.Model,
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; `-` reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Prompts: one a line, or .jsonl with a `prompt` in each.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message; render the chat.")] = False,
    system: options.System = None,
    max_tokens: options.MaxTokens = 256,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 16,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Continue a prompt with a model's own words."""
    from intaglio.engine.sampling_params import SamplingParams

    prompts = _prompts(prompt, file)
    if system and not chat:
        raise UserError("a system message needs --chat", where="--system")
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
    llm = options.load_llm(model, dtype, device, threads)
    ids = [_encode(llm, text, chat, system) for text in prompts]
    if len(prompts) == 1 and not json:
        _stream(llm, ids[0], params)
    else:
        _batches(llm, prompts, ids, params, batch_size, json)


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


def _stream(llm: "LLM", ids: list[int], params: "SamplingParams") -> None:
    for piece in llm.stream([ids], [params]):
        print(piece.text, end="", flush=True)
    print()
    _say_speed(llm.timing)


def _batches(
    llm: "LLM", prompts: list[str], ids: list[list[int]], params: "SamplingParams", size: int, as_json: bool
) -> None:
    from intaglio.engine.generate import generate as begin
    from intaglio.engine.llm import Timing

    begin(llm.model, llm.tokenizer, ids, [params] * len(ids))  # only looked at: none may be refused halfway
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
    print(
        f"[{timing.new_tokens} tokens, {timing.tokens_per_second:.1f} tokens/s, first after {timing.first_s:.2f} s, "
        f"memory {options.peak_memory() / 1e6:.0f} MB]",
        file=sys.stderr,
    )
