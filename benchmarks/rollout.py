"""Rollouts of GRPO on SmolLM2: tokens a second on our engine, beside `transformers.generate` as TRL's trainers call it.

Both draw a group of answers to each of some ragged chat prompts, at temperature 1, from the weights as they are: ours
through `drawn_answers` (a prompt is read once for its group, an answer that ends makes room for the next, and packing
the weights is counted in where it is done), the peer as one batch, padded on the left, each prompt repeated, and run
until its last answer ends. Tokens are those of answers, up to and including the first EOS.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _timing import in_turn, model_directory, report
from transformers import AutoModelForCausalLM

from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.text.chat import render_chat
from intaglio.training.rollout import Drawing, drawn_answers

QUESTIONS = (
    "What is 17 + 25? Answer with the number alone.",
    "Name a colour.",
    "A farmer has 12 hens and buys 5 more. A fox takes 3, a neighbour gives her half a dozen. How many now?",
    "Write one sentence about the sea.",
    "Which is larger, 0.9 or 0.11? Say why in a few words.",
    "Is 91 a prime number?",
    "Say hello in French.",
    "Tom reads 30 pages a day. His book has 412 pages, of which he has read 52. After how many days is he done?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    directory = model_directory()
    tokenizer = load_tokenizer(directory)
    model = load_model(directory, dtype=options.dtype).train()
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, options.dtype)).eval()
    prompts = [
        render_chat(tokenizer, [{"role": "user", "content": question}], add_generation_prompt=True).ids
        for question in QUESTIONS
    ]
    ends = sorted(tokenizer.eos_token_ids)
    made = {"ours": 0, "peer": 0}

    def ours() -> None:
        groups = drawn_answers(model, tokenizer, prompts, Drawing(options.tokens), options.group, seed=1)
        made["ours"] = sum(len(answer.ids) for group in groups for answer in group)

    def theirs() -> None:
        width = max(map(len, prompts))
        rows = [[ends[0]] * (width - len(ids)) + ids for ids in prompts for _ in range(options.group)]
        seen = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts for _ in range(options.group)]
        with torch.no_grad():
            torch.manual_seed(1)
            found = peer.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(seen),
                max_new_tokens=options.tokens,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                eos_token_id=ends,
                pad_token_id=ends[0],
            )[:, width:]
        ended = torch.isin(found, torch.tensor(ends))
        made["peer"] = int(((ended.cumsum(dim=1) - ended.long()) == 0).sum())

    ours_s, peer_s = in_turn(ours, theirs, options.rounds)
    speeds = {"ours": made["ours"] / ours_s, "peer": made["peer"] / peer_s}
    report(
        "rollout",
        ours_tokens_per_second=round(speeds["ours"], 1),
        peer_tokens_per_second=round(speeds["peer"], 1),
        ratio=round(speeds["ours"] / speeds["peer"], 2),
        answers=len(prompts) * options.group,
        dtype=options.dtype,
    )


if __name__ == "__main__":
    main()
