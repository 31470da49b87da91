"""`recipes/three-stages.yaml` at toy size: rows of our own, a model that trains in a second, and a judge."""

import json
from pathlib import Path

import yaml

__all__ = ["RECIPE", "STAGES", "toy_changes"]

RECIPE = Path(__file__).parents[1] / "recipes" / "three-stages.yaml"
STAGES = ("pretrain", "sft", "reward", "ppo", "dpo")
THINGS = "river hill field rain sea stone wind bird leaf sand cloud frost reed owl fern moss".split()
JUDGE = '''
def short(completions, **columns):
    """The shorter, the better."""
    return [-float(len(text)) for text in completions]


def named(completions, subject, **columns):
    """1 where the subject is named."""
    return [float(word in text) for text, word in zip(completions, subject)]
'''
LAYER = {
    "repeat": 1,
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 24, "activation": "silu", "gated": True},
}


def toy_changes(folder: Path) -> list[str]:
    """What makes the recipe tiny, as on the command line; its rows and its judge lie in `folder`."""
    texts = [{"text": f"the {one} takes what the {other} gives"} for one in THINGS for other in THINGS[:4]]
    asked = [{"prompt": f"about {one}:\n", "subject": one} for one in THINGS]
    told = [{**row, "completion": f"the {row['subject']} is {end}"} for row in asked for end in ("here", "away")]
    pairs = [{**row, "chosen": f"the {row['subject']}", "rejected": f"what a {row['subject']}"} for row in asked]
    for name, rows in {"texts": texts, "told": told, "pairs": pairs, "asked": asked}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "judge.py").write_text(JUDGE, encoding="utf-8")
    data = {"pretrain": "texts", "sft": "told", "reward": "pairs", "ppo": "asked", "dpo": "pairs"}
    scores = [{"function": f"{folder}/judge.py:{name}"} for name in ("short", "named")]
    architecture = {"hidden_size": 16, "max_position_embeddings": 64, "layers": [LAYER]}
    return [
        *(f"{stage}.data={folder}/{rows}.jsonl" for stage, rows in data.items()),
        *(f"{stage}.{key}" for stage in STAGES for key in ("steps=4", "micro_batch=2", "validation=0.25")),
        *(f"{stage}.{key}" for stage in STAGES for key in ("evaluate_every=4", "save_every=2", "threads=1")),
        f"pretrain.architecture={yaml.safe_dump(architecture, default_flow_style=True, width=1000).strip()}",
        *(f"{stage}.optimizer.{key}" for stage in ("pretrain", "sft") for key in ("kind=adamw", "learning_rate=0.03")),
        "pretrain.tokenizer.vocab_size=300",
        "ppo.objective.max_completion_length=6",
        "ppo.sample_every=4",
        "ppo.compare={shown: 1}",
        "dpo.sample_every=2",
        "dpo.sample_tokens=6",
        f"report.prompts={folder}/asked.jsonl",
        f"report.scores={json.dumps(scores)}",
        "report.max_tokens=6",
        "report.samples=2",
    ]
