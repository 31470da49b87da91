"""What a model's modules are called at Hugging Face, and which of them an adapter is for.

The names come from the family's weight map, so no family is known here. Where one module there is several here (GPT-2's
`c_attn`), its name means them all.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.checkpoints.maps import MAPS, classifier_rules
from intaglio.checkpoints.weight_map import Link, Rules, Transform, Transposed, links_of
from intaglio.errors import UserError, nearest
from intaglio.models.build import build_model
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.parts.moe import Experts, Router
from intaglio.specs.adapter import LoRASpec, named
from intaglio.specs.families import config_of

__all__ = ["HEAD", "Place", "Places"]

HEAD = "score"
"""What scores a text in every classifier; always trained whole."""

_OUTPUTS = ("lm_head", HEAD)


@dataclass(frozen=True)
class Place:
    """A module there, and what it is here.

    Attributes:
        theirs: its path; of a stack of experts, the first expert's.
        ours: the paths of ours that it is: one, or several joined there; of experts, that of the stack.
        kind: `linear`, `embedding`, `experts`, `router` or `other`.
        transforms: how each parameter (`weight`, `bias`) becomes ours.
        spec: of the model.
    """

    theirs: str
    ours: tuple[str, ...]
    kind: str
    transforms: dict[str, Transform] = field(hash=False)
    spec: Any = field(hash=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What it can be called: of experts also as transformers 5 does, where all of them are one parameter."""
        return (self.theirs, ".".join(self.fused) if self.kind == "experts" else self.target)

    @property
    def fused(self) -> tuple[str, str]:
        """Of experts: the module that holds them, and its parameter, which for gate and up is one."""
        container = re.sub(r"\.block_sparse_moe$", ".mlp", self.theirs.partition(".experts.")[0])
        stack = self.ours[0].rpartition(".")[2]
        return f"{container}.experts", "down_proj" if stack == "down_proj" else "gate_up_proj"

    @property
    def module(self) -> str:
        """Its path in transformers 5, where that has another."""
        return re.sub(r"\.block_sparse_moe\.", ".mlp.", self.theirs)

    @property
    def target(self) -> str:
        """What PEFT must be told to adapt: of a router its parameter, since it is no linear layer there."""
        return f"{self.module}.weight" if self.kind == "router" else self.module

    def to_ours(self, theirs: Tensor, parameter: str) -> list[Tensor]:
        """One of its parameters as those of ours."""
        return self.transforms[parameter].to_ours([theirs], self.spec)

    def to_theirs(self, ours: Sequence[Tensor], parameter: str) -> Tensor:
        """The way back."""
        return self.transforms[parameter].to_theirs(list(ours), self.spec)[0]

    def columns_to_ours(self, columns: Tensor) -> list[Tensor]:
        """What has a row for each of their outputs (O, n), cut into parts with a row for each of ours."""
        return self.to_ours(columns.mT if self.transposed else columns, "weight")

    def columns_to_theirs(self, columns: Sequence[Tensor]) -> Tensor:
        """The way back: (O, n)."""
        whole = self.to_theirs(columns, "weight")
        return whole.mT if self.transposed else whole

    @property
    def transposed(self) -> bool:
        """Whether W is (in, out) there."""
        transform = self.transforms.get("weight")
        return isinstance(transform, Transposed) or bool(getattr(transform, "transposed", False))


