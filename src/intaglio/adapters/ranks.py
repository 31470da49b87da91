"""How much of its rank an adapter uses: the singular values of each update, found without making the update.

With B = Q_B R_B and A^T = Q_A R_A, the singular values of s B A are those of the small matrix s R_B R_A^T.

Legend: I features in, O features out, r rank, X experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from intaglio.adapters.peft_config import read_config
from intaglio.adapters.peft_files import CONFIG, adapter_tensors, config_of_adapter
from intaglio.checkpoints.models import find_model
from intaglio.errors import UserError
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.families import read_directory

__all__ = ["AdapterSummary", "ModuleRank", "effective_rank", "summary_of", "update_values"]


@dataclass(frozen=True)
class ModuleRank:
    """One updated module.

    Attributes:
        module: its path, as in the file.
        r: the rank it has.
        effective_rank: the rank it uses, see `effective_rank`; of experts on average.
        norm: Frobenius norm of the update; of experts on average.
    """

    module: str
    r: int
    effective_rank: float
    norm: float


@dataclass(frozen=True)
class AdapterSummary:
    """An adapter's directory.

    Attributes:
        spec: as the config says.
        base: what it is for, as the config says.
        parameters: numbers in the file.
        base_parameters: of the base, where it is at hand.
        nbytes: of the weights.
        modules: every low-rank update.
    """

    spec: LoRASpec
    base: str | None
    parameters: int
    base_parameters: int | None
    nbytes: int
    modules: tuple[ModuleRank, ...]

    @property
    def share(self) -> float | None:
        """Parameters of the adapter for one of the base's."""
        return self.parameters / self.base_parameters if self.base_parameters else None


def summary_of(path: Path) -> AdapterSummary:
    """What the files of an adapter say, without its base.

    Raises:
        UserError: no adapter, or one that we do not understand.
    """
    config = config_of_adapter(path)
    spec, _ = read_config(config, str(path / CONFIG))
    tensors = adapter_tensors(path)
    base = config.get("base_model_name_or_path")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return AdapterSummary(spec, base, numbers, _base_parameters(base), nbytes, tuple(_modules(spec, tensors)))


def _base_parameters(base: str | None) -> int | None:
    try:
        path = find_model(base or "")
    except UserError:
        return None
    return int(read_directory(path).num_parameters()) if path.is_dir() else None


def _modules(spec: LoRASpec, tensors: dict[str, Tensor]) -> Iterator[ModuleRank]:
    for key, a in tensors.items():
        module, _, last = key.partition(".lora_")
        if last == "A.weight":
            yield _module(spec, module, a, tensors[f"{module}.lora_B.weight"])
        elif last == "embedding_B":
            yield _module(spec, module, a.mT, tensors[f"{module}.lora_embedding_A"].mT)


def _module(spec: LoRASpec, module: str, a: Tensor, b: Tensor) -> ModuleRank:
    """A (r, I) and B (O, r); or, of fused experts, (X*r, I) and (O, r*X)."""
    names = _names(module)
    experts = len(a) // spec.rank(*names) if module.endswith((".experts", ".experts.base_layer")) else 1
    stack_a = a.unflatten(0, (experts, -1))  # (X, r, I)
    stack_b = b.unflatten(1, (-1, experts)).permute(2, 0, 1)  # (X, O, r)
    values = update_values(stack_a, stack_b) * spec.scale(*names)
    ranks = [effective_rank(one) for one in values]
    norms = values.norm(dim=-1)
    return ModuleRank(module, stack_a.shape[1], sum(ranks) / experts, float(norms.mean()))


def _names(module: str) -> tuple[str, ...]:
    """What the config may call it: fused experts by their parameter."""
    if module.endswith(".experts.base_layer"):
        return (f"{module.removesuffix('.base_layer')}.gate_up_proj",)
    return (f"{module}.down_proj",) if module.endswith(".experts") else (module,)


def update_values(a: Tensor, b: Tensor) -> Tensor:
    """The singular values of B A, largest first: (.., r, I) and (.., O, r) -> (.., r)."""
    r_a = torch.linalg.qr(a.float().mT, mode="r").R
    r_b = torch.linalg.qr(b.float(), mode="r").R
    return torch.linalg.svdvals(r_b @ r_a.mT)


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007); 0 of nothing."""
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values / total
    return float(torch.special.entr(shares).sum().exp())
