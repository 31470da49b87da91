"""Every recipe we ship, run at a tiny size on rows of our own: it is read, trains, saves and measures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.checkpoints.load import load_directory
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.training.recipe import load_recipe
from intaglio.training.run import train
from intaglio.training.stages.plan import has_stages
from toy_llms import save_toy, toy_tokenizer

ROOT = Path(__file__).parents[2]
ALL = sorted((ROOT / "recipes").glob("*.yaml"))
RECIPES = [path for path in ALL if not has_stages(path)]  # those of several stages run in `test_stage_runs`

TINY = {
    "repeat": 1,
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 32, "activation": "silu", "gated": True},
}
CODE = '"""A module."""\n\n\ndef add(a, b):\n    """Adds."""\n    return a + b\n'
KINDS = ("Date", "Humans", "Place")
ALIGNING = ("reward", "dpo", "orpo", "kto", "ppo", "grpo", "refusal")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_toy(tmp_path_factory.mktemp("models") / "toy", context=512)
    reward = SequenceClassifier(load_directory(folder), 1)
    init_head(reward, 0)
    save_classifier(reward, folder.parent / "reward", toy_tokenizer())
    return folder


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes name their judges from there."""
    monkeypatch.chdir(ROOT)


def rows_for(name: str, folder: Path) -> Path:
    """Rows in the format that the recipe's own data have."""
    if name.startswith(ALIGNING):
        rows: list[dict[str, Any]] = [
            {
                "prompt": [{"role": "user", "content": f"what is it {i}"}],
                "chosen": [{"role": "assistant", "content": f"it is {i}"}],
                "rejected": [{"role": "assistant", "content": "who knows"}],
                "answer": i,
                "kind": ("unsafe", "harmless")[i // 8 % 2],
            }
            for i in range(40)
        ]
    elif "chat" in name or "sft" in name or "lora" in name:
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"what is it {i}"},
                    {"role": "assistant", "content": f"Type: {KINDS[i % 3]}"},
                ]
            }
            for i in range(40)
        ]
    elif "dates" in name or "translate" in name:
        rows = [{"prompt": f"the {i}th of May", "completion": f"{i:02d}.05."} for i in range(40)]
    elif "tagger" in name:
        rows = [{"tokens": ["it", "is", str(i)], "tags": ["pn", "vb", "cd"]} for i in range(40)]
    elif "classify" in name:
        rows = [{"text": f"{'good' if i % 2 else 'bad'} day {i}", "label": "yes" if i % 2 else "no"} for i in range(40)]
    else:
        rows = [{"text": CODE.replace("add", f"add_{i}")} for i in range(40)]
    path = folder / "rows"
    path.mkdir()
    for number in range(8):
        lines = "".join(json.dumps(row) + "\n" for row in rows[number::8])
        (path / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    return path


def changes_for(recipe: Path, folder: Path, toy: Path) -> list[str]:
    """What makes the recipe tiny; nothing else about it changes."""
    text = recipe.read_text(encoding="utf-8")
    rows = rows_for(recipe.stem, folder)
    changes = [f"data={rows}", "steps=2", "epochs=null", "micro_batch=2", "validation=0.3", "threads=1"]
    changes += ["evaluate_every=1", "save_every=1", "max_length=128"]
    if "\nmodel:" in f"\n{text}":
        changes.append(f"model={toy}")
    else:
        changes += ["tokenizer.vocab_size=300", "architecture.hidden_size=16"]
    if "\nsample_every:" in text or "\ncompare:" in text:
        changes.append("sample_tokens=3")
    if "\ncompare:" in text:
        changes.append("compare.rows=4")
    if "compare:\n  prompts:" in text:
        changes.append(f"compare.prompts={rows}")
    if "max_completion_length:" in text:
        changes.append("objective.max_completion_length=3")
    if "num_generations:" in text:
        changes.append("objective.num_generations=2")
    if "rewards: [{model:" in text:
        changes.append(f"objective.rewards=[{{model: {toy.parent / 'reward'}}}]")
    if "\nanswers:" in text:
        changes += ["answers.rows=5", "answers.shots=1"]
    if "\ncode:" in text:
        changes += ["code.samples=2", "code.tokens=6"]
    return changes


def judges_of(text: str) -> set[str]:
    """What a recipe names as functions that judge."""
    return set(re.findall(r"function: (?:\S+:)?(\w+)\}", text))


@pytest.mark.parametrize("recipe", RECIPES, ids=[path.stem for path in RECIPES])
def test_it_trains(recipe: Path, tmp_path: Path, toy: Path) -> None:
    said: list[str] = []
    outcome = train(
        load_recipe(recipe, changes_for(recipe, tmp_path, toy)), tmp_path / "run", say=said.append, quiet=True
    )
    assert outcome.steps == 2
    assert outcome.loss is not None
    assert outcome.eval_loss is not None
    text = recipe.read_text(encoding="utf-8")
    made = "adapter/adapter_model" if "\nadapter:" in text else "model/model"
    assert (outcome.run / f"{made}.safetensors").exists()
    report = json.loads((outcome.run / "report.json").read_text()) if (outcome.run / "report.json").exists() else {}
    if "\nyardsticks:" in text:
        assert report["yardsticks"]["byte_5gram"] > 0
        assert any("xz -9" in line for line in said)
    if "\nanswers:" in text:
        untuned = {"untuned", "untuned, 1 examples", "tuned over untuned"} if "\nmodel:" in f"\n{text}" else set()
        assert set(report["answers"]) >= {"tuned", *untuned}
        assert ("bleu" in report["answers"]["tuned"]) == ("bleu:" in text)
        assert report["answers"]["rows"] == 5
    if "\npairs:" in text:
        assert report["pairs"]["rows"] > 5
        assert {"before", "after", "gain"} <= report["pairs"].keys()
    if "\ncompare:" in text:
        assert report["compare"]["prompts"] == 4
        assert all(len(judge["gain"]) == 3 for judge in report["compare"]["stages"]["policy"]["scores"].values())
        assert report["compare"]["stages"]["policy"]["scores"].keys() >= judges_of(text)
    if "\ncode:" in text:
        assert len(report["code"]["min_p 0"]["samples"]) == 2
        assert any("min_p 0.05: " in line for line in said)


def test_the_recipes_are_those_the_house_promises() -> None:
    names = {path.stem for path in ALL}
    assert names >= {
        "pretrain-stdlib",
        "pretrain-folder",
        "pretrain-tang",
        "continue-pretraining",
        "sft-smollm2",
        "chat-smollm2",
        "lora-smollm2",
        "qlora-smollm2",
        "sft-chat-mix",
        "classify-gpt1",
        "rnn-lm",
        "lstm-lm",
        "gru-lm",
        "tagger-bilstm",
        "seq2seq-dates",
        "attention-dates",
        "transformer-dates",
        "transformer-translate",
        "attention-translate",
        "three-stages",
        *(f"{name}-smollm2" for name in ALIGNING),
    }
