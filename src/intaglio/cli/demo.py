"""`intaglio demo`: a real model on our own code, from the download to a conversation."""

import json as json_module
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.cli.served import served
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM
    from intaglio.engine.sampling_params import SamplingParams
    from intaglio.training.recipe import Recipe

_MODEL = "smollm2-135m-instruct"
_QUESTIONS = ("Name the capital of France.", "What is photosynthesis? Answer in one sentence.")
_CONVERSATION = ("Tell me the name of a famous physicist.", "What did he discover?")


def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most in each answer.")] = 64,
    pretrain: Annotated[bool, typer.Option(help="Also train a small model from nothing, for two minutes.")] = True,
    serve: Annotated[bool, typer.Option(help="Also serve the model, and ask it through openai-python.")] = True,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Pull SmolLM2, show what it is made of, talk to it, train a small model from nothing, and serve the first."""
    from intaglio.checkpoints.pull import pull
    from intaglio.engine.sampling_params import SamplingParams

    if serve:
        _require_client()
    path = pull(_MODEL, say=_say, progress=sys.stderr.isatty())
    _show(str(path))
    llm = options.load_llm(str(path), None, "cpu", threads)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    turns = [turn for question in _QUESTIONS for turn in _talk(llm, params, [question])]
    _say("\na conversation of two turns")
    turns += _talk(llm, params, _CONVERSATION)
    trained = _pretrain(threads) if pretrain else None
    asked = _serve(str(path), max_tokens) if serve else None
    _finish(turns, trained, asked, json)


def _require_client() -> None:
    if find_spec("openai") is None or find_spec("fastapi") is None:
        what = "its last part needs openai and FastAPI"
        raise UserError(what, where="demo", mend="pip install 'intaglio[demo]', or say --no-serve")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(path: str) -> None:
    from intaglio.lineage.resolve import resolve_spec
    from intaglio.specs import DecoderSpec

    _, spec, _ = resolve_spec(path)
    assert isinstance(spec, DecoderSpec)
    block = spec.blocks[0]
    attention: Any = block.attention
    _say(
        f"\n{_MODEL}: {spec.num_layers} layers of {spec.hidden_size} features, {attention.num_heads} query and "
        f"{attention.kv_heads} key/value heads of {attention.width}, vocabulary {spec.vocab_size}\n"
        f"{spec.num_parameters() / 1e6:.1f} M parameters, {spec.flops_per_token(2048) / 1e6:.0f} MFLOPs a token at "
        f"2048, {spec.kv_bytes_per_token('bfloat16') / 1024:.1f} KiB of keys and values a token"
    )


def _talk(llm: "LLM", params: "SamplingParams", questions: tuple[str, ...] | list[str]) -> list[dict[str, Any]]:
    """Asks one after the other in one conversation; answers stream."""
    messages: list[dict[str, str]] = []
    turns = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        _say(f"\n> {question}")
        answer = ""
        for text in llm.chat(messages, params):
            answer += text
            print(text, end="", file=sys.stderr, flush=True)
        messages.append({"role": "assistant", "content": answer})
        turns.append({"question": question, "answer": answer, **options.speed_of(llm.timing)})
        _say("")
    return turns


def _pretrain(threads: int | None) -> dict[str, Any]:
    """A model of three million parameters on the standard library's source; its samples are its own."""
    from intaglio.training.run import train

    with tempfile.TemporaryDirectory() as folder:
        _say("\ntwo minutes of pretraining on the Python standard library, from nothing")
        outcome = train(_recipe(threads), Path(folder) / "run", say=_say)
        lines = [json_module.loads(line) for line in (outcome.run / "log.jsonl").read_text("utf-8").splitlines()]
    samples = [line["prompt"] + line["sample"] for line in lines if "sample" in line]
    bits = [line["eval_bits_per_byte"] for line in lines if "eval_bits_per_byte" in line]
    return {"steps": outcome.steps, "loss": outcome.loss, "bits_per_byte": bits[-1], "samples": samples}


def _recipe(threads: int | None) -> "Recipe":
    from intaglio.specs import validate
    from intaglio.training.recipe import Recipe

    layer = {
        "repeat": 4,
        "norm": {"kind": "rms_norm"},
        "attention": {"num_heads": 4, "num_kv_heads": 2, "rope": {}},
        "feed_forward": {"intermediate_size": 688, "activation": "silu", "gated": True},
    }
    architecture = {"hidden_size": 256, "max_position_embeddings": 512, "tie_embeddings": True, "layers": [layer]}
    data = {
        "architecture": architecture,
        "tokenizer": {"vocab_size": 2048},
        "data": "stdlib",
        "split_by": "file",
        "validation": 0.05,
        "packing": "contiguous",
        "max_length": 512,
        "micro_batch": 4,
        "steps": 280,
        "optimizer": {"kind": "muon", "learning_rate": 3e-3},
        "schedule": {"kind": "linear", "warmup": 20},
        "evaluate_every": 280,
        "sample_every": 280,
        "prompts": ["def read_lines(path):", "class Item:\n\n    def __init__(self, name, value):"],
        "threads": threads,
    }
    recipe: Recipe = validate(Recipe, data, "demo")
    return recipe


def _serve(path: str, max_tokens: int) -> list[dict[str, Any]]:
    """The conversation once more, over HTTP and by a client that knows nothing of us."""
    from openai import OpenAI

    _say("\nthe same model behind the API, asked by openai-python")
    messages: list[Any] = []
    turns = []
    with served(path, "--served-model-name", _MODEL) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        for question in _CONVERSATION:
            messages.append({"role": "user", "content": question})
            _say(f"\n> {question}")
            answer = client.chat.completions.create(
                model=_MODEL, messages=messages, temperature=0, max_tokens=max_tokens
            )
            text = answer.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            turns.append({"question": question, "answer": text})
            _say(text)
    return turns


def _finish(
    turns: list[dict[str, Any]], trained: dict[str, Any] | None, asked: list[dict[str, Any]] | None, as_json: bool
) -> None:
    tokens = sum(turn["new_tokens"] for turn in turns)
    decoding = sum(turn["total_s"] - turn["first_token_s"] for turn in turns)
    speed = (tokens - len(turns)) / decoding if decoding else 0.0
    memory = options.peak_memory()
    if as_json:
        report = {"turns": turns, "tokens_per_second": speed, "peak_memory_bytes": memory}
        beside = {"pretraining": trained, "served": asked}
        print(json_module.dumps(report | {name: part for name, part in beside.items() if part}))
        return
    print(f"\n{tokens} tokens in {len(turns)} answers at {speed:.1f} tokens/s, memory {memory / 1e6:.0f} MB")
    if trained:
        print(f"{trained['steps']} steps of pretraining: {trained['bits_per_byte']:.2f} bits a byte on held-out source")
    print(f"go on: .venv/bin/intaglio chat {_MODEL}")
    print(f"or in a browser: .venv/bin/intaglio serve {_MODEL}, then http://127.0.0.1:8000/")
