"""`intaglio merge`: a base and an adapter to one model directory."""

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import read_text

if TYPE_CHECKING:
    from intaglio.adapters.merge import MergeReport


def merge(
    base: options.Model,
    adapter: Annotated[Path, typer.Argument(help="A PEFT directory.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; must not exist.")],
    prompts: Annotated[
        Path | None, typer.Option(help="Texts to compare on, one a line; four built-in ones if not given.")
    ] = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Fold an adapter into its base, in fp32, and say how far the logits of what was written are from before."""
    if out.exists():
        raise UserError("exists already", where=str(out), mend="choose another folder or remove it")
    import torch

    from intaglio.adapters.merge import PROMPTS, merge_directories

    if threads:
        torch.set_num_threads(threads)
    texts = PROMPTS if prompts is None else _texts(prompts)
    report = merge_directories(
        base, adapter, out, dtype=dtype, prompts=texts, say=lambda line: print(line, file=sys.stderr)
    )
    if json:
        print(json_module.dumps(asdict(report), ensure_ascii=False))
    else:
        _print(report)


def _texts(file: Path) -> list[str]:
    lines = [line for line in read_text(file).splitlines() if line.strip()]
    if not lines:
        raise UserError("no text in it", where=str(file))
    return lines


def _print(report: "MergeReport") -> None:
    if report.quantized_base:
        print("base: what its 4 bits stand for, since that is what the adapter was trained on")
    if report.requantized_error is not None:
        print(f"put into 4 bits again, rounding would take {report.requantized_error:.2f} times what the adapter gives")
    if report.untied:
        print("the output matrix is no longer the embedding matrix: the adapter changed only one of them")
    if report.tokenizer is None:
        print("no tokenizer: neither the adapter nor the base has one")
    else:
        print(f"tokenizer and chat template: the {report.tokenizer}'s")
    print(
        f"logits before and after: at most {report.max_difference:.3g} apart, {report.mean_difference:.3g} on average; "
        f"the same choice at {report.same_choice} of {report.tokens} places"
    )
    print(f"{report.path} ({report.dtype})")
