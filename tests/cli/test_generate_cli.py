"""`intaglio generate`: prompts in, text or JSON out."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio import LLM, SamplingParams
from intaglio.text.chat import render_chat
from running import Run
from toy_llms import ANSWER

REST = ANSWER.removeprefix("QU")
SPEED = {"prompt_tokens", "new_tokens", "first_token_s", "total_s", "tokens_per_second", "peak_memory_bytes"}
FIELDS = {"prompt", "text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens"}


def test_text_goes_to_standard_output_and_speed_beside_it(run: Run, parrot_dir: Path) -> None:
    ran = run("generate", parrot_dir, "QU", "--max-tokens", 40)
    assert (ran.status, ran.out) == (0, REST + "\n")
    assert ran.err.startswith("[12 tokens, ")
    assert "tokens/s" in ran.err
    assert "memory" in ran.err


def test_json_has_every_field_and_nothing_beside_it(run: Run, parrot_dir: Path) -> None:
    ran = run("generate", parrot_dir, "QU", "--max-tokens", 40, "--json")
    report = json.loads(ran.out)
    assert ran.err == ""
    assert set(report) == FIELDS | SPEED
    assert report["prompt"] == "QU"
    assert report["text"] == REST
    assert report["finish_reason"] == "stop"
    assert report["prompt_tokens"] == 2
    assert report["completion_tokens"] == report["new_tokens"] == len(report["token_ids"]) == 12
    assert report["peak_memory_bytes"] > 10_000_000


def test_length_and_stop_end_it(run: Run, parrot_dir: Path) -> None:
    assert run("generate", parrot_dir, "QU", "--max-tokens", 3).out == "ICK\n"
    ran = run("generate", parrot_dir, "QU", "--max-tokens", 40, "--stop", "nowhere", "--stop", "K BR")
    assert ran.out == "IC\n"


def test_standard_input_is_a_prompt(run: Run, parrot_dir: Path) -> None:
    assert run("generate", parrot_dir, "-", "--max-tokens", 40, stdin="QU").out == REST + "\n"


def test_a_chat_is_rendered(run: Run, toy_dir: Path) -> None:
    llm = LLM(toy_dir)
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(temperature=0, max_tokens=20)
    ran = run("generate", toy_dir, "hello", "--chat", "--max-tokens", 20)
    assert ran.out == "".join(llm.chat(messages, params)) + "\n"
    system = {"role": "system", "content": "the 42"}
    ran = run("generate", toy_dir, "hello", "--chat", "--system", "the 42", "--max-tokens", 20, "--json")
    report = json.loads(ran.out)
    prompt = render_chat(llm.tokenizer, [system, *messages], add_generation_prompt=True)
    assert report["prompt_tokens"] == len(prompt.ids)
    assert report["text"] == llm.complete([prompt.ids], params)[0].text
    assert "needs --chat" in run("generate", toy_dir, "hello", "--system", "the 42").refusal


def test_a_seed_repeats_a_sample(run: Run, toy_dir: Path) -> None:
    def sampled(*more: object) -> Any:
        ran = run("generate", toy_dir, "hello", "--temperature", 1.3, "--max-tokens", 20, "--json", *more)
        return json.loads(ran.out)["token_ids"]

    assert sampled("--seed", 7) == sampled("--seed", 7) != sampled("--seed", 8)
    assert sampled("--seed", 7, "--top-k", 1) == sampled("--seed", 8, "--top-p", 1e-6) == sampled("--min-p", 1)


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl"])
def test_prompts_of_a_file_run_in_batches(run: Run, toy_dir: Path, tmp_path: Path, name: str) -> None:
    prompts = ["hello", "the user says\u2028hi", "42 你好"]
    file = tmp_path / name
    as_json = [json.dumps({"prompt": prompt, "id": 1}, ensure_ascii=False) for prompt in prompts]
    lines = as_json if file.suffix == ".jsonl" else prompts
    file.write_text("\r\n\n".join(lines) + "\n", encoding="utf-8")
    options = ("--file", file, "--max-tokens", 12)
    ran = run("generate", toy_dir, *options)
    answers = [json.loads(line) for line in ran.out.rstrip("\n").split("\n")]
    assert [answer["prompt"] for answer in answers] == prompts
    assert set(answers[0]) == FIELDS
    assert "tokens/s" in ran.err
    for answer in answers:
        alone = json.loads(run("generate", toy_dir, answer["prompt"], "--max-tokens", 12, "--json").out)
        assert answer["text"] == alone["text"]
    report = json.loads(run("generate", toy_dir, *options, "--batch-size", 2, "--json").out)
    assert report["completions"] == answers
    assert set(report) >= SPEED


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": "b"', 2, "not a JSON object with a 'prompt'"),
        ('{"prompt": "a"}\n\n["prompt"]', 3, "not a JSON object with a 'prompt'"),
        ('{"text": "a"}', 1, "not a JSON object with a 'prompt'"),
        ('{"prompt": 7}', 1, "'prompt' is not text but int"),
        ('{"prompt": null}', 1, "'prompt' is not text but NoneType"),
        ('{"prompt": "a"}\n{"prompt": ""}', 2, "the prompt is empty"),
        (r'{"prompt": "\ud800"}', 1, "not UTF-8 text"),
    ],
)
def test_a_bad_row_is_named(run: Run, toy_dir: Path, tmp_path: Path, content: str, line: int, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    assert f"{file}:{line}: {message}" in run("generate", toy_dir, "--file", file).refusal


def test_a_prompt_that_does_not_fit_is_told_before_the_first_batch_runs(
    run: Run, toy_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("hello\n" * 4 + "42" * 300 + "\nhello\n")
    line = run("generate", toy_dir, "--file", file, "--batch-size", 3, "--max-tokens", 2).refusal
    assert line.startswith("intaglio: prompt 5: 300 tokens ")


def test_a_file_without_prompts(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    assert "cannot read" in run("generate", toy_dir, "--file", file).refusal
    file.write_text("\n  \n")
    assert f"{file}: no prompt in it" in run("generate", toy_dir, "--file", file).refusal
    file.write_bytes(b"caf\xe9\n")
    assert f"{file}: not UTF-8 text" in run("generate", toy_dir, "--file", file).refusal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a prompt or --file"),
        (["hello", "--file", "x.txt"], "give a prompt or --file"),
        ([""], "the prompt is empty"),
        (["-"], "the prompt is empty"),
        (["", "--chat"], "the prompt is empty"),
        (["hello", "--temperature", "-1"], "temperature: Input should be greater than or equal to 0, not -1.0"),
        (["hello", "--top-p", "2"], "top_p: "),
        (["hello", "--top-k", "-2"], "top_k: "),
        (["hello", "--min-p", "nan"], "min_p: "),
        (["hello", "--repetition-penalty", "0"], "repetition_penalty: "),
        (["hello", "--stop", ""], "an empty stop string"),
        (["hello", "--max-tokens", "0"], "'--max-tokens'"),
        (["hello", "--max-tokens", "many"], "'--max-tokens'"),
        (["hello", "--max-tokens", "255"], "tokens and 255 new ones do not fit into a context of 256"),
        (["42" * 300], "do not fit into a context of 256"),
        (["hello", "--dtype", "float31"], "unknown dtype 'float31'; did you mean float32"),
        (["hello", "--device", "abacus"], "--device: no device 'abacus' here"),
        (["hello", "--temprature", "1"], "No such option: --temprature"),
        (["hello", "there"], "unexpected extra argument"),
        (["caf\udce9"], "not UTF-8"),
    ],
)
def test_what_cannot_be_asked_for(run: Run, toy_dir: Path, arguments: list[str], message: str) -> None:
    assert message in run("generate", toy_dir, *arguments).refusal


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m-instrct", "unknown model 'smollm2-135m-instrct'; did you mean smollm2-135m-instruct?"),
        ("smollm2-135m-instruct", "has not been pulled; run `intaglio pull smollm2-135m-instruct`"),
        ("gpt2", "gpt2 is a preset: a description without weights; see `intaglio show gpt2`"),
        ("no/such/folder", "unknown model 'no/such/folder'"),
        ("", "unknown model ''"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_model_that_cannot_run(run: Run, name: str, message: str) -> None:
    assert message in run("generate", name, "hello").refusal


def test_a_folder_without_a_model(run: Run, tmp_path: Path) -> None:
    assert "holds no config.json" in run("generate", tmp_path, "hello").refusal
