"""Runs of two ranks: every objective ends where one process with twice the accumulation does; one stop stops all.

Of objectives, adapters and layouts each is with every test at least once; the rest of the list with `make prove`.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from intaglio.checkpoints.load import DTYPES
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.specs import validate
from intaglio.training.loop import Loop, Step
from intaglio.training.recipe import Recipe
from intaglio.training.run import resume, train
from out_of_memory import on_cuda, short
from ranks import run_ranks
from running import unmeasured
from tiny_specs import MOE, block, decoder
from toy_llms import PADDED_VOCAB, random_model, save_toy, toy_tokenizer

REWARD = '''
def letters(completions, prompts, **columns):
    """Which share of an answer are small letters."""
    return [sum(c.islower() and c.isascii() for c in text) / max(len(text), 1) for text in completions]
'''
DRAWN = {"max_completion_length": 3, "rewards": [{"function": "letters"}]}
PPO = {"kind": "ppo", "num_ppo_epochs": 2, "num_mini_batches": 2, "target_kl": 5.0, **DRAWN}
GRPO = {"kind": "grpo", "num_generations": 4, "loss_type": "dapo", **DRAWN}
LORA = {"r": 2, "target_modules": "all-linear"}
RUNS: dict[str, dict[str, Any]] = {
    "texts, zero 0": {"data": "texts", "parallel": {"dp": 2}},
    "texts, zero 2": {"data": "texts", "parallel": {"dp": 2, "zero": 2}, "checkpointing": 1, "packing": "none"},
    "texts in bf16, zero 2": {"data": "texts", "parallel": {"dp": 2, "zero": 2}, "precision": "bfloat16"},
    "classes, zero 1": {"data": "classes", "parallel": {"dp": 2, "zero": 1}, "objective": {"kind": "classifier"}},
    "dpo, zero 3": {"data": "pairs", "parallel": {"dp": 2, "zero": 3}, "objective": {"kind": "dpo"}},
    "reward, zero 3": {"data": "pairs", "parallel": {"dp": 2, "zero": 3}, "objective": {"kind": "reward"}},
    "dpo, lora, zero 2": {
        "data": "pairs",
        "parallel": {"dp": 2, "zero": 2},
        "objective": {"kind": "dpo"},
        "adapter": LORA,
    },
    "qlora, zero 3": {"data": "texts", "parallel": {"dp": 2, "zero": 3}, "adapter": LORA, "quantization": {}},
    "texts, tp": {"data": "texts", "parallel": {"tp": 2}},
    "dpo, tp": {"data": "pairs", "parallel": {"tp": 2}, "objective": {"kind": "dpo", "reference": "copy"}},
    "texts, cp, zero 2": {"data": "texts", "parallel": {"cp": 2, "zero": 2}},
    "texts, ep, zero 1": {"data": "texts", "parallel": {"dp": 2, "ep": 2, "zero": 1}, "model": "mixture"},
    "texts, pp": {"data": "texts", "parallel": {"pp": 2}, "checkpointing": 1, "model": "tied"},
    "reward, pp": {
        "data": "pairs",
        "parallel": {"pp": {"ranks": 2, "schedule": "gpipe"}},
        "objective": {"kind": "reward"},
    },
    "dpo, lora, pp": {
        "data": "pairs",
        "parallel": {"pp": 2},
        "objective": {"kind": "dpo", "reference": "precomputed"},
        "adapter": LORA,
    },
    "ppo, zero 3": {"data": "prompts", "parallel": {"dp": 2, "zero": 3}, "objective": PPO, "micro_batch": 4},
    "grpo, lora, zero 0": {
        "data": "prompts",
        "parallel": {"dp": 2},
        "objective": {**GRPO, "beta": 0.1},
        "adapter": LORA,
        "micro_batch": 4,
    },
}
STOPPED = "texts, zero 2"
PROVED = ("texts in bf16, zero 2", "reward, zero 3", "dpo, lora, zero 2", "texts, tp", "dpo, lora, pp")
LISTED = [pytest.param(name, marks=[pytest.mark.prove] if name in PROVED else []) for name in RUNS]
IN_FP32 = ("qlora, zero 3", "texts in bf16, zero 2")  # what steps them, while all others are in fp64


def _rows() -> dict[str, list[dict[str, Any]]]:
    texts = [{"text": "a good day " * (1 + i % 3) + str(i)} for i in range(30)]
    pairs = [{"prompt": f"say {i}", "chosen": " yes" * (1 + i % 3), "rejected": " no" * (1 + i % 4)} for i in range(30)]
    return {
        "texts": texts,
        "classes": [{**row, "label": "ab"[i % 2]} for i, row in enumerate(texts)],
        "pairs": pairs,
        "prompts": [{"prompt": f"{chr(65 + i)} the user says {i}"} for i in range(24)],
    }


def _recipe(folder: Path, name: str, **more: Any) -> Recipe:
    run = dict(RUNS[name])
    objective = dict(run.get("objective", {"kind": "language_model"}))
    if "rewards" in objective:
        objective["rewards"] = [{"function": f"{folder / 'reward.py'}:letters"}]
    plain = {
        "validation": 0.2,
        "max_length": 48,
        "micro_batch": 2,
        "accumulation": 2,
        "steps": 3,
        "precision": "float32",
        "optimizer": {"learning_rate": 0.01},
        "evaluate_every": 3,
        "save_every": 0,
        "threads": 1,
    }
    run["model"] = str(folder / run.get("model", "toy"))
    whole = {**plain, **run, "objective": objective, "data": str(folder / f"{run['data']}.jsonl"), **more}
    recipe: Recipe = validate(Recipe, whole, name)
    return recipe


def _run(recipe: Recipe, out: Path) -> tuple[list[str], Any]:
    said: list[str] = []
    return said, train(recipe, out, say=said.append, quiet=True)


def _counted(said: list[str]) -> str:
    """The line that says how much trains on how many rows."""
    return next(line for line in said if " parameters" in line)


def _together(folder: Path, names: list[str]) -> dict[str, Any]:
    """Those runs, in fp64, one that is stopped on the second rank alone and gone on with, and one short of memory."""
    DTYPES["float32"] = torch.float64
    unmeasured(pytest.MonkeyPatch())
    found: dict[str, Any] = {name: _run(_recipe(folder, name), folder / "two" / name) for name in names}
    step, out = Loop.step, folder / "two" / "stopped"

    def stopping(self: Loop) -> Step:
        if os.environ["RANK"] == "1" and self.done == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    Loop.step = stopping  # type: ignore[method-assign]
    found["stopped"] = _run(_recipe(folder, STOPPED), out)[1]
    Loop.step = step  # type: ignore[method-assign]
    found["resumed"] = resume(out, say=lambda line: None, quiet=True)
    with short(after=2 * 2, fails=on_cuda), pytest.raises(UserError) as said:  # layers, micro-batches: a step is done
        _run(_recipe(folder, "dpo, zero 3", save_every=1), folder / "two" / "short")
    found["short"] = str(said.value)
    with pytest.raises((UserError, SystemExit)) as ended:
        _run(_recipe(folder, STOPPED, data=str(folder / "nowhere.jsonl")), folder / "two" / "nowhere")
    found["nowhere"] = str(ended.value)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    save_toy(made / "toy", context=128)
    mixture = decoder(block(feed_forward=MOE), vocab_size=PADDED_VOCAB, max_position_embeddings=128)
    save_model(random_model(mixture), made / "mixture", toy_tokenizer(), {"eos_token_id": [2, 0]})
    tied = decoder(block(repeat=3), tie_embeddings=True, vocab_size=PADDED_VOCAB, max_position_embeddings=128)
    save_model(random_model(tied), made / "tied", toy_tokenizer(), {"eos_token_id": [2, 0]})
    (made / "reward.py").write_text(REWARD, encoding="utf-8")
    for name, rows in _rows().items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (made / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return made


def _asked(request: pytest.FixtureRequest) -> list[str]:
    """The runs that a test of this session looks at."""
    items = [item for item in request.session.items if item.path == request.path]
    named = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return [name for name in RUNS if name in named or name == STOPPED]


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    """What two ranks told, after one process has done the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DTYPES, "float32", torch.float64)
        patch.setenv("INTAGLIO_HOME", str(folder / "home"))
        names = _asked(request)
        for name in names:
            readers = RUNS[name]["parallel"].get("dp", 1)
            said, _ = _run(_recipe(folder, name, parallel=None, accumulation=2 * readers), folder / "one" / name)
            (folder / "one" / name / "said").write_text(_counted(said), encoding="utf-8")
        return run_ranks(2, _together, folder, names, timeout=300)


