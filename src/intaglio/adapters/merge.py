"""Adapters folded into the weights they change: in a model, and from directory to directory.

W + s B A is added up in fp32 and rounded once, to the dtype W has. A base that was 4 bits when the adapter was trained
is merged as those 4 bits stand for: the adapter learned to mend their error too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.adapters.attach import put, wrappers
from intaglio.adapters.models import load_model
from intaglio.checkpoints.classifiers import load_classifier, save_classifier
from intaglio.checkpoints.models import find_model, load_tokenizer
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.files import read_json
from intaglio.models.heads import SequenceClassifier
from intaglio.models.quantize import quantized_matrices
from intaglio.parts.lora import Adapted, LoRALinear, linear_of
from intaglio.parts.nf4 import NF4Linear, dequantize, quantize_nf4
from intaglio.text.chat import render_chat
from intaglio.text.sentencepieces import SOURCE_FILE
from intaglio.text.tokenizer import Tokenizer

__all__ = ["PROMPTS", "MergeReport", "load_merged", "merge", "merge_directories", "requantized_error", "tokenizer_of"]

PROMPTS = (
    "What is the capital of France?",
    "Write a short letter that thanks a friend for a book.",
    "def fibonacci(n):",
    "The three laws of thermodynamics say that",
)
"""On what a merged model is compared with the one it was made of, where the user says nothing."""


@dataclass(frozen=True)
class MergeReport:
    """What a merge has done, and how far the written model is from base and adapter.

    Attributes:
        path: what was written.
        dtype: of the weights.
        quantized_base: the base is what its 4 bits stand for, since that is what was trained.
        untied: the output matrix is no longer the embedding matrix, since the adapter changed only one of them.
        tokenizer: where the tokenizer came from: `adapter`, `base`, or None.
        tokens: places of the prompts that were compared.
        max_difference: the largest of a logit.
        mean_difference: on average.
        same_choice: at how many of the places the likeliest token (or label) is the same.
        requantized_error: see `requantized_error`; None where nothing was 4 bits.
    """

    path: str
    dtype: str
    quantized_base: bool
    untied: bool
    tokenizer: str | None
    tokens: int = 0
    max_difference: float = 0.0
    mean_difference: float = 0.0
    same_choice: int = 0
    requantized_error: float | None = None


@torch.no_grad()
def merge(model: Any) -> bool:
    """Folds the active adapters into the weights, in place, and takes all adapters off; 4 bits become plain weights.

    Returns:
        whether matrices that were tied no longer are (`model.spec` says so then).

    Raises:
        UserError: an adapter's bias for a layer that has none, or a weight that is not finite.
    """
    found = list(wrappers(model))
    for path, wrapper in found:
        _check_bias(path, wrapper)
    for path, wrapper in reversed(found):  # from the inside out
        part = wrapper.merged()
        if not all(torch.isfinite(parameter).all() for parameter in part.parameters()):
            raise UserError("a merged weight is not finite", where=path, mend="the adapter is damaged")
        put(model, path, part)
    for name, matrix in quantized_matrices(model).items():
        _put_plain(model, name, matrix)
    model.adapter_specs = {}
    return _untie(model)


@torch.no_grad()
def requantized_error(model: Any) -> float | None:
    """What putting the merged matrices into 4 bits again would take from them, beside what the adapters gave.

    Returns:
        the root mean square of the rounding, over that of the update: at 1 as much is lost as was learned. None where
        no adapter changes a linear layer of 4 bits.
    """
    lost = given = 0.0
    for _, wrapper in wrappers(model):
        base = wrapper.base
        if isinstance(wrapper, LoRALinear) and isinstance(base, NF4Linear) and wrapper.chosen():
            merged = wrapper.merged_weight()
            again = quantize_nf4(merged, base.blocksize, base.nested_absmax is not None)
            lost += float((dequantize(again, torch.float32) - merged).square().sum())
            given += float((merged - base.dequantized()).square().sum())
    return math.sqrt(lost / given) if given else None


def _check_bias(path: str, wrapper: Adapted) -> None:
    biased = [piece for piece in wrapper.chosen() if getattr(piece, "lora_bias", None) is not None]
    if isinstance(wrapper, LoRALinear) and biased and wrapper.base.bias is None:
        mend = "serve the adapter unmerged, or train it without lora_bias"
        raise UserError("the adapter has a bias and the layer has none to add it to", where=path, mend=mend)


def _put_plain(model: Any, name: str, matrix: Any) -> None:
    path, _, attribute = name.rpartition(".")
    if isinstance(matrix, NF4Linear):
        put(model, path, linear_of(matrix.dequantized().to(matrix.made_from), matrix.bias))
    else:
        owner = model.get_submodule(path)
        delattr(owner, attribute)
        setattr(owner, attribute, nn.Parameter(matrix.dequantized().to(matrix[0].made_from)))


def _untie(model: Any) -> bool:
    """Ties again what still is equal; else the spec says that it is not."""
    if not getattr(model.spec, "tie_embeddings", False) or isinstance(model, SequenceClassifier):
        return False
    head = model.lm_head.weight
    model.tie_weights()
    if torch.equal(head, model.lm_head.weight):
        return False
    model.lm_head.weight = head
    model.spec = model.spec.updated(tie_embeddings=False)
    return True


def merge_directories(
    base: str | Path,
    adapter: Path,
    out: Path,
    *,
    dtype: str | None = None,
    prompts: Sequence[str] = PROMPTS,
    say: Callable[[str], None] = lambda line: None,
) -> MergeReport:
    """Writes base and adapter as one model directory, and compares what was written with what it was made of.

    Tokenizer, chat template and generation config are the adapter's where it has some, else the base's.

    Args:
        base: a pulled name, a directory or a GGUF file.
        adapter: a PEFT directory.
        out: the folder to write.
        dtype: of the weights; None: as the base is stored.
        prompts: as a user's messages, where the tokenizer has a chat template.
        say: called with each step.

    Raises:
        UserError: see `load_model`, `merge` and `save_model`; or something that the merged model could not say.
    """
    say(f"reading {base} and {adapter}")
    model = load_model(base, dtype=dtype, adapter=adapter)
    tokenizer, origin = tokenizer_of(base, adapter)
    rows = _rows(tokenizer, prompts, model.spec.vocab_size)
    say(f"running {len(rows)} prompts before")
    before = _logits(model, rows)
    packed, again = bool(quantized_matrices(model)), requantized_error(model)
    say("merging in fp32")
    untied = merge(model)
    say(f"writing {out}")
    if isinstance(model, SequenceClassifier):
        save_classifier(model, out, tokenizer)
    else:
        save_model(model, out, tokenizer, _generation_config(find_model(base), adapter))
    kept = str(next(model.parameters()).dtype).removeprefix("torch.")
    classifies = isinstance(model, SequenceClassifier)
    del model
    say("reading it again and comparing")
    written = load_classifier(out) if classifies else load_model(out)
    report = MergeReport(str(out), kept, packed, untied, origin, requantized_error=again)
    return _compare(before, _logits(written, rows), report)


def load_merged(
    base: str | Path, adapter: Path, *, dtype: str | None = None, device: str = "cpu"
) -> tuple[Any, Tokenizer | None]:
    """A model with an adapter merged into it, in memory alone, and the tokenizer of both.

    Raises:
        UserError: see `load_model` and `merge`.
    """
    tokenizer, _ = tokenizer_of(base, adapter)
    model = load_model(base, dtype=dtype, device=device, adapter=adapter)
    merge(model)
    return model, tokenizer


def tokenizer_of(base: str | Path, adapter: Path) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer that belongs to base and adapter together, and whose it was; none where neither has one."""
    if (adapter / "tokenizer.json").is_file():
        return load_tokenizer(adapter), "adapter"
    path = find_model(base)
    if path.is_dir() and not any((path / file).is_file() for file in ("tokenizer.json", SOURCE_FILE)):
        return None, None
    return load_tokenizer(path), "base"


