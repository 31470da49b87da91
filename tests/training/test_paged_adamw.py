"""The paged optimizer is AdamW, to the bit, and its moments lie in mapped files."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from intaglio.errors import UserError
from intaglio.training.stepping.paged import PagedAdamW

SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def _weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((400, 300), (7,), (3, 5))]


def _train(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for weight in weights[: 3 if step % 2 else 2]:  # now and then one gets no gradient
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        optimizer.zero_grad()


def _mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


def test_weights_are_those_of_adamw_to_the_bit(tmp_path: Path) -> None:
    ours, theirs = _weights(), _weights()
    _train(ours, PagedAdamW(ours, folder=tmp_path, **SETTINGS), range(6))
    _train(theirs, torch.optim.AdamW(theirs, fused=True, **SETTINGS), range(6))
    assert all(map(torch.equal, ours, theirs))
    assert not torch.equal(ours[0], _weights()[0])


def test_groups_keep_their_own_rate_and_decay(tmp_path: Path) -> None:
    def groups(weights: list[nn.Parameter]) -> list[dict[str, object]]:
        return [{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]

    ours, theirs = _weights(), _weights()
    _train(ours, PagedAdamW(groups(ours), folder=tmp_path, **SETTINGS), range(3))
    _train(theirs, torch.optim.AdamW(groups(theirs), fused=True, **SETTINGS), range(3))
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_large_moments_are_mapped_and_leave_no_file(tmp_path: Path) -> None:
    weights = _weights()
    optimizer = PagedAdamW(weights, folder=tmp_path, **SETTINGS)
    _train(weights, optimizer, range(1))
    assert _mapped_files().count(str(tmp_path)) == 2  # two moments of the one large weight
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    through, first = _weights(), _weights()
    _train(through, PagedAdamW(through, folder=tmp_path, **SETTINGS), range(6))
    before = PagedAdamW(first, folder=tmp_path, **SETTINGS)
    _train(first, before, range(3))
    second = [nn.Parameter(weight.detach().clone()) for weight in first]
    after = PagedAdamW(second, folder=tmp_path, **SETTINGS)
    after.load_state_dict(before.state_dict())
    _train(second, after, range(3, 6))
    assert all(map(torch.equal, through, second))


def test_the_state_of_a_plain_adamw_is_taken_over_into_mapped_files(tmp_path: Path) -> None:
    weights, plain = _weights(), _weights()
    optimizer = torch.optim.AdamW(plain, fused=True, **SETTINGS)
    _train(plain, optimizer, range(2))
    paged_one = PagedAdamW(weights, folder=tmp_path, **SETTINGS)
    paged_one.load_state_dict(optimizer.state_dict())
    moments = paged_one.state[weights[0]]["exp_avg"]
    assert torch.equal(moments, optimizer.state[plain[0]]["exp_avg"])
    if Path("/proc/self/maps").exists():
        assert str(tmp_path) in _mapped_files()


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    weights = _weights()
    with pytest.raises(UserError, match=r"no room for the optimizer's state \(No space left"):
        _train(weights, PagedAdamW(weights, folder=tmp_path, **SETTINGS), range(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_beside_a_gpu_the_moments_lie_in_pinned_memory() -> None:
    ours = [nn.Parameter(weight.detach().cuda()) for weight in _weights()]
    theirs = [nn.Parameter(weight.detach().cuda()) for weight in _weights()]
    optimizer = PagedAdamW(ours, **SETTINGS)
    plain = torch.optim.AdamW(theirs, fused=True, **SETTINGS)
    for weight, other in zip(ours, theirs, strict=True):
        weight.grad, other.grad = torch.ones_like(weight), torch.ones_like(other)
    optimizer.step()
    plain.step()
    assert all(map(torch.equal, ours, theirs))
    assert optimizer.state[ours[0]]["exp_avg"].is_pinned()
