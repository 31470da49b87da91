"""Which directory holds the head of a reward or of values: a whole model's, or an adapter's beside the base it names.

| directory | what says so | the head |
|---|---|---|
| a model: RUN/model of a reward model, RUN/value of PPO | architecture ...ForSequenceClassification | `score.weight` |
| an adapter: RUN/adapter of a reward model | task type SEQ_CLS | among its tensors |
"""

from pathlib import Path

from intaglio.adapters.merge import merge, tokenizer_of
from intaglio.adapters.models import load_model
from intaglio.adapters.peft_files import CONFIG, config_of_adapter
from intaglio.checkpoints.classifiers import is_classifier, load_classifier
from intaglio.checkpoints.models import find_model, load_tokenizer
from intaglio.errors import UserError
from intaglio.models.heads import SequenceClassifier
from intaglio.text.tokenizer import Tokenizer

__all__ = ["load_scorer"]


def load_scorer(name: str, dtype: str, device: str, where: str) -> tuple[SequenceClassifier, Tokenizer]:
    """A model with one score for a text, an adapter merged into it, and its tokenizer.

    Args:
        name: see above; or a pulled model.
        dtype: of the weights.
        device: where they go.
        where: who asks, for errors.

    Raises:
        UserError: no such directory, a run's folder (names what is in it), or no single score.
    """
    _require_no_run(Path(name), where)
    model, tokenizer = (_adapted if (Path(name) / CONFIG).is_file() else _whole)(name, dtype, device, where)
    if model.num_labels != 1:
        raise UserError(f"{name} has {model.num_labels} scores, and a reward or a value is one", where=where)
    return model, tokenizer


def _whole(name: str, dtype: str, device: str, where: str) -> tuple[SequenceClassifier, Tokenizer]:
    path = find_model(name)
    if not is_classifier(path):
        raise _headless(name, where)
    return load_classifier(path, dtype, device), load_tokenizer(path)


def _adapted(name: str, dtype: str, device: str, where: str) -> tuple[SequenceClassifier, Tokenizer]:
    folder = Path(name)
    config = config_of_adapter(folder)
    base = config.get("base_model_name_or_path")
    if config.get("task_type") != "SEQ_CLS":
        raise _headless(name, where)
    if not base:
        raise UserError(f"{name} does not say which model is below it", where=where, mend="intaglio merge makes one")
    model = load_model(base, dtype=dtype, device=device, adapter=folder)
    merge(model)
    tokenizer, _ = tokenizer_of(base, folder)
    if tokenizer is None:
        raise UserError(f"neither {name} nor its base has a tokenizer", where=where)
    return model, tokenizer


def _headless(name: str, where: str) -> UserError:
    return UserError(f"{name} is no reward model: it has no head", where=where, mend="train one with objective reward")


def _require_no_run(folder: Path, where: str) -> None:
    if not (folder / "recipe.yaml").is_file():
        return
    made = [str(folder / part) for part in ("value", "model", "adapter") if (folder / part).is_dir()]
    mend = f"name {' or '.join(made)}" if made else "let it end first"
    raise UserError(f"{folder} is the folder of a run", where=where, mend=mend)
