"""The stages in order, with the number of each and what is shown of it."""

from typing import Final

from intaglio.demo import measuring, planning, scores, serving, training
from intaglio.demo.stage import Found, Score, Stage

__all__ = ["STAGES"]


def _percent(one: Found) -> str:
    return f"{one['mean']:.1%} [{one['low']:.1%}, {one['high']:.1%}]"


def _pulled(found: Found) -> list[str]:
    cache = found["kv_bytes_per_token"] / 1024
    return [f"{found['parameters'] / 1e6:.1f} M parameters in {found['layers']} layers, {cache:.1f} KiB a cached token"]


def _before(found: Found) -> list[str]:
    answer = " ".join(found["answer"].split())
    return [
        f"> {found['question']}  {answer}",
        f"{found['tokens_per_second']:.1f} tokens a second",
        f"sarcastic or serious: {_percent(found['score'])} right of {found['rows']}",
    ]


def _pretrained(found: Found) -> list[str]:
    marks = f"a byte 5-gram {found['byte_5gram']:.2f}, xz {found['xz']:.2f}"
    return [f"{found['bits_per_byte']:.2f} bits a byte on held-out files; {marks}"]


def _preferred(found: Found) -> list[str]:
    before, after = found["before"], found["after"]
    gain = found["gain"]
    return [
        f"the serious one is likelier in {before['accuracy']:.1%} of {found['rows']} pairs before, in "
        f"{after['accuracy']:.1%} after: {gain['difference']:+.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]"
    ]


def _merged(found: Found) -> list[str]:
    return [
        f"logits at most {found['max_difference']:.3g} apart (bfloat16), the same choice at {found['same_choice']:.1%}"
    ]


def _after(found: Found) -> list[str]:
    gain = found["gain"]
    change = f"{gain['difference']:+.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]"
    return [f"sarcastic or serious: {_percent(found['score'])} right of {found['rows']}, {change} over the start"]


def _served(found: Found) -> list[str]:
    return [line for turn in found["turns"] for line in (f"> {turn['question']}", turn["answer"])]


def _loaded(found: Found) -> list[str]:
    first, token = found["ttft_s"]["p50"], found["tpot_s"]["p50"]
    return [
        f"{found['output_tokens_per_second']:.0f} tokens a second in {found['requests']} answers, {found['failed']} "
        f"failed; medians: first token {1000 * first:.0f} ms, then {1000 * token:.0f} ms each"
    ]


def _planned(found: Found) -> list[str]:
    return [
        f"{planning.GPUS} x {found['device']}: {found['peak_bytes'] / 2**30:.1f} GiB on each, {found['verdict']}",
        f"{found['tokens_per_day'] / 1e9:.0f} billion tokens a day, MFU {found['mfu']:.0%}; what it was pretrained on "
        f"takes {found['days']:.0f} days",
    ]


STAGES: Final = (
    Stage(
        "pull", "a real model, and real rows", (20, 20), measuring.pull_all,
        Score("seconds to have both", scores.seconds, "least", ".1f"), _pulled,
    ),
    Stage(
        "before", "the model as it is", (25, 15), measuring.before,
        Score("tokens a second, one answer", scores.answering_speed, "most", ".1f"), _before,
    ),
    Stage(
        "pretrain", "a minute of pretraining on the Python standard library, from nothing", (60, 35),
        training.pretrain,
        Score("bits a byte, held out", scores.bits_per_byte, "least", ".3f", scores.byte_5gram),
        _pretrained,
    ),
    Stage(
        "tune", "LoRA: what a sarcastic headline is", (130, 45), training.tune,
        Score("held-out loss, nats a target", scores.held_out_loss, "least", ".3f"), _merged,
    ),
    Stage(
        "prefer", "DPO: rather a serious headline than a sarcastic one", (130, 50), training.prefer,
        Score("pairs told apart", scores.told_apart, "most", ".1%", scores.told_apart_before),
        _preferred,
    ),
    Stage(
        "merge", "both adapters become part of the model", (5, 5), training.merge,
        Score("largest difference of logits", scores.largest_difference, "least", ".3g"), _merged,
    ),
    Stage(
        "after", "the trained model, the same questions", (20, 10), measuring.after,
        Score("right answers", scores.right_answers, "most", ".1%", scores.right_before),
        _after,
    ),
    Stage(
        "serve", "the API, asked by openai-python", (20, 15), serving.talk,
        Score("seconds to the first piece", scores.first_piece, "least", ".3f"), _served,
    ),
    Stage(
        "load", f"a load test: {serving.AT_ONCE} conversations at once", (35, 20), serving.load_test,
        Score("tokens a second", scores.serving_speed, "most", ".1f"), _loaded,
    ),
    Stage(
        "plan", f"its pretraining on {planning.GPUS} GPUs, by arithmetic", (2, 2), planning.plan_training_run,
        Score("billion tokens a day", scores.billion_tokens_a_day, "most", ".1f"), _planned,
    ),
)  # fmt: skip
"""From the download to the plan of a cluster."""
