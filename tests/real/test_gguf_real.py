"""A real GGUF file becomes a directory that transformers opens, with the logits of the file itself."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from intaglio import LLM
from intaglio.checkpoints.convert import convert_gguf
from intaglio.checkpoints.pull import pull
from reference import Reference

pytestmark = [pytest.mark.real, pytest.mark.prove]

PROMPT = "Gravity is the force that"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2's GGUF file, fetched into a cache folder of its own."""
    home = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTAGLIO_HOME", str(home))
        pull("smollm2-135m-instruct", progress=False, keep=True)
        yield home / "downloads" / "smollm2-135m-instruct" / "smollm2-135m-instruct.gguf"


def test_the_directory_is_complete_and_opens_with_equal_logits(gguf: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    directory = tmp_path / "smollm2"
    convert_gguf(gguf, directory, "float32")
    assert sorted(os.listdir(directory)) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    ours, theirs = LLM(gguf, dtype="float32"), Reference(directory)
    ids = ours.tokenizer.encode(PROMPT)
    assert ids == theirs.tokenizer(PROMPT)["input_ids"]
    with torch.inference_mode():
        difference = ours.model(torch.tensor([ids]))[0] - theirs.logits(ids)
    assert difference.abs().max() <= 1e-3


def test_a_file_and_its_directory_are_the_same_model(gguf: Path, smollm2_dir: Path) -> None:
    file, directory = LLM(gguf), LLM(smollm2_dir)
    assert file.model.spec == directory.model.spec
    assert file.tokenizer.eos_token_ids == directory.tokenizer.eos_token_ids
    assert file.tokenizer.chat_template == directory.tokenizer.chat_template
    for (name, ours), theirs in zip(file.model.named_parameters(), directory.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
