"""Programs that behave as lm-eval and EvalScope do towards whoever starts them, without asking anybody anything.

`lm_eval` finds each choice as likely as its length says, and has tasks of its own, `chosen` and `written`; EvalScope
answers each item with the letter after the right one for odd items, gets no answer to every fifth, and takes the
reference for everything else. What they were started with lies in `started.json`, beside them.
"""

import sys
from pathlib import Path

__all__ = ["pretend"]

_COMMON = """
import json, os, sys
from pathlib import Path

def note(**told):
    keys = ("OPENAI_API_KEY", "EVALSCOPE_API_KEY", "HF_HUB_OFFLINE")
    told["environment"] = {key: os.environ.get(key) for key in keys}
    file = Path(__file__).with_name("started.json")
    before = json.loads(file.read_text()) if file.exists() else []
    file.write_text(json.dumps([*before, told]))

def lines(file):
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]

def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\\n" for row in rows), encoding="utf-8")
"""

_LM_EVAL = """
config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
note(config=config)
print("the last words")
if Path(__file__).with_name("fail").exists():
    sys.exit(3)
Path(config["use_cache"] + "_rank0.db").write_text("answers")
for name in config["tasks"]:
    if not name.startswith("intaglio_"):
        pair = {"gen_args_0": {"arg_0": "Q:", "arg_1": " a"}, "gen_args_1": {"arg_0": "Q:", "arg_1": " b"}}
        row = {"doc_id": 0, "doc": {}, "target": "1", "arguments": pair, "metrics": ["acc", "odd"], "odd": [1]}
        row |= {"resps": [[["-2.0", "False"]], [["-1.0", "False"]]], "filtered_resps": [], "acc": 1.0, "doc_hash": "h"}
        text = {"doc_id": 0, "doc": {}, "target": "4", "arguments": {"gen_args_0": {"arg_0": "2+2", "arg_1": {}}}}
        text |= {"resps": [["it is 4"]], "metrics": ["exact_match"], "doc_hash": "h"}
        strict = {**text, "filter": "strict", "filtered_resps": ["[invalid]"], "exact_match": 0.0}
        loose = {**text, "filter": "loose", "filtered_resps": ["4"], "exact_match": 1.0}
        rows = {"chosen": [row], "written": [strict, loose]}[name]
        write(Path(config["output_path"]) / "m" / f"samples_{name}_2026-01-01T00-00-00.jsonl", rows)
        continue
    task = json.loads((Path(config["include_path"]) / f"{name}.yaml").read_text())
    rows = []
    for number, doc in enumerate(lines(task["dataset_kwargs"]["data_files"]["test"])):
        row = {"doc_id": number, "doc": doc}
        if task["output_type"] == "multiple_choice":
            nats = [-float(len(choice)) for choice in doc["choices"]]
            if number == 2:
                nats[0] = float("nan")
            best = nats.index(max(nats))
            row["resps"] = [[[str(one), "False"]] for one in nats]
            row |= dict.fromkeys(("acc", "acc_norm", "acc_bytes"), float(best in doc["gold"]))
        else:
            row |= {"resps": [["it is B"]], "filtered_resps": ["B"], "exact_match": float("B" in doc["references"])}
        rows.append(row)
    write(Path(config["output_path"]) / "m" / f"samples_{name}_2026-01-01T00-00-00.jsonl", rows)
"""

_EVALSCOPE = """
config = json.loads(Path(sys.argv[-1]).read_text())
note(config=config)
out = Path(config["work_dir"])
for kind, told in config["dataset_args"].items():
    for subset in told["subset_list"]:
        files = [Path(told["local_path"]) / f"{subset}{end}" for end in ("_val.jsonl", ".jsonl")]
        rows = []
        for number, row in enumerate(lines(next(file for file in files if file.exists()))):
            if number % 5 == 4:
                continue
            if kind == "general_mcq":
                said = chr(ord(row["answer"]) + number % 2)
                value = {"accuracy": float(said == row["answer"])}
            else:
                said = row["response"]
                value = {"Rouge-L-F": 1.0}
            score = {"value": value, "status": "success", "extracted_prediction": said, "prediction": f"ANSWER: {said}"}
            rows.append({"index": number, "sample_score": {"score": score}})
        write(out / "reviews" / config["model"] / f"{kind}_{subset}.jsonl", rows[::-1])
"""


def pretend(folder: Path) -> Path:
    """Puts both into `folder`; the Python that they stand beside."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then case "$2" in *evalscope*run*) shift 2; exec {folder}/evalscope "$@";; '
        f'*) echo 1.2.3; exit;; esac; fi\nexec {sys.executable} "$@"\n'
    )
    for name, source in (("lm_eval", _LM_EVAL), ("evalscope", _EVALSCOPE)):
        (folder / name).write_text(f"#!{sys.executable}\n{_COMMON}{source}")
    for file in folder.iterdir():
        file.chmod(0o755)
    return python
