"""Preference objectives on batches: packed, alone and in micro-batches, references of every kind, a toy bandit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from compared import EOS, judged, pairs, policy_folder, shaken, toy_decoder
from intaglio.adapters.attach import attach
from intaglio.adapters.peft_files import load_adapter, save_adapter
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.parts.context import positions_of
from intaglio.specs.adapter import LoRASpec
from intaglio.training.batching.forks import ForkedBatch, ForkedExample, make_forked
from intaglio.training.objectives.dpo import DPO
from intaglio.training.objectives.kto import KTO, make_rotated
from intaglio.training.objectives.metrics import joined
from intaglio.training.objectives.orpo import ORPO, orpo_batches
from intaglio.training.objectives.reward import PairwiseReward
from intaglio.training.reference import AdapterCopy, AdapterOff, Computed, ModelCopy, Precomputed, precompute
from intaglio.training.stepping.tricks import without_dropout
from tiny_specs import block, decoder

Split = list[list[ForkedExample]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy_folder(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
def policy(folder: Path) -> Decoder:
    model = shaken(toy_decoder(folder))
    assert isinstance(model, Decoder)
    return model


def learned(model: Any, objective: Any, batches: Sequence[ForkedBatch]) -> tuple[float, list[Tensor], dict[str, float]]:
    """Loss, gradients and metrics of one optimizer step over these micro-batches."""
    model.zero_grad()
    targets, total, told = sum(batch.num_targets for batch in batches), 0.0, []
    for batch in batches:
        found = objective(model, batch)
        (found.total / targets).backward()
        total += found.total.item() / targets
        told.append(found.metrics)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return total, gradients, joined(told)


def splits(examples: list[ForkedExample]) -> list[Split]:
    """Together, two by two, and each alone."""
    return [[examples], [examples[:1], examples[1:3], examples[3:]], [[example] for example in examples]]


WEIGHTS = [1 / 3, 1.0, 0.5, 2.0, 1.0]


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "orpo", "orpo over answers", "reward"])
def test_micro_batches_change_nothing(kind: str, folder: Path, policy: Decoder) -> None:
    """Case 2: the loss is divided by the whole step's pairs, and the prompt that a pair shares is alone in its row."""
    model: Any = policy
    objective: Any = DPO(Computed(ModelCopy(toy_decoder(folder))), "sigmoid" if kind == "sigmoid" else "ipo")
    finish: Callable[[list[ForkedBatch]], Any] = list
    if kind.startswith("orpo"):
        over: Any = "completion" if kind.endswith("answers") else "all"
        objective, finish = ORPO(0.5, over), lambda batches: orpo_batches(batches, over)
    if kind == "reward":
        model, objective = SequenceClassifier(policy, 1), PairwiseReward(0.1)
        init_head(model, 0)
    examples = [pairs(5, weight=weight, margin=0.2)[i] for i, weight in enumerate(WEIGHTS)]
    loss, gradients, told = learned(model, objective, finish([make_forked(examples)]))
    assert loss > 0
    for split in splits(examples)[1:]:
        again, others, said = learned(model, objective, finish([make_forked(part) for part in split]))
        assert again == pytest.approx(loss, rel=1e-5)
        assert said == pytest.approx(told, rel=1e-4, abs=1e-5)
        for one, other in zip(gradients, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_accumulated_loss_at_the_start_is_ln_2(folder: Path) -> None:
    """Case 2 again, as it was reported: four micro-batches logged .6931 and not four times that."""
    model = toy_decoder(folder)
    objective = DPO(Computed(ModelCopy(model)))
    for split in splits(pairs()):
        loss, _, told = learned(model, objective, [make_forked(part) for part in split])
        assert loss == pytest.approx(0.693147, abs=1e-6)
        assert (told["rewards/accuracies"], told["rewards/margins"]) == (0.0, 0.0)
    kto, examples = KTO(Computed(ModelCopy(model))), judged(5)
    for parts in ([examples], [examples[:2], examples[2:]]):
        loss, _, told = learned(model, kto, [make_rotated(part, 64) for part in parts])
        assert loss == pytest.approx(0.5, abs=1e-6)
        assert told["kl"] == 0


def test_log_probabilities_are_those_of_padded_rows(policy: Decoder) -> None:
    """Left or right, with a pad token that is the EOS: the batch of ours has no padding at all."""
    examples = pairs()
    batch = make_forked(examples)
    objective = DPO(Precomputed({e.key: torch.zeros(2) for e in examples}, torch.zeros(16, dtype=torch.uint8)))
    told = joined([objective(policy, batch).metrics])
    for left in (False, True):
        sums = torch.tensor([[_padded(policy, e, side, left) for side in (1, 2)] for e in examples])
        assert told["logps/chosen"] == pytest.approx(sums[:, 0].mean().item(), rel=1e-5)
        assert told["logps/rejected"] == pytest.approx(sums[:, 1].mean().item(), rel=1e-5)


@torch.no_grad()
def _padded(model: Decoder, example: ForkedExample, side: int, left: bool) -> float:
    prompt = example.fork[0]
    start = prompt + sum(example.fork[1:side])
    answer = example.ids[start : start + example.fork[side]]
    row = np.concatenate((example.prompt, answer)).astype(np.int64)
    pads = np.full(7, EOS)
    ids = np.concatenate((pads, row) if left else (row, pads))
    mask = np.concatenate((pads * 0, row * 0 + 1) if left else (row * 0 + 1, pads * 0))
    logits = model(torch.from_numpy(ids)[None], positions_of(torch.from_numpy(mask)[None]))[0].log_softmax(-1)
    first = (7 if left else 0) + prompt
    return float(sum(logits[first + i - 1, token] for i, token in enumerate(answer.tolist())))


@pytest.fixture
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing has been asked before."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("_own_home")
def test_references_of_all_kinds_are_the_same(folder: Path, policy: Decoder) -> None:
    """Copied, precomputed, read from disk, and the base below an adapter: one reference, after the policy has moved."""
    begun = toy_decoder(folder)
    batches = [make_forked(pairs()[:2]), make_forked(pairs()[2:])]
    said: list[str] = []
    known = [precompute(begun, some, 7, said.append) for some in (batches, batches[::-1])]
    assert ["asking for 5" in said[0], "kept in" in said[1], "read from" in said[2]] == [True] * 3
    adapted = toy_decoder(folder)
    attach(adapted, LoRASpec(r=2))
    _move(adapted)
    shuffled = make_forked([pairs()[i] for i in (3, 0, 4)])
    wanted = Computed(ModelCopy(begun)).log_probs(policy, shuffled)
    assert wanted.shape == (6,)
    assert not torch.allclose(Computed(AdapterOff()).log_probs(policy, shuffled), wanted)
    torch.testing.assert_close(Computed(AdapterOff()).log_probs(adapted, shuffled), wanted)
    for reference in known:
        torch.testing.assert_close(reference.log_probs(policy, shuffled), wanted)


@pytest.mark.usefixtures("_own_home")
def test_what_was_precomputed_by_other_weights_is_not_taken(folder: Path, policy: Decoder) -> None:
    batches, said = [make_forked(pairs())], list[str]()
    precompute(policy, batches, 7, said.append)
    precompute(toy_decoder(folder), batches, 7, said.append)
    _move(policy)
    found = precompute(policy, batches, 7, said.append)
    assert "asking" in said[-2]
    torch.testing.assert_close(
        found.log_probs(policy, batches[0]), Computed(ModelCopy(policy)).log_probs(policy, batches[0])
    )


def _move(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1


@pytest.fixture
def begun_adapter(folder: Path, tmp_path: Path) -> Path:
    model = toy_decoder(folder)
    attach(model, LoRASpec(r=2, lora_alpha=6))
    _move(model)
    save_adapter(model, tmp_path / "begun", base=str(folder))
    return tmp_path / "begun"


def test_the_reference_of_an_adapter_that_goes_on_is_that_adapter(folder: Path, begun_adapter: Path) -> None:
    """Case 30: with adapters switched off it would be the base, which the policy never was, and the loss not ln 2."""
    model = toy_decoder(folder)
    load_adapter(model, begun_adapter, trainable=True)
    objective, batch = DPO(Computed(AdapterCopy(model))), make_forked(pairs())
    assert objective(model, batch).total.item() / 5 == pytest.approx(0.693147, abs=1e-6)
    wrong = DPO(Computed(AdapterOff()))(model, batch).total.item() / 5
    assert abs(wrong - 0.693147) > 1e-3
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable
    assert all(".adapters.default." in name for name in trainable)
    objective(model, batch).total.backward()
    assert all(p.grad is None for name, p in model.named_parameters() if ".adapters.reference." in name)


def test_both_adapters_come_back(folder: Path, begun_adapter: Path) -> None:
    """Case 31: a checkpoint holds the reference adapter, whatever its folder holds by then."""
    model = toy_decoder(folder)
    load_adapter(model, begun_adapter, trainable=True)
    objective, batch = DPO(Computed(AdapterCopy(model))), make_forked(pairs())
    _move(model)
    state = {name: tensor.clone() for name, tensor in objective.state().items()}
    expected = objective(model, batch).total.item()
    other = toy_decoder(folder)
    load_adapter(other, begun_adapter, trainable=True)
    _move(other)  # what the folder would give if another adapter had been written there
    resumed = DPO(Computed(AdapterCopy(other)))
    assert resumed(other, batch).total.item() != pytest.approx(expected, rel=1e-4)
    resumed.load_state(state)
    assert resumed(other, batch).total.item() == pytest.approx(expected, rel=1e-6)


def test_a_base_that_has_changed_is_no_reference(folder: Path) -> None:
    model = toy_decoder(folder)
    state = Computed(ModelCopy(model)).state()
    Computed(ModelCopy(toy_decoder(folder))).load_state(state)
    _move(model)
    with pytest.raises(UserError, match="another one now"):
        Computed(ModelCopy(model)).load_state(state)


def test_dropout_is_off_unless_it_is_wanted(folder: Path) -> None:
    """Case 32: an adapter's dropout of a half, and the first loss is ln 2 all the same; with it, it is not."""
    model = toy_decoder(folder)
    attach(model, LoRASpec(r=2, lora_dropout=0.5))
    objective, batch = DPO(Computed(AdapterOff())), make_forked(pairs())
    _move(model)
    torch.manual_seed(0)
    assert objective(model, batch).total.item() != pytest.approx(objective(model, batch).total.item())
    without_dropout(model)
    assert objective(model, batch).total.item() == objective(model, batch).total.item()
    fresh = toy_decoder(folder)
    attach(fresh, LoRASpec(r=2, lora_dropout=0.5))
    without_dropout(fresh)
    assert DPO(Computed(AdapterOff()))(fresh, batch).total.item() / 5 == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize("kind", ["ipo", "sigmoid_norm"])
def test_means_are_over_the_tokens_that_are_scored(kind: Any) -> None:
    """Case 35: without a prompt, three tokens of an answer have two scores, and the mean is over two."""
    torch.manual_seed(0)
    model = Decoder(decoder(block(), vocab_size=300))
    ids = np.array([7, 8, 9, 11, 12, 13], dtype=np.int32)
    scored = np.array([False, True, True, False, True, True])
    batch = make_forked([ForkedExample(ids, scored, "row", (0, 3, 3))])
    assert batch.lengths.tolist() == [2, 2]
    nothing = Precomputed({batch.keys[0]: torch.zeros(2)}, torch.zeros(16, dtype=torch.uint8))
    found = DPO(nothing, kind, 0.5)(model, batch)
    logits = [
        model(torch.from_numpy(ids[side : side + 3].astype(np.int64))[None])[0].log_softmax(-1) for side in (0, 3)
    ]
    c, r = (sum(one[i, int(ids[side + i + 1])] for i in range(2)) / 2 for one, side in zip(logits, (0, 3), strict=True))
    delta = c - r
    wanted = (delta - 1).square() if kind == "ipo" else -torch.nn.functional.logsigmoid(0.5 * delta)
    assert found.total.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_kto_at_the_start_and_with_one_kind_of_answer(folder: Path) -> None:
    model = toy_decoder(folder)
    objective = KTO(Computed(ModelCopy(model)), 0.1, 1.2, 0.7)
    batch = make_rotated(judged(4), 64)
    found = objective(model, batch)
    assert found.total.item() / 4 == pytest.approx((0.6 + 0.35) / 2, abs=1e-6)
    assert joined([found.metrics])["kl"] == 0
    alone = objective(model, make_rotated([e for e in judged(5) if e.desirable], 64))
    assert alone.total.isfinite()
    alone.total.backward()
    told = joined([alone.metrics])
    assert "rewards/chosen" in told
    assert not {"rewards/rejected", "logps/rejected", "rewards/margins"} & told.keys()


def test_z_of_kto_is_never_negative_and_has_no_gradient(folder: Path) -> None:
    for seed in range(3):
        model, likes = toy_decoder(folder), Computed(ModelCopy(shaken(toy_decoder(folder), seed)))  # type: ignore[arg-type]
        objective, batch = KTO(likes), make_rotated(judged(3), 64)
        z = objective._divergence(model, batch.mismatched)
        assert z.item() >= 0
        assert not z.requires_grad


def test_an_answer_that_is_certain_has_a_finite_loss() -> None:
    """Case 18: one token of logit 40."""
    model = Decoder(decoder(block(), vocab_size=64))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        hidden = model.hidden_states(torch.tensor([[5]]))[0, 0]
        model.lm_head.weight[9] = hidden * 40 / hidden.square().sum()
    ids, scored = np.array([5, 9, 10], dtype=np.int32), np.array([False, True, True])
    for fork in ((ids, (1, 1, 1)), (ids[[0, 2, 1]], (1, 1, 1))):  # certain and chosen, certain and rejected
        (batch,) = orpo_batches([make_forked([ForkedExample(fork[0], scored, "row", fork[1])])], "all")
        model.zero_grad()
        found = ORPO()(model, batch)
        assert found.total.isfinite()
        found.total.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto", "reward"])
def test_a_toy_bandit_is_solved(kind: str) -> None:
    """One prompt, answers of one token, of which one is preferred: soon the policy says nothing else."""
    torch.manual_seed(0)
    policy = Decoder(decoder(block(), vocab_size=16))
    model: Any = policy
    good, dice = 5, np.random.default_rng(0)
    reference = Computed(ModelCopy(policy))
    objectives: dict[str, Any] = {"dpo": DPO(reference), "orpo": ORPO(1.0), "kto": KTO(reference, 0.5)}
    objective = objectives.get(kind, PairwiseReward())
    if kind == "reward":
        model = SequenceClassifier(policy, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        batch: Any = _bandit(kind, good, dice)
        optimizer.zero_grad()
        (objective(model, batch).total / batch.num_targets).backward()
        optimizer.step()
    if kind == "reward":
        scores = model(torch.tensor([[3, token] for token in range(16)]))[:, 0]
        assert int(scores.argmax()) == good
    else:
        assert policy(torch.tensor([[3]]))[0, 0].softmax(-1)[good] > 0.9


def _bandit(kind: str, good: int, dice: np.random.Generator) -> Any:
    bad = [token for token in dice.permutation(16).tolist() if token != good][:6]
    scored = np.array([False, True, True])
    if kind == "kto":
        answers = [(good, True), (good, True), (good, True), *((token, False) for token in bad)]
        judgements = [
            ForkedExample(np.array([3, t], np.int32), scored[:2], "", (1, 1), desirable=d) for t, d in answers
        ]
        return make_rotated(judgements, 8)
    batch = make_forked([ForkedExample(np.array([3, good, token], np.int32), scored, "", (1, 1, 1)) for token in bad])
    return orpo_batches([batch], "all")[0] if kind == "orpo" else batch