def _lines(run: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "per_second", "mfu", "peak_memory")
    read = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not any(word in key for word in timed)} for line in read]


def _assert_close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], closest: float = 1e-9) -> None:
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.keys() == its.keys()
        for key, value in its.items():
            close = closest if key in ("loss", "grad_norm", "tokens", "targets") else 1e-5
            if key != "rewards/accuracies" or mine["step"] > 1:  # a policy that is its reference wins by rounding
                assert np.asarray(mine[key]) == pytest.approx(np.asarray(value), rel=close, abs=close), key


@pytest.mark.parametrize("name", LISTED)
def test_two_ranks_end_where_one_process_does(ran: list[dict[str, Any]], folder: Path, name: str) -> None:
    two, one = folder / "two" / name, folder / "one" / name
    lines = _lines(two)
    _assert_close(lines, _lines(one), 1e-5 if name in IN_FP32 else 1e-9)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3]
    assert any("eval_loss" in line for line in lines)
    written = sorted(
        str(file.relative_to(one)) for file in one.rglob("*.safetensors") if "checkpoints" not in str(file)
    )
    assert written
    for file in written:
        ours, theirs = load_file(two / file), load_file(one / file)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            close = 1e-2 if tensor.dtype == torch.bfloat16 else 1e-6  # a rounding may fall the other way
            torch.testing.assert_close(ours[key], tensor, rtol=close, atol=2e-7)


