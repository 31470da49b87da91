"""Offline throughput of SmolLM2 at 1, 8, 32 and 64 sequences, beside vLLM, OpenVINO, llama.cpp and transformers.

128 random tokens in and 128 out, greedy, EOS ignored, the prompts' time included; every side in a process of its own,
so that its start counts: `first_token` is what passed between the start of the process and the first token. Ours runs
on the native operators, on plain torch, and with weights of integers; the peers in environments of their own (`make
vllm-env peers-env`), those that are missing being left out by name. OpenVINO and llama.cpp read the GGUF file that our
weights come from.

`limits` says how near ours comes to what the machine allows: at batch 1 the bytes of weights that a step must read over
the measured speed of reading memory, at batch 64 the products of prompts and steps over the measured peak of products.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _serving_peers import PEERS, measure
from _timing import apart_in_turn, model_directory, read_bandwidth, report

ROOT = Path(__file__).parents[1]
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours_int8": {"weights": "int8"},
    "ours_int4": {"weights": "int4"},
    "ours_plain_torch": {"native": False},
}
PYTHONS = {
    "vllm": ROOT / ".venv-vllm" / "bin" / "python",
    "openvino": ROOT / ".venv-peers" / "bin" / "python",
    "llama_cpp": ROOT / ".venv-peers" / "bin" / "python",
    "transformers": Path(sys.executable),
}
MODULES = {"vllm": "vllm", "openvino": "openvino_genai", "llama_cpp": "llama_cpp", "transformers": "transformers"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join([*OURS, *PEERS]))
    parser.add_argument("--gguf", type=Path, help="the file that OpenVINO and llama.cpp read; default: fetched anew")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.run:
        print(json.dumps(measure_ours(json.loads(options.run))))
        return
    with tempfile.TemporaryDirectory() as folder:
        batches = [int(batch) for batch in options.batches.split(",")]
        job = {"batches": batches, "tokens": options.tokens, "threads": options.threads}
        job |= {"directory": str(model_directory()), "gguf": str(options.gguf or _fetch_gguf(Path(folder)))}
        build_native()
        commands = {side: command(side, job) for side in options.sides.split(",") if is_here(side)}
        compare(apart_in_turn(commands, options.rounds, options.threads), batches, options.tokens)


def measure_ours(job: dict[str, Any]) -> dict[str, float]:
    """Our side, in this process."""
    if job.get("native") is False:
        os.environ["INTAGLIO_NATIVE"] = "off"
    from intaglio import LLM, SamplingParams, native
    from intaglio.engine.interface import EngineConfig
    from intaglio.engine.quantized import weight_bytes

    config = EngineConfig(weights=job.get("weights"), prefix_caching=False, max_model_len=2048, max_sequences=64)
    llm = LLM(job["directory"], dtype="bfloat16", config=config)

    def generate(texts: list[list[int]], count: int) -> None:
        llm.complete(texts, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))

    found = measure(generate, job)
    read = weight_bytes(llm.model) - llm.model.embed_tokens.weight.nbytes  # of the embedding a step reads a few rows
    return {**found, "weight_bytes": float(read), "native": float(native.available())}


def build_native() -> None:
    """The operators, built before anything is timed, as they are from the second start on."""
    subprocess.run([sys.executable, "-m", "intaglio.native.build"], check=True, stdout=subprocess.DEVNULL)


def is_here(side: str) -> bool:
    """Whether the side can run; says so if it cannot."""
    if side in OURS:
        return True
    python, look = PYTHONS[side], f"import importlib.util as u; exit(u.find_spec({MODULES[side]!r}) is None)"
    found = python.exists() and subprocess.run([python, "-c", look]).returncode == 0
    if not found:
        print(f"{side} is not installed: make vllm-env peers-env", file=sys.stderr)
    return found


def command(side: str, job: dict[str, Any]) -> list[str]:
    """How a side is run."""
    if side in OURS:
        return [sys.executable, __file__, "--threads", str(job["threads"]), "--run", json.dumps({**job, **OURS[side]})]
    return [str(PYTHONS[side]), str(Path(__file__).with_name("_serving_peers.py")), side, json.dumps(job)]


def _fetch_gguf(folder: Path) -> Path:
    environment = {**os.environ, "INTAGLIO_HOME": str(folder)}
    code = "from intaglio.checkpoints.pull import pull; pull('smollm2-135m-instruct', keep=True)"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)
    return next((folder / "downloads").rglob("*.gguf"))


def compare(found: dict[str, dict[str, float]], batches: list[int], tokens: int) -> None:
    """A line of figures for each batch, ratios to every peer, and the distance to the limits."""
    for batch in batches:
        speeds = {side: round(figures[f"tokens_per_second_{batch}"], 1) for side, figures in found.items()}
        ratios = {
            f"{mine}/{peer}": round(speeds[mine] / speeds[peer], 2)
            for mine in found.keys() & OURS.keys()
            for peer in found.keys() & PEERS.keys()
        }
        report(f"serve_{batch}", tokens_per_second=speeds, ratios=dict(sorted(ratios.items())))
    report("first_token", seconds={side: round(figures["first_token"], 1) for side, figures in found.items()})
    limits(found, batches, tokens)


def limits(found: dict[str, dict[str, float]], batches: list[int], tokens: int) -> None:
    """See the module."""
    from intaglio.checkpoints.models import load_model
    from intaglio.training.log import measured_peak

    bandwidth, peak = read_bandwidth(), measured_peak(torch.bfloat16, size=2048, seconds=2.0)
    spec = load_model(model_directory(), dtype="bfloat16").spec
    head = 2 * spec.vocab_size * spec.hidden_size  # which only the last token of a prompt goes through
    flops = 2 * spec.flops_per_token(tokens) - head  # a token read and a token made
    shares: dict[str, dict[str, float]] = {}
    for side in found.keys() & OURS.keys():
        figures = found[side]
        most = max(batches)
        shares[side] = {f"peak_at_{most}": round(flops * figures[f"tokens_per_second_{most}"] / peak, 2)}
        if 1 in batches:
            reading = figures["weight_bytes"] * figures["tokens_per_second_1"] / bandwidth
            shares[side]["bandwidth_at_1"] = round(reading, 2)
    report("limits", shares=shares, read_gb_per_second=round(bandwidth / 1e9, 1), peak_gflops=round(peak / 1e9))


if __name__ == "__main__":
    main()
