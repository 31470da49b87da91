"""A GGUF file as what a Hugging Face directory holds: config, tokenizer, and tensors by Hugging Face's names.

Everything else works from there, so GGUF needs no model code of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from intaglio.checkpoints.gguf_config import build_config, choose_family, is_tied, stop_ids
from intaglio.checkpoints.gguf_container import Container, TensorEntry, read_container
from intaglio.checkpoints.gguf_families import Family, Rule
from intaglio.checkpoints.gguf_tensors import to_torch
from intaglio.checkpoints.gguf_tokenizer import build_tokenizer_files
from intaglio.errors import UserError

__all__ = ["GGUFModel", "open_gguf", "pattern_of"]

CONSUMED: Final = {"rope_freqs.weight"}  # read into the config


def open_gguf(path: str | Path) -> "GGUFModel":
    """Opens a GGUF file: reads and checks its header, leaves the numbers on disk.

    Raises:
        UserError: not a whole GGUF file, an architecture or a tensor that is not known, or a key missing.
    """
    container = read_container(Path(path))
    family = choose_family(container)
    return GGUFModel(container, family, build_config(container, family), _sources(container, family))


@dataclass(frozen=True)
class _Source:
    """Where a Hugging Face tensor comes from: an entry of the file, or one expert of a stacked entry."""

    entry: TensorEntry
    rule: Rule
    expert: int | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.entry.shape if self.expert is None else self.entry.shape[1:]


@dataclass(frozen=True)
class GGUFModel:
    """An open GGUF file (`open_gguf`)."""

    _container: Container
    _family: Family
    _config: dict[str, Any]
    _tensors: dict[str, _Source]

    @property
    def path(self) -> Path:
        """The file."""
        return self._container.path

    @property
    def where(self) -> str:
        """What to call it in an error."""
        return str(self.path)

    def config(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return dict(self._config)

    def generation_config(self) -> dict[str, Any]:
        """The content of `generation_config.json`: the ids that begin, end and pad a text."""
        ids = {key: self._config[key] for key in ("bos_token_id", "pad_token_id")}
        known = {**ids, "eos_token_id": stop_ids(self._container)}
        return {key: value for key, value in known.items() if value is not None}

    def tokenizer_files(self) -> dict[str, Any]:
        """`tokenizer.json` and `tokenizer_config.json` (dicts), and `chat_template.jinja` (text) if there is one.

        Raises:
            UserError: a kind of tokenizer that is not known, or metadata missing.
        """
        return build_tokenizer_files(self._container)

    def tensor_names(self) -> list[str]:
        """Hugging Face's names of all tensors, in the file's order; a tied output matrix is not among them."""
        return list(self._tensors)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name and shape of every tensor."""
        return {name: source.rule.shape(source.stored_shape) for name, source in self._tensors.items()}

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One tensor in Hugging Face's layout, dequantised on demand.

        Raises:
            UserError: a storage type that is not read, or a shape that contradicts the config.
        """
        source = self._tensors[name]
        where = f"{self.path}: tensor {source.entry.name!r}"
        transform = source.rule.transform
        try:
            if transform is None:
                return to_torch(self._raw(source), source.entry.kind, source.stored_shape, dtype)
            stored = to_torch(self._raw(source), source.entry.kind, source.stored_shape, torch.float32)
            return transform.read(stored, self._config).to(dtype)  # rounded once, at the end
        except UserError as error:
            raise UserError(error.what, where=where, mend=error.mend) from None
        except RuntimeError as error:
            raise UserError(f"shape {list(source.entry.shape)} contradicts the metadata", where=where) from error

    def _raw(self, source: _Source) -> Any:
        raw = self._container.raw(source.entry)
        if source.expert is None:
            return raw
        return raw.reshape(source.entry.shape[0], -1)[source.expert]


def _sources(container: Container, family: Family) -> dict[str, _Source]:
    """Every tensor the file offers, by Hugging Face's name."""
    sources: dict[str, _Source] = {}
    left_out = CONSUMED | ({"output.weight"} if is_tied(container) else set())
    for entry in container.tensors.values():
        if entry.name not in left_out:
            sources |= _expand(entry, family, container)
    return sources


def _expand(entry: TensorEntry, family: Family, container: Container) -> dict[str, _Source]:
    """The Hugging Face tensors one entry holds: one, or one per expert of a stack."""
    pattern, numbers = pattern_of(entry.name)
    rule = family.tensors.get(pattern)
    if rule is None:
        what = f"tensor {entry.name!r} is not known for {family.model_type}"
        raise UserError(what, where=str(container.path))
    if "{e}" not in rule.name or "{e}" in pattern:
        return {rule.name.format(**numbers): _Source(entry, rule)}
    return {rule.name.format(**numbers, e=e): _Source(entry, rule, e) for e in range(entry.shape[0])}


def pattern_of(name: str) -> tuple[str, dict[str, str]]:
    """`blk.3.ffn_up.7.weight` -> `blk.{i}.ffn_up.{e}.weight` and the numbers 3 and 7."""
    numbers: dict[str, str] = {}

    def keep(match: re.Match[str]) -> str:
        letter = "ie"[len(numbers)] if len(numbers) < 2 else "?"
        numbers[letter] = match[1]
        return f".{{{letter}}}"

    return re.sub(r"\.(\d+)(?=\.)", keep, name), numbers
