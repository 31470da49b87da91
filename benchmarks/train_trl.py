"""Full fine-tuning of SmolLM2 in bf16 on ragged chats, beside TRL's SFTTrainer: real tokens per second, and memory.

Both sides learn every token of the same chats through the same template, eight chats an optimizer step, with fp32
weights under bf16 products and AdamW; each runs in a process of its own, so that the peak of resident memory is its
own. Ours lays the eight end to end. TRL runs as it comes (padded), with rows of similar length put together (grouped),
and without padding in its two ways: the eight end to end (padding_free), or packed into one row of 1024 tokens a step,
about as many as the eight have (packed). Whichever is fastest is the peer of the second ratio.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _chats import conversations, encoded
from _timing import apart_in_turn, model_directory, peak_gigabytes, report

LENGTH, CHATS, ALL_CHATS = 1024, 8, 400
FOUR_TWICE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_length": LENGTH}
TRL: dict[str, dict[str, Any]] = {
    "padded": {**FOUR_TWICE, "train_sampling_strategy": "sequential"},
    "grouped": {**FOUR_TWICE, "train_sampling_strategy": "group_by_length"},
    "padding_free": {
        "per_device_train_batch_size": CHATS,
        "padding_free": True,
        "max_length": None,  # TRL wants it so; no chat here is longer than 1024
        "train_sampling_strategy": "sequential",
    },
    "packed": {"per_device_train_batch_size": 1, "packing": True, "max_length": LENGTH},
}


LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
"""PEFT's arguments and ours alike."""


def main(program: str = __file__, what: str | None = __doc__, lora: bool = False) -> None:
    """Compares the sides; of the weights, or (`program` being another file) of an adapter."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each side, after one that is not")
    parser.add_argument("--side", choices=["ours", *TRL], help="run this side alone, in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        mine = options.side == "ours"
        figures = ours(options.steps, lora) if mine else trl(TRL[options.side], options.steps, lora)
        print(json.dumps(figures))
        return
    command = [sys.executable, program, "--threads", str(options.threads), "--steps", str(options.steps), "--side"]
    sides = {side: [*command, side] for side in ("ours", *TRL)}
    compare("train_lora" if lora else "train_trl", apart_in_turn(sides, options.rounds, options.threads))


def ours(steps: int, lora: bool) -> dict[str, float]:
    """Real tokens per second of whole optimizer steps, the peak of memory, and the first step's loss."""
    from _loops import ChatsInOrder, adapting, fine_tuning

    from intaglio import load_tokenizer
    from intaglio.specs.adapter import LoRASpec

    directory = model_directory()
    stream = ChatsInOrder(encoded(ALL_CHATS, load_tokenizer(directory)), CHATS)
    loop = adapting(directory, stream, LoRASpec(**LORA)) if lora else fine_tuning(directory, stream)
    first = loop.step()
    start = time.perf_counter()
    tokens = sum(loop.step().tokens for _ in range(steps))
    return _figures(tokens, time.perf_counter() - start, first.loss)


def trl(settings: dict[str, Any], steps: int, lora: bool) -> dict[str, float]:
    """The same of SFTTrainer, with PEFT's LoRA; it counts real tokens itself."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    directory = model_directory()
    with tempfile.TemporaryDirectory() as output:
        config = SFTConfig(
            output_dir=output,
            bf16=True,
            use_cpu=True,
            gradient_checkpointing=False,
            max_steps=steps + 1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **settings,
        )
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16 if lora else torch.float32),
            args=config,
            train_dataset=Dataset.from_list([{"messages": chat} for chat in conversations(ALL_CHATS)]),
            processing_class=AutoTokenizer.from_pretrained(directory),
            callbacks=[ends := _step_ends()],
            peft_config=_peft_config() if lora else None,
        )
        trainer.train()
    logged = [line for line in trainer.state.log_history if "num_tokens" in line and "loss" in line]
    tokens = logged[-1]["num_tokens"] - logged[0]["num_tokens"]
    return _figures(tokens, ends.times[-1] - ends.times[0], logged[0]["loss"])


def _peft_config() -> Any:
    from peft import LoraConfig

    return LoraConfig(**LORA)


def _step_ends() -> Any:
    """A callback that notes when each optimizer step ended."""
    from transformers import TrainerCallback

    class StepEnds(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *args: object, **more: object) -> None:
            self.times.append(time.perf_counter())

    return StepEnds()


def _figures(tokens: float, seconds: float, loss: float) -> dict[str, float]:
    return {
        "tokens_per_second": tokens / seconds,
        "tokens": tokens,
        "peak_gigabytes": peak_gigabytes(),
        "first_loss": loss,
    }


def compare(name: str, found: dict[str, dict[str, float]]) -> None:
    """Ratios to SFTTrainer as it comes, and to the fastest way to run it."""
    mine = found.pop("ours")
    fastest = max(found, key=lambda name: found[name]["tokens_per_second"])

    def speed(peer: str) -> float:
        return round(mine["tokens_per_second"] / found[peer]["tokens_per_second"], 2)

    def memory(peer: str) -> float:
        return round(mine["peak_gigabytes"] / found[peer]["peak_gigabytes"], 2)

    report(
        name,
        ours=mine,
        trl=found,
        ratio=speed("padded"),
        ratio_memory=memory("padded"),
        fastest_trl=fastest,
        ratio_to_fastest=speed(fastest),
        ratio_memory_to_fastest=memory(fastest),
    )


if __name__ == "__main__":
    main()
