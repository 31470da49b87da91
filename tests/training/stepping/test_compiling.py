"""Compiled parts: the same loss and gradients, for rows of any number of documents without compiling again."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from intaglio.adapters.attach import attach
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from intaglio.specs.adapter import LoRASpec
from intaglio.training.stepping.compiling import compile_parts, require_compiler
from intaglio.training.stepping.tricks import recompute_activations
from tiny_specs import LAYER, RMS, attention, block, decoder, with_moe

RAGGED = ([5, 7], [20], [3, 9, 2, 11], [1, 1, 30], [8, 8])
SPECS = {
    "pre": decoder(block(attention=attention(num_kv_heads=2, qk_norm={"norm": RMS}), repeat=2)),
    "parallel": decoder(block(placement="parallel", norm=LAYER)),
    "experts": with_moe(),
    "plain": decoder(),
}


def model_of(name: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(SPECS[name])


def step(model: Decoder, documents: list[int]) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(sum(documents))
    model.zero_grad()
    ids = torch.randint(0, 64, (1, sum(documents)))
    positions = torch.cat([torch.arange(length) for length in documents])[None]
    hidden = model.hidden_states(ids, positions, Packed(documents))
    loss = nn.functional.cross_entropy(model.logits(hidden)[0, :-1], ids[0, 1:])
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(compiled: Decoder, plain: Decoder, documents: list[int]) -> None:
    (loss, found), (expected, gradients) = step(compiled, documents), step(plain, documents)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """No graph of another test, and none left for one."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("name", "checkpointing"), [("pre", 1), ("parallel", 0), ("experts", 0)])
def test_ragged_rows_are_captured_once(name: str, checkpointing: int) -> None:
    """The graphs alone, run as they were captured: what a compiler makes of them is the next test."""
    compiled, plain = model_of(name), model_of(name)
    compile_parts(compiled, backend="aot_eager")
    if checkpointing:
        recompute_activations(compiled, checkpointing)
    assert_same(compiled, plain, RAGGED[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        for documents in RAGGED[1:]:
            assert_same(compiled, plain, documents)
        with torch.no_grad():
            torch.testing.assert_close(compiled.eval()(torch.ones(3, 1).long()), plain(torch.ones(3, 1).long()))
    assert compiled.state_dict().keys() == plain.state_dict().keys()


def test_adapters_are_captured_too() -> None:
    compiled, plain = model_of("plain"), model_of("plain")
    for model in (compiled, plain):
        attach(model, LoRASpec(r=4))
    compile_parts(compiled, backend="aot_eager")
    assert_same(compiled, plain, RAGGED[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(compiled, plain, RAGGED[2])


def test_compiled_equals_eager() -> None:
    compiled, plain = model_of("plain"), model_of("plain")
    with scalar_code():
        try:
            require_compiler("cpu")
        except UserError as error:
            pytest.skip(str(error))
        compile_parts(compiled)
        assert_same(compiled, plain, RAGGED[0])


@contextmanager
def scalar_code() -> Iterator[None]:
    """Code without vectors, by this process: asking the machine which vectors it has takes longer than the test."""
    from torch._inductor import config

    with config.patch({"cpp.simdlen": 1, "compile_threads": 1}):
        yield


def test_without_a_compiler_a_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(UserError, match=r"cannot compile here: No working C\+\+ compiler found") as caught:
        require_compiler("cpu")
    assert "\n" not in str(caught.value)
