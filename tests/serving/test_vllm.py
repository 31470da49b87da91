"""The hand-over to vLLM: our options by its names, and (for `make prove`) its server on our model."""

import os
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from intaglio.engine.interface import EngineConfig
from intaglio.errors import UserError
from intaglio.serving.vllm import Handover, find_vllm
from peft_folders import peft_folder
from served_model import served_model

DEFAULT = EngineConfig()


def handover(model: Path, config: EngineConfig = DEFAULT, **more: Any) -> Handover:
    return Handover(model, ("a", "b"), config, "127.0.0.1", 8000, **more)


def test_defaults_are_left_to_vllm(tmp_path: Path) -> None:
    assert handover(tmp_path).arguments == [
        *(
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(tmp_path),
            "--host",
            "127.0.0.1",
            "--port",
            "8000",
        ),
        *("--served-model-name", "a", "b", "--shutdown-timeout", "30"),
    ]


def test_options_go_by_its_names(tmp_path: Path) -> None:
    config = EngineConfig(
        block_size=32,
        max_model_len=512,
        max_sequences=8,
        max_tokens_per_step=128,
        policy="priority",
        kv_memory_bytes=1000,
        prefix_caching=False,
    )
    more = {"dtype": "float32", "tool_parser": "hermes", "cors_origins": ("*",), "chat_template": Path("t.jinja")}
    said = " ".join(handover(tmp_path, config, **more, log_prompts=True).arguments)
    for option in (
        "--block-size 32",
        "--max-model-len 512",
        "--max-num-seqs 8",
        "--max-num-batched-tokens 128",
        "--scheduling-policy priority",
        "--kv-cache-memory-bytes 1000",
        "--no-enable-prefix-caching",
        "--dtype float32",
        "--enable-auto-tool-choice --tool-call-parser hermes",
        '--allowed-origins ["*"]',
        "--chat-template t.jinja",
        "--enable-log-requests",
    ):
        assert option in said


def test_adapters_go_by_its_names(tmp_path: Path) -> None:
    adapters = {"small": str(peft_folder(tmp_path / "a")), "large": str(peft_folder(tmp_path / "b", r=33))}
    said = " ".join(handover(tmp_path, adapters=adapters).arguments)
    assert said.endswith(
        f"--enable-lora --max-loras 2 --max-lora-rank 64 --lora-modules small={tmp_path}/a large={tmp_path}/b"
    )
    assert " --max-lora-rank 8 " in " ".join(handover(tmp_path, adapters={"small": adapters["small"]}).arguments)


@pytest.mark.parametrize(
    "config", [{"r": 600}, {"rank_pattern": {"q_proj": 2}}, {"alpha_pattern": {"q_proj": 2}}, {"peft_type": "IA3"}]
)
def test_adapters_that_it_would_run_as_others_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    adapters = {"x": str(peft_folder(tmp_path / "x", **config))}
    with pytest.raises(UserError, match=str(tmp_path / "x")):
        handover(tmp_path, adapters=adapters)


def test_the_names_of_adapters_are_their_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'b' is what the model itself is called"):
        handover(tmp_path, adapters={"b": str(peft_folder(tmp_path / "x"))})
    with pytest.raises(UserError, match="no adapter: there is no adapter_config"):
        handover(tmp_path, adapters={"x": str(tmp_path)})


def test_the_key_is_not_in_the_list_of_processes(tmp_path: Path) -> None:
    one = handover(tmp_path, api_keys=("secret",), threads=3)
    assert "secret" not in " ".join(one.arguments)
    environment = one.environment({"A": "b"})
    assert environment == {"A": "b", "VLLM_API_KEY": "secret", "OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (EngineConfig(num_blocks=5), "--num-blocks"),
        (EngineConfig(weights="int8"), "--weights"),
        (EngineConfig(deterministic=True), "--deterministic"),
    ],
)
def test_what_it_lacks_is_refused(tmp_path: Path, config: EngineConfig, name: str) -> None:
    with pytest.raises(UserError, match=f"^{name}: vLLM has no such option"):
        handover(tmp_path, config)


def test_it_reads_no_files_and_takes_one_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vLLM reads directories; run `intaglio convert"):
        handover(tmp_path / "model.gguf")
    with pytest.raises(UserError, match="one key"):
        handover(tmp_path, api_keys=("a", "b"))


def test_where_it_is_not_installed_there_is_a_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    with pytest.raises(UserError, match=r"vLLM is not installed; run `make vllm-env`"):
        find_vllm()
    command = tmp_path / ".venv-vllm" / "bin" / "vllm"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert find_vllm() == str(command.with_name("python"))


def test_it_becomes_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(os, "execve", lambda *words: started.append(words))
    monkeypatch.setattr("intaglio.serving.vllm.find_vllm", lambda: "/bin/python")
    one = handover(tmp_path)
    one.run()
    ((command, arguments, environment),) = started
    assert (command, arguments) == ("/bin/python", ["/bin/python", *one.arguments])
    assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.prove
@pytest.mark.real
def test_a_chat_of_two_turns_is_answered_as_by_us(smollm2_dir: Path, tmp_path: Path) -> None:
    """The same command line twice, in fp32, greedy: the ids that both make are the same."""
    if not (Path(sys.prefix).parent / ".venv-vllm").is_dir():
        pytest.skip("no .venv-vllm: run `make vllm-env`")
    options = ["--served-model-name", "m", "--dtype", "float32", "--max-model-len", "1024", "--kv-memory", "1"]
    with served_model(smollm2_dir, *options, log=tmp_path / "ours") as server:
        ours = two_turns(server.url)
    with served_model(smollm2_dir, *options, "--engine", "vllm", log=tmp_path / "theirs", patience=1200) as server:
        assert two_turns(server.url) == ours
        assert server.end() == 0
    assert "Paris" in ours[0][0]


def two_turns(url: str) -> list[tuple[str, list[int]]]:
    """What is said to two questions, as text and as ids."""
    messages: list[Any] = []
    said = []
    ids = {"return_token_ids": True}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) as client:
        for question in ("What is the capital of France?", "And of Italy?"):
            messages.append({"role": "user", "content": question})
            answer = client.chat.completions.create(
                model="m", messages=messages, temperature=0, max_tokens=24, extra_body=ids
            )
            choice: Any = answer.choices[0]
            said.append((choice.message.content or "", choice.token_ids))
            messages.append({"role": "assistant", "content": said[-1][0]})
    print(said)
    return said
