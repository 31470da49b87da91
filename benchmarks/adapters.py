"""Several adapters in one engine: what it costs to change from one to another, and to mix them in a batch.

Random adapters of rank 16 for all matrices of SmolLM2's layers, beside the model in bf16, greedy. `switch`: one new
token of a short prompt under the adapter of the request before and under another one, and what reading and loading a
directory adds. `mixed`: a batch of 16 under 1, 4 and 8 adapters in turn with the plain model and with one that has the
adapter merged in; a ratio of 1 is their speed. Prompts count as well.
"""

import argparse
import tempfile
from collections.abc import Sequence
from itertools import count, cycle, islice
from pathlib import Path

import torch
from _timing import in_turn, model_directory, report, seconds

from intaglio import LLM, SamplingParams
from intaglio.adapters.attach import attach, detach
from intaglio.adapters.merge import load_merged
from intaglio.adapters.peft_files import save_adapter
from intaglio.adapters.served import read_updates
from intaglio.checkpoints.models import load_model
from intaglio.engine.engine import Engine
from intaglio.specs.adapter import LoRASpec

ADAPTERS, BATCH, RANK = 8, 16, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = model_directory()
    with tempfile.TemporaryDirectory() as folder:
        directories = _written(base, Path(folder))
        llm = LLM(base, dtype="bfloat16")
        for number, directory in enumerate(directories):
            llm.engine.load_adapter(str(number), read_updates(directory, llm.model, base))
        switch(llm, directories[0], base, options.rounds)
        merged, _ = load_merged(base, directories[0], dtype="bfloat16")
        mixed(llm, LLM(base, loaded=merged), options.tokens, options.rounds)


def _written(base: Path, folder: Path) -> list[Path]:
    """Adapters that have learned something: their B are small and not 0."""
    model, directories = load_model(base, dtype="bfloat16"), [folder / str(number) for number in range(ADAPTERS)]
    for number, directory in enumerate(directories):
        attach(model, LoRASpec(r=RANK, lora_alpha=2 * RANK), "made", seed=number)
        dice = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.shape[-1] == RANK:
                    parameter.normal_(0, 0.001, generator=dice)
        save_adapter(model, directory, "made")
        detach(model, "made")
    return directories


_NUMBERS = count()


def answer(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, adapters: Sequence[str | None]) -> None:
    """Answers all of them, each under its adapter."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for prompt, adapter in zip(prompts, adapters, strict=True):
        engine.add(str(next(_NUMBERS)), prompt, params, adapter=adapter)
    while engine.has_work:
        engine.step()


def switch(llm: LLM, directory: Path, base: Path, rounds: int) -> None:
    """One line: between two that are loaded, and to one that is not."""
    engine, prompt = llm.engine, list(range(100, 108))

    def first_tokens(names: Sequence[str]) -> None:
        for name in names:
            answer(engine, [prompt], 1, [name])

    def loaded() -> None:
        engine.load_adapter("new", read_updates(directory, llm.model, base))
        answer(engine, [prompt], 1, ["new"])
        engine.unload_adapter("new")

    same, other = ["0"] * 20, ["0", "1"] * 10
    first_tokens(other)
    changed, stayed = in_turn(lambda: first_tokens(other), lambda: first_tokens(same), max(rounds, 5))
    report(
        "adapter_switch",
        first_token_ms=round(stayed / 20 * 1e3, 2),
        first_token_after_switch_ms=round(changed / 20 * 1e3, 2),
        switch_ms=round((changed - stayed) / 20 * 1e3, 2),
        load_switch_and_first_token_ms=round(min(seconds(loaded) for _ in range(max(rounds, 3))) * 1e3, 1),
    )


def mixed(llm: LLM, merged: LLM, tokens: int, rounds: int) -> None:
    """A line for each number of adapters."""
    dice = torch.Generator().manual_seed(0)
    prompts = torch.randint(100, 40_000, (BATCH, 32), generator=dice).tolist()
    none: list[str | None] = [None] * BATCH
    for number in (1, 4, ADAPTERS):
        names = list(islice(cycle(map(str, range(number))), BATCH))

        def ours(names: Sequence[str] = names) -> None:
            answer(llm.engine, prompts, tokens, names)

        def plain() -> None:
            answer(llm.engine, prompts, tokens, none)

        def folded() -> None:
            answer(merged.engine, prompts, tokens, none)

        ours()
        plain()
        folded()
        time, plain_time = in_turn(ours, plain, rounds)
        again, folded_time = in_turn(ours, folded, rounds)
        report(
            "adapters_mixed",
            adapters=number,
            tokens_per_second=round(BATCH * tokens / time, 1),
            ratio_to_plain=round(plain_time / time, 2),
            ratio_to_merged=round(folded_time / again, 2),
        )


if __name__ == "__main__":
    main()