@pytest.mark.parametrize("name", LISTED)
def test_the_first_rank_speaks_for_all(ran: list[dict[str, Any]], folder: Path, name: str) -> None:
    (said, first), (unsaid, second) = ran[0][name], ran[1][name]
    assert _counted(said) == (folder / "one" / name / "said").read_text()  # of the whole model, and of all rows
    assert not unsaid
    assert (first.steps, first.loss, first.eval_loss) == (second.steps, second.loss, second.eval_loss)


def test_a_stop_of_one_rank_stops_all_and_loses_nothing(ran: list[dict[str, Any]], folder: Path) -> None:
    for rank in ran:
        assert (rank["stopped"].steps, rank["stopped"].stopped) == (2, signal.SIGTERM)
        assert (rank["resumed"].steps, rank["resumed"].stopped) == (3, None)
    _assert_close(_lines(folder / "two" / "stopped"), _lines(folder / "two" / STOPPED))


def test_ranks_that_are_short_of_memory_name_themselves(ran: list[dict[str, Any]], folder: Path) -> None:
    for number, rank in enumerate(ran):
        said = rank["short"]
        assert said.startswith(f"rank {number}: memory ran out after 1 step (2.50 GiB more were asked for); a step is ")
        assert f"the last checkpoint is {folder / 'two' / 'short' / 'checkpoints' / 'step-00000001'}; go on" in said
        assert "with: torchrun ... -m intaglio.cli.main train " in said
        assert "checkpointing=1 gains " in said
    assert (folder / "two" / "short" / "checkpoints" / "step-00000001" / "shards").is_dir()


def test_of_what_is_refused_one_rank_speaks(ran: list[dict[str, Any]]) -> None:
    first, second = (rank["nowhere"] for rank in ran)
    assert "nowhere.jsonl" in first
    assert second == "2"  # the exit status


def test_a_layout_for_more_processes_than_there_are_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"^parallel: the layout is for 2 processes \(dp 2\), and there is 1; torchrun"):
        train(_recipe(folder, STOPPED), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"is for 1 process .*, and there are 4"):
        train(_recipe(folder, STOPPED, parallel=None), tmp_path / "run")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(SystemExit) as ended:  # one line is enough
        train(_recipe(folder, STOPPED), tmp_path / "run")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": {"kind": "muon"}}, "muon steps whole matrices"),
        ({"compile": True, "checkpointing": 0}, "compile"),
        ({"parallel": {"dp": 2, "zero": 4}}, "zero"),
        ({"parallel": {"dp": -2}}, "dp"),
        ({"parallel": {"dp": 2, "zerro": 1}}, "did you mean zero"),
        ({"parallel": {"dp": 4, "hsdp": 3, "zero": 1}}, "hsdp 3 does not divide dp 4"),
        ({"parallel": {"dp": 2, "offload": True}}, "offload moves shards"),
        ({"parallel": {"pp": 2, "zero": 2}}, "zero 2 gathers parameters"),
        ({"parallel": {"pp": 4}}, "2 micro-batches for 1f1b over 4 ranks, which needs 4 or more"),
        ({"parallel": {"pp": {"ranks": 2, "micro_batches": 4}}}, "a step has accumulation 2"),
        ({"parallel": {"pp": 2}, "neftune": 5.0}, "neftune"),
        ({"parallel": {"pp": 2}, "objective": {"kind": "dpo"}, "adapter": LORA}, "take reference precomputed"),
        ({"parallel": {"pp": 2}, "objective": {"kind": "kto"}}, "kto asks the whole model"),
    ],
)
def test_what_ranks_cannot_share_is_refused_in_one_line(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        _recipe(folder, STOPPED, **changes)
    assert "\n" not in str(refused.value)
