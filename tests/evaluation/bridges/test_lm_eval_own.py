"""lm-eval's own tasks: told apart from ours, asked for by name or file, and read back whatever they are like."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.bridges.lm_eval import LmEval
from intaglio.evaluation.bridges.lm_eval_own import own_names, run_own
from pretended_evaluators import pretend


def test_they_are_told_apart() -> None:
    assert own_names("a.jsonl, lm-eval:hellaswag,mmlu:x,lm-eval:t.yaml") == (["hellaswag", "t.yaml"], "a.jsonl,mmlu:x")
    assert own_names("a") == ([], "a")


def test_their_findings_are_results_of_ours(tmp_path: Path) -> None:
    run = LmEval(tmp_path / "run", "local-completions", {}, 4, pretend(tmp_path / "bin"))
    file = tmp_path / "own" / "t.yaml"
    file.parent.mkdir()
    file.write_text("# mine\ntask: written\ndoc_to_text: !function x.y\n")
    found, versions = run_own(run, ["chosen", str(file)], shots=3, limit=9, chat=False)
    assert versions["lm_eval"] == "1.2.3"
    (config,) = (one["config"] for one in json.loads((tmp_path / "bin" / "started.json").read_text()))
    assert (config["tasks"], config["num_fewshot"], config["limit"]) == (["chosen", "written"], 3, 9)
    assert config["include_path"] == str(file.parent)
    assert "apply_chat_template" not in config
    (chosen,) = found["lm-eval:chosen"].outcomes
    assert (chosen.prompt, chosen.prediction, chosen.nats, chosen.scores) == ("Q:", "b", [-2.0, -1.0], {"acc": 1.0})
    written = found["lm-eval:written"]
    assert [(one.id, one.prediction, one.text) for one in written.outcomes] == [
        ("0 strict", "[invalid]", "it is 4"),
        ("0 loose", "4", "it is 4"),
    ]
    assert written.categories["loose"]["exact_match"].mean == 1  # filters are no items: each has a mean of its own
    assert (found["lm-eval:chosen"].kind, written.kind) == ("choice", "generation")


def test_files_that_cannot_be_asked_for(tmp_path: Path) -> None:
    run = LmEval(tmp_path / "run", "local-completions", {}, 4, pretend(tmp_path / "bin"))
    nameless, other = tmp_path / "a" / "t.yaml", tmp_path / "b" / "t.yaml"
    for file in (nameless, other):
        file.parent.mkdir()
        file.write_text("dataset_path: json\n")
    with pytest.raises(UserError, match="names no task; it needs a line `task: NAME`"):
        run_own(run, [str(nameless)], shots=0, limit=None, chat=False)
    with pytest.raises(UserError, match="lm-eval looks for YAML files in one folder"):
        run_own(run, [str(nameless), str(other)], shots=0, limit=None, chat=False)