def _generation_config(base: Path, adapter: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for folder in (base, adapter):
        if (folder / "generation_config.json").is_file():
            config |= read_json(folder / "generation_config.json")
    return config


def _rows(tokenizer: Tokenizer | None, prompts: Sequence[str], vocab_size: int) -> list[list[int]]:
    """The prompts as ids; where there is no tokenizer, one row of tokens from all over the vocabulary."""
    if tokenizer is None:
        return [[place * vocab_size // 16 for place in range(16)]]
    if not tokenizer.chat_template:
        return [tokenizer.encode(prompt) for prompt in prompts]
    asked = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [render_chat(tokenizer, messages, add_generation_prompt=True).ids for messages in asked]


@torch.no_grad()
def _logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """What the model says of each row: (1, T, V), or (1, C) scores; fp32."""
    device = next(model.parameters()).device
    return [model(torch.tensor([row], device=device)).float().cpu() for row in rows]


def _compare(before: Sequence[Tensor], after: Sequence[Tensor], report: MergeReport) -> MergeReport:
    gaps = [(a - b).abs() for a, b in zip(before, after, strict=True)]
    same = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in zip(before, after, strict=True))
    return replace(
        report,
        tokens=sum(gap.shape[:-1].numel() for gap in gaps),
        max_difference=max(float(gap.max()) for gap in gaps),
        mean_difference=sum(float(gap.sum()) for gap in gaps) / sum(gap.numel() for gap in gaps),
        same_choice=same,
    )