class Places:
    """The modules of a model, wrapped or not.

    Attributes:
        all: every one that has parameters.
        ties: the paths of ours that share the matrix of embeddings; none where nothing does.
    """

    def __init__(self, model: Any) -> None:
        twin, rules = _twin(model)
        tables = [path for path, module in twin.named_modules() if _table(module) is next(twin.parameters())]
        self.ties = tuple(tables) if len(tables) > 1 else ()
        self.all = list(_places(twin, rules, self.ties))

    def targets(self, spec: LoRASpec) -> list[Place]:
        """Those that get a low-rank update.

        Raises:
            UserError: a name that means no matrix, or nothing is left.
        """
        matrices = [place for place in self.all if place.kind != "other"]
        if spec.target_modules == "all-linear":
            chosen = [p for p in matrices if p.kind in ("linear", "experts") and p.ours[0] not in _OUTPUTS]
        else:
            chosen = _meant(matrices, spec.target_modules, "target_modules")
        chosen = [place for place in chosen if not _is(place, spec.exclude_modules)]
        if not chosen and not (spec.modules_to_save or spec.trainable_token_indices):
            raise UserError("no module is left to adapt", where="target_modules, exclude_modules")
        return chosen

    def saved(self, spec: LoRASpec) -> list[Place]:
        """Those that are trained whole: what the spec names, and a classifier's head.

        Raises:
            UserError: a name that means no module.
        """
        chosen = _meant(self.all, spec.modules_to_save, "modules_to_save")
        if wrong := [place for place in chosen if place.kind in ("experts", "router")]:
            what = f"{wrong[0].theirs!r}: experts and their router cannot be trained whole beside an adapter"
            raise UserError(what, where="modules_to_save")
        heads = [place for place in self.all if place.ours == (HEAD,) and place not in chosen]
        return self.once(spec, chosen + heads)

    def paths(self, spec: LoRASpec, place: Place) -> tuple[str, ...]:
        """The parts of ours that a place stands for: all that are tied with it, where they stay tied."""
        return self.ties if spec.ensure_weight_tying and place.ours[0] in self.ties else place.ours

    def once(self, spec: LoRASpec, chosen: Sequence[Place]) -> list[Place]:
        """Places of which no two stand for the same parts: the embeddings for all that is tied with them."""
        firsts = {self.paths(spec, place)[0] for place in chosen}
        return [place for place in self.all if place.ours[0] in firsts]

    def twins(self, spec: LoRASpec, place: Place) -> list[Place]:
        """The other places that a place stands for."""
        paths = self.paths(spec, place)
        return [other for other in self.all if other != place and other.ours[0] in paths]

    def tables(self) -> list[Place]:
        """The embeddings and the output matrix; where they are one, that one."""
        tables = [place for place in self.all if place.kind == "embedding" or place.ours == ("lm_head",)]
        return [place for place in tables if place.ours[0] not in self.ties[1:]]

    def biased(self, spec: LoRASpec) -> list[Place]:
        """Those whose bias trains."""
        if spec.bias == "none":
            return []
        among = self.all if spec.bias == "all" else self.targets(spec)
        whole = self.saved(spec)
        return [place for place in among if "bias" in place.transforms and place not in whole]


def _meant(places: Sequence[Place], names: Sequence[str], where: str) -> list[Place]:
    for name in names:
        if not any(_is(place, (name,)) for place in places):
            known = {place.names[-1].rpartition(".")[2] for place in places}
            raise UserError(f"no module is called {name!r}", where=where, mend=nearest(name, known))
    return [place for place in places if _is(place, names)]


def _is(place: Place, names: Sequence[str]) -> bool:
    return any(named(name, names) for name in place.names)


def _twin(model: Any) -> tuple[nn.Module, Rules | None]:
    """The same model without weights and adapters, and its weight map."""
    rules = MAPS.get(config_of(model.spec)["model_type"])
    with torch.device("meta"):
        if isinstance(model, SequenceClassifier):
            twin = SequenceClassifier(Decoder(model.spec), model.num_labels)
            twin.drop_outputs()
            return twin, classifier_rules(rules)
        built = build_model(model.spec)
    if type(built) is not type(model):
        raise UserError(f"a {type(model).__name__} takes no adapters")
    return built, rules


def _table(module: nn.Module) -> Tensor | None:
    return module.weight if isinstance(module, nn.Linear | nn.Embedding) else None


def _places(twin: nn.Module, rules: Rules | None, ties: Sequence[str]) -> Iterator[Place]:
    spec: Any = twin.spec
    by_module: dict[str, list[Link]] = {}
    for link in links_of(twin, rules):
        if isinstance(twin.get_submodule(link.ours[0].rpartition(".")[0]), Experts):
            yield Place(link.theirs[0].removesuffix(".weight"), link.ours, "experts", {}, spec)
        elif "." in link.ours[0]:  # a module's, not the model's own
            by_module.setdefault(link.theirs[0].rpartition(".")[0], []).append(link)
    for theirs, links in by_module.items():
        ours = tuple(name.rpartition(".")[0] for name in links[0].ours)
        transforms = {link.theirs[0].rpartition(".")[2]: link.transform for link in links}
        yield Place(theirs, ours, _kind(twin.get_submodule(ours[0])), transforms, spec)
    if "lm_head" in ties:  # a weight map names what is tied once
        same = next(link.transform for link in links_of(twin, rules) if link.ours == (f"{ties[0]}.weight",))
        yield Place(_their_output(rules), ("lm_head",), "linear", {"weight": same}, spec)


def _their_output(rules: Rules | None) -> str:
    names = [theirs for theirs, ours in (rules or {}).items() if ours == "lm_head.weight"]
    return (names[0] if names else "lm_head.weight").removesuffix(".weight")


def _kind(module: nn.Module) -> str:
    kinds = {nn.Linear: "linear", nn.Embedding: "embedding", Router: "router"}
    return next((kind for cls, kind in kinds.items() if isinstance(module, cls)), "other")
