"""The roads in order, with reasons, costs, and what to run next. No torch.

What is impossible stands last. Of the rest those that meet the needs nearly as well as the best does are good enough,
and the cheapest of them comes first; then the others, the better fit before the worse.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from intaglio.advice.commands import commands_for
from intaglio.advice.costs import Costs, costs_of
from intaglio.advice.machine import Machine, machine_of
from intaglio.advice.needs import Needs
from intaglio.advice.roads import ROADS, Road, fit
from intaglio.errors import UserError
from intaglio.lineage.resolve import resolve_spec
from intaglio.lineage.units import short_bytes
from intaglio.specs import DecoderSpec

__all__ = ["Advice", "advise"]

_NEARLY: Final = 0.9


@dataclass(frozen=True)
class Advice:
    """What is to be said of one road.

    Attributes:
        road: which.
        fit: how far it meets the needs, 0 to 1.
        reasons: what speaks for it and against it.
        obstacles: why it cannot be walked; empty where it can.
        costs: by arithmetic.
        commands: to run next.
    """

    road: Road
    fit: float
    reasons: list[str]
    obstacles: list[str]
    costs: Costs
    commands: list[str]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        told = {"reasons": self.reasons, "obstacles": self.obstacles, "commands": self.commands}
        return {"road": self.road.name, "fit": round(self.fit, 3), **told, "costs": self.costs.plain()}


def advise(needs: Needs, machine: Machine | None = None) -> list[Advice]:
    """All roads, the recommended one first.

    Args:
        needs: of the task.
        machine: where it runs; None for what the needs say of it.

    Raises:
        UserError: there is no such model, or it is none that answers.
    """
    title, spec, preset = resolve_spec(needs.model)
    if not isinstance(spec, DecoderSpec):
        raise UserError(f"{title} is no decoder", where="model", mend="the roads are for models that answer prompts")
    machine = machine or machine_of(needs)
    model = "MODEL" if preset else needs.model
    found = [_advice(road, needs, spec, machine, model) for road in ROADS]
    best = max((one.fit for one in found if not one.obstacles), default=0.0)
    return sorted(found, key=lambda one: _place(one, best))


def _place(one: Advice, best: float) -> tuple[bool, bool, float, float]:
    enough = one.fit >= _NEARLY * best
    return bool(one.obstacles), not enough, 0.0 if enough else -one.fit, one.costs.total_seconds


def _advice(road: Road, needs: Needs, spec: DecoderSpec, machine: Machine, model: str) -> Advice:
    costs = costs_of(road, needs, spec, machine)
    reasons, obstacles = list(_reasons(road, needs)), list(_obstacles(road, needs, costs, spec, machine))
    return Advice(road, fit(road, needs), reasons, obstacles, costs, commands_for(road, model))


def _reasons(road: Road, needs: Needs) -> Iterator[str]:
    if needs.knowledge != "none":
        yield _about_facts(road, needs.knowledge == "changing")
    if needs.style != "none":
        yield _about_form(road, needs.examples)
    if needs.skill != "none":
        yield "trains what the model does not master" if road.training != "none" else "has the skill it has"
    if road.training == "none":
        yield "needs no training"
    elif road.training == "qlora":
        yield "keeps the frozen weights in 4 bits: least memory, somewhat slower"
    elif road.training == "full":
        yield "trains every weight: most memory, and most is forgotten"


def _about_facts(road: Road, changing: bool) -> str:
    if road.retrieval:
        return "finds the facts in the documents" + (", and changes with them" if changing else "")
    if road.training == "none":
        return "does not have the facts"
    return "would have to be trained again for every change" if changing else "learns few facts by training"


def _about_form(road: Road, examples: int) -> str:
    if road.training != "none":
        return f"learns the form from {examples:,} examples"
    return "shows the form anew in every prompt" if road.examples else "is told the form, and may not keep it"


def _obstacles(road: Road, needs: Needs, costs: Costs, spec: DecoderSpec, machine: Machine) -> Iterator[str]:
    if (road.examples or road.training != "none") and not needs.examples:
        yield "there are no solved examples"
    if road.retrieval and not needs.documents:
        yield "there are no documents"
    if costs.prompt_tokens + needs.answer_tokens > spec.context_limit:
        yield f"prompt and answer are more than the {spec.context_limit} tokens that the model reads"
    if costs.peak_bytes > machine.memory:
        yield f"{short_bytes(costs.peak_bytes)} are needed, {short_bytes(machine.memory)} are there"
    if needs.latency is not None and costs.seconds > needs.latency:
        yield f"an answer takes {costs.seconds:.1f} s, {needs.latency:g} are allowed"
    if needs.budget is not None and costs.setup_seconds > 3600 * needs.budget:
        yield f"training takes {costs.setup_seconds / 3600:.1f} hours, {needs.budget:g} are allowed"
