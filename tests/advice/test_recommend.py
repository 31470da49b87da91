"""What is recommended follows from what is said of the task, and costs nothing but arithmetic."""

import subprocess
import sys
from dataclasses import replace

import pytest

from intaglio.advice.costs import costs_of
from intaglio.advice.machine import Machine
from intaglio.advice.needs import Needs
from intaglio.advice.recommend import Advice, advise
from intaglio.advice.roads import ROADS, fit
from intaglio.errors import UserError
from intaglio.lineage.resolve import resolve_spec
from intaglio.planning.training import plan_training
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec

MACHINE = Machine(memory=24 << 30, flops=1e11, bandwidth=1e10)
FACTS = Needs(knowledge="private", documents=100_000, examples=500)
FORM = Needs(style="much", documents=100_000, examples=500)


def order(needs: Needs, machine: Machine = MACHINE) -> list[str]:
    """The names of the roads, the recommended first."""
    return [one.road.name for one in advise(needs, machine)]


def told(name: str, needs: Needs, machine: Machine = MACHINE) -> Advice:
    """What is said of one road."""
    return next(one for one in advise(needs, machine) if one.road.name == name)


def test_facts_are_looked_up_and_forms_are_learned() -> None:
    assert order(FACTS)[0] == "RAG"
    assert order(FORM)[0] == "LoRA"
    assert order(FACTS.updated(style="much"))[0] == "LoRA+RAG"
    assert order(Needs())[0] == "prompt"


def test_few_examples_teach_little() -> None:
    assert order(FORM.updated(examples=10))[0] == "few-shot"
    lora = next(road for road in ROADS if road.name == "LoRA")
    assert fit(lora, FORM.updated(examples=10)) < fit(lora, FORM.updated(examples=100)) < fit(lora, FORM) == 1


def test_what_changes_is_not_learned() -> None:
    changing = FACTS.updated(knowledge="changing")
    lora, rag = (next(road for road in ROADS if road.name == name) for name in ("LoRA", "RAG"))
    assert fit(lora, changing) == 0 < fit(lora, FACTS)
    assert fit(rag, changing) == fit(rag, FACTS) == 1
    assert "would have to be trained again for every change" in told("LoRA", changing).reasons


def test_memory_decides_between_lora_and_qlora() -> None:
    needs = FORM.updated(model="qwen2-7b")
    lora, qlora, full = (told(name, needs).costs.training_bytes for name in ("LoRA", "QLoRA", "full fine-tuning"))
    assert qlora < lora < full
    assert order(needs, replace(MACHINE, memory=(qlora + lora) // 2))[0] == "QLoRA"
    assert "are needed" in told("full fine-tuning", needs).obstacles[0]


def test_every_obstacle_is_named_and_stands_last() -> None:
    bare = Needs(style="much", latency=1e-6)
    assert told("LoRA", bare).obstacles[0] == "there are no solved examples"
    assert told("RAG", bare).obstacles[0] == "there are no documents"
    assert all("1e-06 are allowed" in one.obstacles[-1] for one in advise(bare, MACHINE))
    short = FORM.updated(budget=1e-6)
    assert "training takes" in told("LoRA", short).obstacles[0]
    assert order(short)[0] == "few-shot"
    long = FACTS.updated(question_tokens=7900, documents=500)
    assert told("RAG", long).obstacles == ["prompt and answer are more than the 8192 tokens that the model reads"]


def test_costs_are_those_of_the_closed_forms() -> None:
    spec = resolve_spec("smollm2-135m")[1]
    assert isinstance(spec, DecoderSpec)
    costs = {road.name: costs_of(road, FORM, spec, MACHINE) for road in ROADS}
    assert costs["LoRA"].training_bytes == plan_training(spec, 1024, adapter=LoRASpec()).peak
    four_bits = plan_training(spec, 1024, adapter=LoRASpec(), quantization=QuantizationSpec())
    assert costs["QLoRA"].training_bytes == four_bits.peak
    assert costs["full fine-tuning"].training_bytes == plan_training(spec, 1024).peak
    assert costs["prompt"].training_bytes == 0
    assert costs["prompt"].serving_bytes == 2 * spec.num_parameters() + spec.kv_cache_bytes(200)
    reading = 100 * spec.flops_per_token(200) / (MACHINE.flops / 2)
    assert costs["prompt"].seconds == pytest.approx(reading + 100 * 2 * spec.num_parameters() / MACHINE.bandwidth)
    assert costs["LoRA"].setup_seconds * 3 == pytest.approx(2 * costs["full fine-tuning"].setup_seconds)


def test_longer_prompts_cost_more() -> None:
    seconds = {one.road.name: one.costs.seconds for one in advise(FORM, MACHINE)}
    assert seconds["LoRA"] == seconds["prompt"] < seconds["RAG"] == seconds["LoRA+RAG"]
    assert seconds["prompt"] < seconds["few-shot"]


def test_the_commands_name_the_users_model() -> None:
    assert all("MODEL" in " ".join(one.commands) or one.road.examples for one in advise(FORM, MACHINE))
    assert told("LoRA", FORM).commands == [
        "intaglio train recipes/lora-smollm2.yaml model=MODEL data=ROWS.jsonl out=RUN",
        "intaglio merge MODEL RUN/adapter MERGED",
        "intaglio chat MERGED",
    ]


def test_a_model_that_answers_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="is no decoder"):
        advise(Needs(model="transformer-base"), MACHINE)


def test_advice_needs_no_torch() -> None:
    code = "import sys, intaglio.advice.recommend, intaglio.cli.advise; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
