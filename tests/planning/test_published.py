"""What others published beside what is planned: the times are near, and a miss says why."""

import pytest

from intaglio.lineage import preset
from intaglio.planning.losses import language_model_loss
from intaglio.planning.published import Line, lines, misses, points
from intaglio.planning.step_time import step_time
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec


def spec(name: str) -> DecoderSpec:
    """Of a preset."""
    found = preset(name).spec
    assert isinstance(found, DecoderSpec)
    return found


def test_tokens_a_second_are_within_thirty_percent_or_say_why() -> None:
    far = []
    for point in points(spec):
        time = step_time(point.spec, point.job, point.layout, point.device, point.execution)
        assert point.tokens is not None
        if abs(time.tokens_per_second / point.tokens - 1) > 0.3:
            assert dict(point.causes)["tokens/s"]
            far.append(point.name)
    assert len(points(spec)) == 16
    assert len(far) <= 2


def test_a_compiler_and_fp8_help_as_they_did() -> None:
    found = {p.name: step_time(p.spec, p.job, p.layout, p.device, p.execution).tokens_per_second for p in points(spec)}
    plain, fused, eight = (f"Llama 3.1 8B, 8 H100, FSDP{more}" for more in ("", ", compiled", ", compiled, fp8"))
    assert found[fused] / found[plain] == pytest.approx(6667 / 5762, rel=0.1)
    assert found[eight] / found[fused] == pytest.approx(8532 / 6667, rel=0.1)
    one, two = (v for name, v in found.items() if "405B" in name)
    assert two / one == pytest.approx(1.28, rel=0.05)  # interleaved over plain 1F1B


def test_memory_is_within_ten_percent_where_the_program_is_known() -> None:
    """But for one line, all of what ran without a pipeline, with what torchtitan's program holds beside ours."""
    found = {point.name: point for point in points(spec) if point.layout.pp.ranks == 1 and point.gib is not None}
    far = [line for point in found.values() for line in point.lines() if line.unit == "GiB" and not line.hit]
    assert [line.name for line in far] == ["Llama 3.1 70B, 256 H100, FSDP 32 x TP 8, compiled, fp8"]
    assert len(found) == 12
    tokens, hidden, vocab, layers = 2 * 8192, 4096, 128_256, 32
    compiled = found["Llama 3.1 8B, 8 H100, FSDP, compiled"]
    assert dict(compiled.beside) == {
        "embeddings, gathered": 2 * vocab * hidden,
        "last layer, gathered": 2 * (2 * hidden**2 + 2 * hidden * hidden // 4 + 3 * hidden * 14336 + 2 * hidden),
        "logits in bf16, freed": 2 * tokens * vocab,
        "last products, not kept": -2 * tokens * hidden * layers,
    }
    assert compiled.job.products == 2


def test_a_plain_loss_is_made_of_a_ranks_own_tokens_and_rows() -> None:
    whole, tokens = spec("smollm2-135m"), 64
    logits = tokens * whole.vocab_size * 4
    alone = language_model_loss(whole, tokens, 2, None)
    assert (alone.passing, alone.kept - logits) == (2 * logits, tokens * (whole.hidden_size * 2 + 8) + 4)
    along = language_model_loss(whole, tokens, 2, None, layout=ParallelSpec(cp=4))
    assert along.passing == alone.passing // 4
    shared = language_model_loss(whole, tokens, 2, None, layout=ParallelSpec(tp=4))
    assert shared.passing == 3 * logits // 4
    together = language_model_loss(whole, tokens, 2, None, layout=ParallelSpec(tp=4, loss_parallel=False))
    assert together.passing == alone.passing


def test_hits() -> None:
    near, far = (Line("a", "GiB", 10.0, found, "b") for found in (10.9, 11.1))
    assert (near.hit, far.hit) == (True, False)
    assert Line("a", "tokens/s", 10.0, 12.9, "b").hit
    assert Line("a", "GiB", 10.0, 5.0, "b", at_most=True).hit
    assert misses([near, far]) == [far]
    assert far.plain()["error"] == pytest.approx(0.11)


@pytest.mark.prove
def test_every_line() -> None:
    """Memory as well: seconds, where a pipeline of 512 ranks is planned."""
    found = lines(spec)
    assert all(line.cause for line in misses(found))
    assert all(line.hit for line in found if "ZeRO" in line.name or "QLoRA" in line.name)
