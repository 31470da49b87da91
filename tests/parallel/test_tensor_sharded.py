"""Tensor parallelism under FSDP2, over gloo ranks: the same numbers as one process, in float64."""

import torch

from intaglio.parallel.data import MicroBatches, shard
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.tensor import parallelize
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.objectives.language_model import LanguageModel
from parity import CLOSE, batches, made, taught
from ranks import run_ranks
from tiny_specs import LATENT, attention, block, decoder

SPECS = {
    "tied": decoder(
        block(attention=attention(num_kv_heads=2, qk_norm={"norm": {"kind": "rms_norm"}})), tie_embeddings=True
    ),
    "untied, odd vocabulary": decoder(block(attention=LATENT), vocab_size=61),
}
COMPARED = ("by loss", "norms", "parameters")


def rank(cases: list[tuple[str, int, bool]]) -> dict[str, float]:
    """Two micro-batches a step on each rank of dp, beside all four on one process."""
    found: dict[str, float] = {}
    objective = LanguageModel(chunk=5)
    for name, zero, sequence in cases:
        spec, layout = SPECS[name], ParallelSpec(dp=2, tp=2, zero=zero, sequence_parallel=sequence)
        mesh = build_mesh(layout, "cpu")
        rows = batches(spec.vocab_size, 12, (3, 4))
        together = [rows[i : i + 4] for i in range(0, 12, 4)]
        first = 2 * mesh["dp"].get_local_rank()
        model = made(spec)
        parallelize(model, mesh, layout)
        shard(model, mesh, layout, torch.float64)
        lesson = taught(
            model,
            objective,
            [some[first : first + 2] for some in together],
            targets=[sum(batch.num_targets for batch in some) for some in together],
            begin=MicroBatches(model, layout).begin,
        )
        gaps = taught(made(spec), objective, together).gap(lesson)
        found |= {f"{name}, zero {zero}, sequence {sequence}: {key}": gaps[key] for key in COMPARED}
    return found


def test_pieces_in_shards_learn_what_whole_models_do() -> None:
    """dp 2 x tp 2 at each stage of ZeRO, with accumulation."""
    cases = [
        ("tied", 1, True),
        ("untied, odd vocabulary", 2, True),
        ("tied", 3, False),
        ("untied, odd vocabulary", 3, True),
    ]
    for gaps in run_ranks(4, rank, cases, timeout=400):
        assert max(gaps.values()) < CLOSE, {key: gap for key, gap in gaps.items() if gap > CLOSE}
