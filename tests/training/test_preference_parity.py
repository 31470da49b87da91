"""One step of DPO, ORPO, KTO and a reward model is TRL's: the same loss, metrics and gradients on the same rows.

TRL pads rows with the EOS, prompt and all twice a pair; ours are packed documents that fork.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from compared import EOS, gradients_of, judged, pairs, policy_folder, shaken, toy_decoder, triples
from intaglio.checkpoints.classifiers import load_classifier, save_classifier
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.training.batching.forks import make_forked
from intaglio.training.objectives.dpo import DPO
from intaglio.training.objectives.kto import KTO, make_rotated
from intaglio.training.objectives.metrics import joined
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.orpo import ORPO, orpo_batches
from intaglio.training.objectives.reward import PairwiseReward
from intaglio.training.reference import Computed, ModelCopy

QUIET = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
PAIR_ROWS = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2
JUDGED_ROWS = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": False}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy_folder(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def policy(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model than the reference, or every loss would be a constant."""
    moved = shaken(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    out = tmp_path_factory.mktemp("models") / "policy"
    moved.save_pretrained(out)  # type: ignore[operator]
    return out


def opened(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def backward(loss: Loss, targets: float) -> float:
    (loss.total / targets).backward()
    return float(loss.total.detach()) / targets


def require_equal(ours: torch.nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def require_metrics(found: Loss, theirs: dict[str, list[float]]) -> None:
    mine = joined([found.metrics])
    shared = {name for name in theirs if name in mine}
    assert {"logps/chosen", "rewards/margins"} <= shared
    for name in shared:
        assert mine[name] == pytest.approx(theirs[name][-1], rel=1e-4, abs=1e-5), name


LOSSES = [
    ("sigmoid", "sigmoid", 0.0),
    ("robust", "robust", 0.1),
    ("hinge", "hinge", 0.0),
    ("ipo", "ipo", 0.0),
    ("sigmoid_norm", "sigmoid_norm", 0.0),
]


@pytest.fixture(scope="module")
def dpo_trainer(folder: Path, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL's; a test says for which loss."""
    config, rows = DPOConfig(str(tmp_path_factory.mktemp("dpo")), beta=0.3, **QUIET), Dataset.from_list(PAIR_ROWS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return DPOTrainer(opened(policy), opened(folder), config, train_dataset=rows, processing_class=tokenizer)


@pytest.fixture
def dpo(dpo_trainer: Any) -> Iterator[Any]:
    """The same, its weights put back afterwards."""
    weights = {name: tensor.clone() for name, tensor in dpo_trainer.model.state_dict().items()}
    yield dpo_trainer
    dpo_trainer.model.zero_grad()
    dpo_trainer.model.load_state_dict(weights)


def collated(dpo: Any) -> Any:
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return dpo.data_collator([dict(zip(names, triple, strict=True)) for triple in triples()])


@pytest.mark.parametrize(("ours", "theirs", "smoothing"), LOSSES)
def test_dpo(ours: Any, theirs: str, smoothing: float, dpo: Any, folder: Path, policy: Path, tmp_path: Path) -> None:
    batch = collated(dpo)
    assert (batch["input_ids"][batch["attention_mask"] == 0] == EOS).all()
    dpo.loss_types, dpo.label_smoothing = [theirs], smoothing
    dpo.model.train()
    expected = dpo.compute_loss(dpo.model, batch)
    expected.backward()
    model = toy_decoder(policy)
    objective = DPO(Computed(ModelCopy(toy_decoder(folder))), ours, 0.3, smoothing, chunk=7)
    found = objective(model, make_forked(pairs()))
    assert backward(found, 5) == pytest.approx(expected.item(), rel=1e-5)
    require_metrics(found, dpo._metrics["train"])
    require_equal(model, gradients_of(dpo.model, tmp_path / "gradients"))


def test_dpo_measures_what_trl_does(dpo: Any, folder: Path, policy: Path) -> None:
    """Entropy, logits and accuracy, which ours tells where it does not train."""
    dpo.model.eval()
    with torch.no_grad():
        dpo.compute_loss(dpo.model, collated(dpo))
        objective = DPO(Computed(ModelCopy(toy_decoder(folder))), beta=0.3, chunk=7)
        found = objective(toy_decoder(policy).eval(), make_forked(pairs()))
    require_metrics(found, dpo._metrics["eval"])
    assert {"entropy", "logits/chosen", "logits/rejected", "mean_token_accuracy"} <= found.metrics.keys()


def test_orpo(folder: Path, policy: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config, rows = ORPOConfig(str(tmp_path), beta=0.3, **QUIET), Dataset.from_list(PAIR_ROWS)
    trainer = ORPOTrainer(opened(policy), config, train_dataset=rows, processing_class=tokenizer)
    batch = trainer.data_collator([_orpo_row(*triple) for triple in triples()])
    trainer.model.train()
    expected, metrics = trainer.get_batch_loss_metrics(trainer.model, batch)
    expected.backward()
    model = toy_decoder(policy)
    (mine,) = orpo_batches([make_forked(pairs())], "all")
    found = ORPO(0.3, chunk=7)(model, mine)
    assert backward(found, 5) == pytest.approx(expected.item(), rel=1e-5)
    metrics = {name: [value] for name, value in metrics.items() if not name.startswith("logits/")}  # of padding too
    assert {"nll_loss", "log_odds_ratio", "log_odds_chosen"} <= found.metrics.keys() & metrics.keys()
    require_metrics(found, metrics)
    require_equal(model, gradients_of(trainer.model, tmp_path / "gradients"))


def _orpo_row(prompt: list[int], chosen: list[int], rejected: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
    for side, answer in (("chosen", chosen), ("rejected", rejected)):
        row[f"{side}_input_ids"] = prompt + answer
        row[f"{side}_attention_mask"] = [1] * len(prompt + answer)
        row[f"{side}_labels"] = [-100] * len(prompt) + answer
    return row


def test_kto(folder: Path, policy: Path, tmp_path: Path) -> None:
    """The other way round, since z is cut off below 0 where the policy likes the answers less than the reference."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    weights = {"desirable_weight": 1.2, "undesirable_weight": 0.7}
    config = KTOConfig(str(tmp_path), beta=0.3, per_device_train_batch_size=2, **weights, **QUIET)
    rows = Dataset.from_list(JUDGED_ROWS)
    trainer = KTOTrainer(opened(folder), opened(policy), config, train_dataset=rows, processing_class=tokenizer)
    answers = [answer for _, answer, _ in triples()]
    batch = trainer.data_collator(
        [
            {"prompt_ids": prompt, "completion_ids": answer, "KL_completion_ids": other, "label": i % 2 == 0}
            for i, ((prompt, answer, _), other) in enumerate(zip(triples(), [answers[-1], *answers[:-1]], strict=True))
        ]
    )
    trainer.model.train()
    expected = trainer.compute_loss(trainer.model, batch)
    expected.backward()
    assert trainer._metrics["train"]["kl"][-1] > 0  # or half of the loss is not looked at
    model = toy_decoder(folder)
    objective = KTO(Computed(ModelCopy(toy_decoder(policy))), 0.3, 1.2, 0.7, chunk=7)
    found = objective(model, make_rotated(judged(), 64))
    assert backward(found, 5) == pytest.approx(expected.item(), rel=1e-5)
    require_metrics(found, trainer._metrics["train"])
    require_equal(model, gradients_of(trainer.model, tmp_path / "gradients"))


@pytest.mark.parametrize("margins", [False, True])
def test_reward(margins: bool, folder: Path, tmp_path: Path) -> None:
    ours = SequenceClassifier(toy_decoder(folder), 1)
    init_head(ours, 0)
    ours.drop_outputs()
    save_classifier(ours, tmp_path / "reward")
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward", dtype=torch.float32)
    pad = 319  # no token of any row: with the EOS, transformers would read the token before it (case 17)
    theirs.config.pad_token_id = pad
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = RewardConfig(str(tmp_path / "out"), center_rewards_coefficient=0.01, **QUIET)
    trainer = RewardTrainer(theirs, config, train_dataset=Dataset.from_list(PAIR_ROWS), processing_class=tokenizer)
    theirs.config.pad_token_id = trainer.data_collator.pad_token_id = pad
    wide = [0.0, 0.3, -0.2, 1.0, 0.5]
    examples = [
        {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected, **({"margin": wide[i]} if margins else {})}
        for i, (prompt, chosen, rejected) in enumerate(triples())
    ]
    theirs.train()
    expected = trainer.compute_loss(theirs, trainer.data_collator(examples))
    expected.backward()
    documents = [pairs(5, margin=margin)[i] for i, margin in enumerate(wide)]
    found = PairwiseReward(0.01, margins)(ours.train(), make_forked(documents))
    assert backward(found, 5) == pytest.approx(expected.item(), rel=1e-5)
    mine, metrics = joined([found.metrics]), trainer._metrics["train"]
    for name in ("min_reward", "mean_reward", "max_reward", "accuracy", "margin"):
        assert mine[name] == pytest.approx(metrics[name][-1], rel=1e-4, abs=1e-6)
    require_equal(ours, gradients_of(theirs, tmp_path / "gradients", load_classifier))
