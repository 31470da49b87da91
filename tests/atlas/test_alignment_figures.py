"""Figures of stages and alignment: a language whose worth is known, what runs learn of it, and what is drawn."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from intaglio.atlas.figure import english
from intaglio.atlas.figures.alignment_masks import SupervisedTokens
from intaglio.atlas.figures.alignment_pairs import DPORewards, RewardMargins, slope
from intaglio.atlas.figures.alignment_ppo import RewardAgainstKL, best_at
from intaglio.atlas.figures.placement import placed
from intaglio.atlas.figures.placement_training import NormTraining
from intaglio.atlas.figures.stages import ThreeStages
from intaglio.atlas.requests import LEAST, answers_to, comparisons, demonstrations, prompts, worth
from intaglio.atlas.small_alignment import by_worth, curve, log_probs, some_prompts, text_ids
from intaglio.atlas.small_runs import BYTES, code_bytes, fresh
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec
from intaglio.text.whole_units import words_of
from running import unmeasured

ASKED = "the fox asks for the lamp :"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)


def test_answers_are_worth_their_parts() -> None:
    marks = answers_to(ASKED)
    assert len(marks) == 4**3
    assert marks["gladly : here is the lamp dear friend"] == 3 == -LEAST
    assert marks["well : the lamp is gone please"] == -0.5 - 0.5 + 0.5
    said = [
        "gladly : here is the lamp dear friend",
        " no : take the lamp now ",
        "gladly : here is the boat dear friend",
        "",
    ]
    assert worth([ASKED] * 4, said) == [3, -1 + 0.5 - 0.5, LEAST, LEAST]


def test_people_prefer_as_bradley_and_terry_say() -> None:
    wins, expected = 0, 0.0
    for pair in comparisons(4000, 5):
        marks = answers_to(pair["prompt"])
        gap = abs(marks[pair["chosen"]] - marks[pair["rejected"]])
        wins += marks[pair["chosen"]] > marks[pair["rejected"]]
        expected += 1 / (1 + math.exp(-gap)) if gap else 0.0
    assert wins == pytest.approx(expected, abs=4 * math.sqrt(4000) / 2)


def test_demonstrations_have_no_preference() -> None:
    rows = [*demonstrations(4000, 0)]
    parts = Counter(row["completion"].split()[0] for row in rows)
    assert set(parts) == {"gladly", "yes", "well", "no"}
    assert all(count == pytest.approx(1000, abs=120) for count in parts.values())
    assert {row["prompt"] for row in rows} == set(prompts())


def tiny_policy() -> tuple[Decoder, Any]:
    """Random weights over the words of the language."""
    tokenizer = words_of(text for prompt in prompts() for text in (prompt, *answers_to(prompt)))
    attention = {"num_heads": 2, "rope": {}}
    layer = {"norm": {"kind": "rms_norm"}, "attention": attention, "feed_forward": {"intermediate_size": 8}}
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 8, "max_position_embeddings": 32}
    model = fresh(DecoderSpec.model_validate({**sizes, "layers": [layer]})).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(50)  # or every answer of one length is as likely
    return model, tokenizer


@torch.no_grad()
def test_log_probs_are_each_answers_own() -> None:
    model, tokenizer = tiny_policy()
    found, start = log_probs(model, tokenizer, ASKED), len(tokenizer.encode(ASKED))
    for said, log_prob in list(zip(answers_to(ASKED), found.tolist(), strict=True))[::9]:
        ids = torch.tensor([text_ids(tokenizer, ASKED, said)])
        assert tokenizer.decode(ids[0, start:]) == said
        assert ids[0, -1] == tokenizer.eos_token_id
        losses = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
        assert log_prob == pytest.approx(-float(losses[start - 1 :].sum()), rel=1e-4)


def test_means_by_worth_and_over_stretches() -> None:
    marks = torch.tensor([*answers_to(ASKED).values()])
    assert by_worth([ASKED, ASKED], [marks, marks + 1]) == [
        [value, pytest.approx(value + 0.5)] for value in sorted(set(marks.tolist()))
    ]
    lines = [{"step": step, "loss": float(step)} for step in range(1, 6)] + [{"step": 5, "eval_loss": 7.0}]
    assert curve(lines, "loss", 2) == [[2, 2], [4.5, 4.5]]
    assert curve(lines, "eval_loss", 2) == [[5, 7]]
    assert slope([[0, 1], [1, 3], [2, 5]]) == pytest.approx(2)
    assert len(some_prompts(5)) == 5


def test_nothing_is_better_than_the_best() -> None:
    torch.manual_seed(0)
    start = torch.randn(12, 65).log_softmax(dim=-1)
    marks = torch.tensor([[*answers_to(prompt).values(), LEAST] for prompt in some_prompts(12)])

    def won(policy: torch.Tensor) -> float:
        kl = (policy.exp() * (policy - start)).sum(dim=-1)
        return float(((policy.exp() * marks).sum(dim=-1) - 0.7 * kl).mean())

    best = best_at(start, 0.7)
    others = [(best + 0.1 * torch.randn(12, 65)).log_softmax(dim=-1) for _ in range(20)]
    assert all(won(other) < won(best) for other in [start, *others])
    torch.testing.assert_close(best_at(start, 1e6), start, atol=1e-4, rtol=0)


def test_ppo_is_drawn_from_where_the_policy_began() -> None:
    data = RewardAgainstKL(width=8, rows=48, batch=4, base_steps=1, steps=2, weights=(0.1, 1.0)).data()
    assert data["start"][0] == 0
    assert list(data["curves"]) == list(data["ends"]) == list(data["aims"]) == ["0.1", "1"]
    for told in data["curves"].values():
        assert told["objective/kl"][0] == [1, pytest.approx(0, abs=1e-4)]
        assert LEAST <= told["objective/scores"][0][1] <= -LEAST
    kls, rewards = zip(*data["best"], strict=True)
    assert list(kls) == sorted(kls, reverse=True)
    assert list(rewards) == sorted(rewards, reverse=True)
    assert all(end[1] <= rewards[0] + 1e-3 for end in data["ends"].values())


def test_implicit_rewards_are_what_the_log_says() -> None:
    data = DPORewards(width=8, rows=48, batch=4, base_steps=2, steps=3, rate=1e-2).data()
    told = data["curves"]
    assert told["rewards/chosen"][0] == told["rewards/rejected"][0] == [1, pytest.approx(0, abs=1e-6)]
    for (_, margin), (_, chosen), (_, rejected) in zip(
        told["rewards/margins"], told["rewards/chosen"], told["rewards/rejected"], strict=True
    ):
        assert margin == pytest.approx(chosen - rejected, abs=1e-6)
    assert sum(map(len, told.values())) == 8 * 3
    counts = Counter(answers_to(ASKED).values())
    assert sum(counts[value] * mean for value, mean in data["by_worth"]) == pytest.approx(0, abs=1e-3)
    gained = [b - a for (_, a), (_, b) in zip(data["likely"]["before"], data["likely"]["after"], strict=True)]
    shift = gained[0] - data["by_worth"][0][1] / 0.5
    assert gained == pytest.approx([shift + mean / 0.5 for _, mean in data["by_worth"]], abs=1e-3)


def test_a_reward_model_finds_what_people_chose_by() -> None:
    data = RewardMargins(width=16, rows=240, batch=8, base_steps=1, steps=40, rate=5e-3, fresh=100).data()
    assert len(data["margins"]) == len(data["gaps"]) == 100
    assert slope(data["by_worth"]) > 0.2
    sided = [(margin > 0) == (gap > 0) for margin, gap in zip(data["margins"], data["gaps"], strict=True) if gap]
    assert sum(sided) / len(sided) > 0.65
    assert data["curves"]["margin"][-1][1] > data["curves"]["margin"][0][1]


def test_the_tokens_with_a_loss_are_the_answers() -> None:
    data = SupervisedTokens(vocab_size=300).data()
    answers = ["A list is a sequence that can be changed in place.", "A tuple is a sequence that cannot be changed."]
    wanted = {"assistant": answers, "last_assistant": answers[1:]}
    for policy, texts in wanted.items():
        filled = [token for token, on in zip(data["tokens"], data["masks"][policy], strict=True) if on]
        assert "".join(filled) == "".join(f"{text}<|im_end|>" for text in texts)
    assert "".join(data["tokens"]).startswith("<|im_start|>system\nAnswer in one sentence.<|im_end|>\n")


def test_the_stages_are_the_recipes() -> None:
    stages = ThreeStages().data()["stages"]
    assert list(stages) == ["pretrain", "sft", "reward", "ppo", "dpo"]
    assert stages["ppo"]["from"] == {"model": ["sft"], "rewards": ["reward"], "value_from": ["reward"]}
    assert stages["dpo"]["from"] == {"model": ["sft"]}
    assert stages["dpo"]["measured_by"] == ["reward"]
    assert stages["dpo"]["data"] == stages["reward"]["data"]
    assert stages["ppo"]["rows"] == 64, "micro-batches of 32, two of them"
    assert stages["pretrain"]["parameters"] > 1e6 > (stages["sft"]["parameters"] or 0)


def test_another_recipe_is_another_picture(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "precision: float32\n"
        "stages:\n"
        "  first: {model: smollm2-135m, data: answers.jsonl, steps: 7}\n"
        "  second: {model: {stage: first}, objective: {kind: dpo}, data: pairs.jsonl, steps: 5, micro_batch: 3}\n",
        encoding="utf-8",
    )
    figure = ThreeStages(recipe=str(file))
    data = figure.data()
    assert data["stages"]["second"]["from"] == {"model": ["first"]}
    assert "2 runs, 12 steps" in figure.caption(data).en
    (picture,) = figure.draw(data, english)
    assert picture.clashes() == []
    assert {"first: next token", "second: DPO", "5 steps of 3", "begins at it"} <= {box.text for box in picture.boxes}
    assert figure.inputs() != ThreeStages().inputs()
    with pytest.raises(UserError, match="no such recipe"):
        ThreeStages(recipe=str(tmp_path / "none.yaml")).data()


def test_gradients_through_training_are_the_losses_own() -> None:
    figure = NormTraining(depths=(2,), at=(0, 2), steps=3, batch=2, window=16, width=8)
    data = figure.data()
    assert data["at"] == [0, 2]
    model: Any = fresh(placed("pre", 2, 8).updated(vocab_size=BYTES, max_position_embeddings=16))
    text = code_bytes()
    starts = torch.randint(len(text) - 16, (2,), generator=torch.Generator().manual_seed(0))
    ids = text[starts[:, None] + torch.arange(16)]
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    matrices = [block.feed_forward.down_proj.weight for block in model.layers]
    mine = [float(gradient.norm()) for gradient in torch.autograd.grad(loss, matrices)]
    assert data["norms"]["2"]["pre"]["0"] == pytest.approx(mine, rel=1e-4)
    assert data["losses"]["2"]["pre"][0] == pytest.approx(loss.item())
    assert len(data["losses"]["2"]["post"]) == 3
