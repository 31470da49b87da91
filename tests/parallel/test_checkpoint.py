"""What ranks write together, any ranks go on with; what is not whole, or not ours, is refused in one line.

Legend: B batch, T tokens.
"""

import os
import pickle
import shutil
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.parallel.checkpoint import SavesTogether, load_together, own_of, read_together
from intaglio.parallel.data import MicroBatches, shard
from intaglio.parallel.export import on_disk, without_numbers
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.moments import moments_of
from intaglio.parallel.pickled import read_pickled
from intaglio.parallel.shards import Shards
from intaglio.parallel.stages import rank_module
from intaglio.parallel.tensor import parallelize
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from ranks import run_ranks
from tiny_specs import attention, block, decoder

ODD = 66  # tokens: pieces of the tables are not all of one size
SAVED = 2  # steps before the checkpoint
AFTER = 2  # and behind it


def spec() -> DecoderSpec:
    return decoder(block(repeat=2, attention=attention(num_kv_heads=2)), vocab_size=ODD)


def rows(step: int) -> Tensor:
    """(B, T) of one step, the same on every rank."""
    return torch.randint(ODD, (4, 9), generator=torch.Generator().manual_seed(step))


class Trained:
    """A tiny decoder in fp64 and its AdamW, laid out over the ranks that there are."""

    def __init__(self, layout: ParallelSpec, seed: int = 1) -> None:
        self.model = Decoder(spec())
        init_weights(self.model, seed)
        self.model.double()
        self.layout, self.share, self.shares = layout, 0, layout.dp
        if layout.world > 1:
            self._lay_out(layout)
        self.weights: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(self.weights.values(), lr=0.01, foreach=False)
        ]

    def _lay_out(self, layout: ParallelSpec) -> None:
        mesh = build_mesh(layout, "cpu")
        parallelize(self.model, mesh, layout)
        self.share = mesh["shard"].get_local_rank()
        shard(self.model, mesh, layout, torch.float64)
        MicroBatches(self.model, layout).begin(last=True)

    def step(self, number: int) -> float:
        """One optimizer step on this rank's rows; the loss of all of them."""
        ids = rows(number).chunk(self.shares)[self.share]
        logits = self.model(ids[:, :-1])
        logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimizers[0].zero_grad()
        (loss / self.shares).backward()  # gradients of ranks are summed
        self.optimizers[0].step()
        told = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(told)
            told /= dist.get_world_size()
        return float(told)

    def steps(self, first: int, count: int) -> list[float]:
        return [self.step(number) for number in range(first, first + count)]


