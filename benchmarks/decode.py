"""Decoding and prefill of SmolLM2 in bf16 beside `transformers.generate`, 128 tokens in and 128 out, greedy.

`with_prompt` counts the prompt's forward into the time, as the peers' figures do; `decode_only` leaves it out on both
sides (time for 128 new tokens less time for one). `bandwidth_share` is the bytes of weights that a step at batch 1 must
read, over the time it took, as a share of the measured speed of reading memory.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _timing import in_turn, model_directory, read_bandwidth, report
from transformers import AutoModelForCausalLM

from intaglio import LLM, SamplingParams
from intaglio.engine.generate import generate
from intaglio.parts.context import Causal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    directory = model_directory()
    llm = LLM(directory, dtype="bfloat16")
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    bandwidth = read_bandwidth()
    for batch in map(int, options.batches.split(",")):
        decode(llm, peer, batch, options.tokens, options.rounds, bandwidth)
    prefill(llm, peer, options.rounds)


def decode(llm: LLM, peer: torch.nn.Module, batch: int, tokens: int, rounds: int, bandwidth: float) -> None:
    """One batch size, whole and without the prompt."""
    torch.manual_seed(batch)
    ids = torch.randint(100, 40_000, (batch, 128))
    prompts = ids.tolist()

    def ours(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        for _ in generate(llm.model, llm.tokenizer, prompts, [params] * batch):
            pass

    def theirs(count: int) -> None:
        with torch.no_grad():
            peer.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
            )

    ours(2)
    theirs(2)
    whole, peer_whole = in_turn(lambda: ours(tokens), lambda: theirs(tokens), rounds)
    first, peer_first = in_turn(lambda: ours(1), lambda: theirs(1), rounds)
    weights = llm.model.spec.num_parameters() * 2
    step = (whole - first) / (tokens - 1)
    report(
        f"decode_{batch}",
        tokens_per_second=round(batch * tokens / whole, 1),
        peer_tokens_per_second=round(batch * tokens / peer_whole, 1),
        ratio_with_prompt=round(peer_whole / whole, 2),
        ratio_decode_only=round((peer_whole - peer_first) / (whole - first), 2),
        step_ms=round(step * 1e3, 2),
        bandwidth_share=round(weights / step / bandwidth, 2),
        read_gb_per_second=round(bandwidth / 1e9, 1),
    )


def prefill(llm: LLM, peer: torch.nn.Module, rounds: int) -> None:
    """One forward over 512 tokens, logits of every place on both sides."""
    ids = torch.randint(100, 40_000, (1, 512))
    positions = torch.arange(512)[None]

    @torch.inference_mode()
    def ours() -> None:
        llm.model(ids, positions, Causal())

    @torch.inference_mode()
    def theirs() -> None:
        peer(ids)

    ours()
    theirs()
    time, peer_time = in_turn(ours, theirs, max(rounds, 5))
    report(
        "prefill_512",
        tokens_per_second=round(512 / time, 1),
        peer_tokens_per_second=round(512 / peer_time, 1),
        ratio=round(peer_time / time, 2),
    )


if __name__ == "__main__":
    main()