def whole(tensor: Tensor) -> Tensor:
    """What all ranks have of it together."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def everything(trained: Trained) -> dict[str, Tensor]:
    """Weights and moments, whole."""
    tensors = {**trained.weights, **moments_of(trained.weights, trained.optimizers)}
    return {name: whole(tensor) for name, tensor in tensors.items()}


def tied() -> Decoder:
    """A decoder whose first and last stage have the embeddings each."""
    model = Decoder(decoder(block(repeat=2), tie_embeddings=True))
    init_weights(model, 3)
    return model


def stepped(module: nn.Module) -> tuple[dict[str, nn.Parameter], list[torch.optim.Optimizer]]:
    """Parameters after one step of AdamW with gradients that only they decide."""
    weights = dict(module.named_parameters())
    for weight in weights.values():
        weight.grad = weight.detach() / 2
    optimizer = torch.optim.AdamW(weights.values())
    optimizer.step()
    return weights, [optimizer]


FOUR = ParallelSpec(dp=2, zero=3, tp=2)


def four_ranks(folder: Path) -> dict[str, Any]:
    """Saves on dp 2 x tp 2, goes on; goes on with what was saved on dp 4; what saving does besides."""
    trained = Trained(FOUR)
    before = trained.steps(0, SAVED)
    saves = SavesTogether()
    place = folder / "step-00000002"
    own, more = {"mine": torch.full((2,), float(dist.get_rank()))}, {"objective.kept": torch.arange(3.0)}
    told: list[str] = []
    plain = {"step": SAVED, "cursor": [1, 2]}
    saves.save(place, trained.weights, trained.optimizers, plain, own, more, lambda: told.append("done"))
    in_background = SavesTogether(background=True)
    wanted = everything(trained)
    in_background.save(folder / "behind", trained.weights, trained.optimizers, {"step": SAVED})
    after = trained.steps(SAVED, AFTER)
    in_background.wait()
    again = Trained(FOUR, seed=7)
    load_together(folder / "behind", again.weights, again.optimizers)
    kept = everything(again)
    refused = failing(saves, folder, trained)
    in_stages = stepped(rank_module(tied(), 2, [dist.get_rank() // 2]))
    saves.save(folder / "stages", *in_stages, {"step": 1})
    four = Trained(ParallelSpec(dp=4, zero=3), seed=8)
    plain = load_together(place, four.weights, four.optimizers)
    more = {"objective.kept": torch.zeros(3)}
    read_together(place, more)
    return {
        "before": before,
        "after": after,
        "told": told,
        "equal": all(torch.equal(kept[name], tensor) for name, tensor in wanted.items()) and len(kept) == len(wanted),
        "refused": refused,
        "own": (own_of(place) or {})["mine"].tolist(),
        "more": more["objective.kept"].tolist(),
        "step": plain["step"],
        "dp 4": four.steps(SAVED, AFTER),
    }


def failing(saves: SavesTogether, folder: Path, trained: Trained) -> str:
    """What every rank hears when one of them cannot write."""
    place = folder / "step-00000002"
    listed = sorted(str(file) for file in place.rglob("*"))
    broken: Any = {"mine": "no tensor at all"} if dist.get_rank() == 1 else {}
    try:
        saves.save(place, trained.weights, trained.optimizers, {"step": 99}, broken)
    except UserError as error:
        assert sorted(str(file) for file in place.rglob("*")) == listed
        return str(error)
    return "saved"


def two_ranks(place: Path) -> list[float]:
    """Goes on, on tp 2."""
    trained = Trained(ParallelSpec(tp=2), seed=9)
    load_together(place, trained.weights, trained.optimizers)
    assert own_of(place) is None
    return trained.steps(SAVED, AFTER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(folder: Path) -> list[dict[str, Any]]:
    """What four ranks told."""
    return run_ranks(4, four_ranks, folder)


def test_any_mesh_goes_on_with_any_others(saved: list[dict[str, Any]], folder: Path) -> None:
    alone = Trained(ParallelSpec())
    uninterrupted = alone.steps(0, SAVED + AFTER)
    place = folder / "step-00000002"
    one = Trained(ParallelSpec(), seed=5)
    plain = load_together(place, one.weights, one.optimizers)
    assert (plain["step"], plain["cursor"], own_of(place)) == (SAVED, [1, 2], None)
    went_on = {
        "dp 2 x tp 2": saved[0]["after"],
        "dp 4": saved[0]["dp 4"],
        "tp 2": run_ranks(2, two_ranks, place)[0],
        "one process": one.steps(SAVED, AFTER),
    }
    assert saved[0]["before"] == pytest.approx(uninterrupted[:SAVED], abs=1e-12)
    for name, losses in went_on.items():
        assert losses == pytest.approx(uninterrupted[SAVED:], abs=1e-12), name


def test_stages_of_a_pipeline_make_one_checkpoint(saved: list[dict[str, Any]], folder: Path) -> None:
    weights, optimizers = stepped(tied())
    fresh = dict(tied().named_parameters())
    others: list[torch.optim.Optimizer] = [torch.optim.AdamW(fresh.values())]
    load_together(folder / "stages", fresh, others)
    wanted, found = {**weights, **moments_of(weights, optimizers)}, {**fresh, **moments_of(fresh, others)}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_a_save_is_of_its_moment_and_tells_the_first_rank(saved: list[dict[str, Any]]) -> None:
    assert all(rank["equal"] for rank in saved)
    assert [rank["told"] for rank in saved] == [["done"], [], [], []]
    assert all(rank["more"] == [0.0, 1.0, 2.0] and rank["step"] == SAVED for rank in saved)
    assert [rank["own"] for rank in saved] == [[float(rank)] * 2 for rank in range(4)]


def test_a_rank_that_cannot_write_leaves_what_stood_there(saved: list[dict[str, Any]], folder: Path) -> None:
    assert all(rank["refused"].startswith(f"{folder / 'step-00000002'}: rank 1: ") for rank in saved)
    assert all("\n" not in rank["refused"] for rank in saved)


def test_a_model_is_written_without_ever_being_whole(
    saved: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "step-00000002"
    one = Trained(ParallelSpec(), seed=5)
    load_together(place, one.weights, one.optimizers)
    living: list[weakref.ref[Tensor]] = []
    most = 0
    read = Shards.tensor

    def counted(self: Shards, name: str) -> Tensor:
        nonlocal most
        living.append(weakref.ref(tensor := read(self, name)))
        most = max(most, sum(t.nbytes for ref in living if (t := ref()) is not None))
        return tensor

    monkeypatch.setattr(Shards, "tensor", counted)
    empty = without_numbers(Decoder(spec()))
    save_model(on_disk(empty, place, torch.float64), folder / "model", max_shard_bytes=10_000)
    monkeypatch.undo()
    sizes = [p.nbytes for p in one.weights.values()]
    assert len(living) == len(sizes)
    assert most <= 10_000 + 2 * max(sizes) < sum(sizes) / 2
    opened = load_directory(folder / "model")
    for name, tensor in opened.named_parameters():
        assert torch.equal(tensor, one.weights[name]), name


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A checkpoint in DCP's own format, written by one process."""
    trained = Trained(ParallelSpec())
    trained.steps(0, 1)
    tensors = {**{n: w.detach() for n, w in trained.weights.items()}, **moments_of(trained.weights, trained.optimizers)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tensors, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (tmp_path / "dcp" / "state.json").write_text('{"step": 1}')
    return tmp_path / "dcp"


def test_what_dcp_pickles_is_read_as_data(alone: Path) -> None:
    one, other = Trained(ParallelSpec()), Trained(ParallelSpec(), seed=3)
    one.steps(0, 1)
    load_together(alone, other.weights, other.optimizers)
    assert other.steps(1, 2) == one.steps(1, 2)


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("deep", [False, True])
def test_a_malicious_pickle_is_refused_and_does_not_run(alone: Path, tmp_path: Path, deep: bool) -> None:
    trace = tmp_path / "ran"
    evil: Any = Malicious(os.system, f"touch {trace}")
    metadata = read_pickled(alone)
    if deep:
        metadata.planner_data = evil
        evil = metadata
    pickle.loads(pickle.dumps(Malicious(os.system, f"touch {trace}")))
    assert trace.exists()  # it would work
    trace.unlink()
    (alone / ".metadata").write_bytes(pickle.dumps(evil))
    other = Trained(ParallelSpec())
    with pytest.raises(UserError, match=r"\.metadata: refused.*posix\.system") as refused:
        load_together(alone, other.weights, other.optimizers)
    assert "\n" not in str(refused.value)
    assert not trace.exists()


def hostile(metadata: Any, kind: str) -> Any:
    """Metadata of the right classes that would make DCP do what it should not."""
    at, info = next(iter(metadata.storage_data.items()))
    match kind:
        case "a file elsewhere":
            info.relative_path = "../weights"
        case "a transform":
            info.transform_descriptors = ["zstd"]
        case "bytes that would be unpickled":
            from torch.distributed.checkpoint.metadata import BytesStorageMetadata

            metadata.state_dict_metadata[at.fqn] = BytesStorageMetadata()
        case "something else":
            return {"no": "metadata"}
        case "a function of torch":
            metadata.planner_data = Malicious(torch.load, "file")
        case "a builtin":
            metadata.planner_data = Malicious(eval, "1")
        case "a lost table":
            metadata.storage_data = None
    return metadata


@pytest.mark.parametrize(
    "kind",
    [
        "a file elsewhere",
        "a transform",
        "bytes that would be unpickled",
        "something else",
        "a function of torch",
        "a builtin",
        "a lost table",
    ],
)
def test_metadata_that_misleads_is_refused(alone: Path, kind: str) -> None:
    (alone / ".metadata").write_bytes(pickle.dumps(hostile(read_pickled(alone), kind)))
    with pytest.raises(UserError, match="refused"):
        read_pickled(alone)


@pytest.mark.parametrize("written", [b"", b"\x80\x04.", b"garbage", b"\x80\x05\x8c\x03abc"])
def test_damaged_metadata_is_one_line(alone: Path, written: bytes) -> None:
    (alone / ".metadata").write_bytes(written)
    with pytest.raises(UserError, match=r"\.metadata") as refused:
        read_pickled(alone)
    assert "\n" not in str(refused.value)


def refusal(place: Path, weights: dict[str, nn.Parameter], optimizers: Sequence[torch.optim.Optimizer]) -> str:
    with pytest.raises(UserError) as refused:
        load_together(place, weights, optimizers)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_damage_and_other_models_are_refused(saved: list[dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    place, one = folder / "step-00000002", Trained(ParallelSpec())
    cut = shutil.copytree(place, tmp_path / "cut")
    shard = sorted((cut / "shards").iterdir())[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert f"{shard}: is cut off" in refusal(cut, one.weights, one.optimizers)
    shard.unlink()
    assert f"{shard}: is missing" in refusal(cut, one.weights, one.optimizers)
    with pytest.raises(UserError, match="pieces of tensor"):
        Shards(sorted((cut / "shards").iterdir()))
    fewer = dict(list(one.weights.items())[1:])
    assert "'embed_tokens.weight' is left over" in refusal(place, fewer, [])
    more = {**one.weights, "extra.weight": nn.Parameter(torch.zeros(2))}
    assert "'extra.weight' is missing" in refusal(place, more, one.optimizers)
    wider = {**one.weights, "norm.weight": nn.Parameter(torch.zeros(33))}
    assert "'norm.weight' has shape [32], and the model's has [33]" in refusal(place, wider, one.optimizers)
