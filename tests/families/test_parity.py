"""Our models equal transformers': logits and gradients, both ways through the checkpoint directory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.models.decoder import Decoder
from intaglio.parts.attention import Attention
from intaglio.parts.latent_attention import LatentAttention
from intaglio.specs.families import FAMILIES, config_of, read_config, read_directory
from zoo import FAMILY_FIRSTS, LENGTH, ZOO, Pair, PairOf, build, random_ids

CLOSE = 1e-5  # max abs difference of fp32 logits of order one

every_animal = pytest.mark.parametrize("name", ZOO)
every_family = pytest.mark.parametrize("name", FAMILY_FIRSTS.values())


def reopened(directory: Path) -> Any:
    """What the matching Auto class makes of a directory, with no code of ours."""
    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()


@torch.no_grad()
def theirs(model: Any, ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """(B, T) -> (B, T, V); with positions, a mask of ones keeps transformers from taking gaps for documents."""
    more = {} if positions is None else {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
    return model(ids, **more).logits


@torch.no_grad()
def ours(model: Decoder, ids: Tensor, positions: Tensor | None = None) -> Tensor:
    return model(ids, positions)


def gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def test_zoo_holds_every_family() -> None:
    assert {animal.model_type for animal in ZOO.values()} == set(FAMILIES)


@every_animal
def test_our_reader_gives_their_logits(name: str, pair_of: PairOf) -> None:
    pair = pair_of(name)
    for length in (1, 5, 23, 60):  # growing, since dynamic scaling remembers the longest over there
        ids = random_ids(2, length)
        expected = theirs(pair.theirs, ids)
        assert gap(ours(pair.ours, ids), expected) <= CLOSE, f"{length} tokens: {first_difference(pair, ids)}"
    assert 0.3 < expected.std() < 3, "logits too flat or too steep to show a mistake"


@every_animal
def test_any_positions(name: str, pair_of: PairOf) -> None:
    """Case 4: a wrong rotary layout shows as soon as positions are not 0, 1, 2, ..."""
    pair = pair_of(name)
    ids = random_ids(3, 20, seed=2)
    windowed = any(block.attention.window for block in pair.ours.spec.blocks)  # theirs counts tokens, ours positions
    positions = torch.stack(
        [offset_positions(20, seed) if windowed else gappy_positions(20, seed) for seed in (1, 2, 3)]
    )
    expected = theirs(fresh(pair), ids, positions)
    assert gap(ours(pair.ours, ids, positions), expected) <= CLOSE
    assert gap(ours(pair.ours, ids), expected) > 100 * CLOSE or not depends_on_offset(name, windowed)


def depends_on_offset(name: str, windowed: bool) -> bool:
    """Rotary scores know distances only, so with windows, where only the offset differs, nothing may change."""
    return not windowed or ZOO[name].model_type == "gpt_neo"


def offset_positions(length: int, seed: int) -> Tensor:
    """(length,), one after the other, from a random place."""
    start = torch.randint(1, LENGTH - length, (1,), generator=torch.Generator().manual_seed(seed))
    return start + torch.arange(length)


def gappy_positions(length: int, seed: int) -> Tensor:
    """(length,), rising with random gaps up to the same last one, on which dynamic scaling depends."""
    inner = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(seed))[: length - 1]
    return torch.cat((inner.sort().values, torch.tensor([LENGTH - 1])))


def fresh(pair: Pair) -> Any:
    """The same model without the memory that dynamic scaling has over there."""
    return reopened(pair.directory) if "dynamic" in pair.animal.name else pair.theirs


def test_dynamic_scaling_beyond_the_trained_length(pair_of: PairOf) -> None:
    """Uncached, every length has its own base: their fresh forward over that length, and no other."""
    pair = pair_of("llama-dynamic")
    trained = pair.ours.spec.max_position_embeddings
    for length in (trained, trained + 1, 2 * trained):
        ids = random_ids(2, length)
        assert gap(ours(pair.ours, ids), theirs(reopened(pair.directory), ids)) <= CLOSE
    longer = ours(pair.ours, ids)[:, : trained + 1]
    assert gap(longer, ours(pair.ours, ids[:, : trained + 1])) > 100 * CLOSE  # so the base matters here


@every_animal
def test_our_writer_opens_in_the_auto_class(name: str, pair_of: PairOf, tmp_path: Path) -> None:
    pair = pair_of(name)
    ids = random_ids(2, 40)
    expected = theirs(fresh(pair), ids)
    save_model(pair.ours, tmp_path / "model")
    written = reopened(tmp_path / "model")
    assert type(written).__name__ == (pair.animal.written_as or pair.animal.architecture)
    assert gap(theirs(written, ids), expected) <= CLOSE
    assert torch.equal(ours(load_directory(tmp_path / "model"), ids), ours(pair.ours, ids))


@every_animal
def test_our_writer_says_what_theirs_says(name: str, pair_of: PairOf, tmp_path: Path) -> None:
    """The same tensors, bit for bit, under the same names, also when they are spread over many files."""
    pair = pair_of(name)
    save_model(pair.ours, tmp_path / "model", max_shard_bytes=50_000)
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert len(shards) > 2
    written: dict[str, Tensor] = {}
    for shard in shards:
        tensors = tensors_of(shard)
        assert all(index["weight_map"][key] == shard.name for key in tensors)
        written |= tensors
    original = tensors_of(pair.directory / "model.safetensors")
    assert set(written) == set(index["weight_map"]) == set(original)
    assert all(torch.equal(written[key], original[key]) for key in original)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in original.values())


def tensors_of(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as opened:
        return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118


@every_family
def test_shards_open_like_one_file(name: str, pair_of: PairOf, tmp_path: Path) -> None:
    pair = pair_of(name)
    ids = random_ids(2, 20)
    save_model(pair.ours, tmp_path / "model", max_shard_bytes=50_000)
    expected = ours(pair.ours, ids)
    assert torch.equal(ours(load_directory(tmp_path / "model"), ids), expected)
    assert gap(theirs(reopened(tmp_path / "model"), ids), expected) <= CLOSE


@every_family
def test_their_shards_open_here(name: str, pair_of: PairOf, tmp_path: Path) -> None:
    pair = pair_of(name)
    pair.theirs.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(ours(load_directory(tmp_path), random_ids(2, 20)), ours(pair.ours, random_ids(2, 20)))


@every_animal
def test_spec_survives_the_round_trip(name: str, pair_of: PairOf) -> None:
    spec = read_directory(pair_of(name).directory)
    written = config_of(spec)
    assert read_config(written) == spec
    assert written["architectures"] == [ZOO[name].written_as or ZOO[name].architecture]


@pytest.mark.parametrize("name", [name for name, animal in ZOO.items() if animal.older])
def test_older_rotary_keys_mean_the_same(name: str, pair_of: PairOf) -> None:
    config = json.loads((pair_of(name).directory / "config.json").read_text())
    newer = read_config(config)
    del config["rope_parameters"]
    config.pop("partial_rotary_factor", None)
    assert read_config({**config, **ZOO[name].older}) == newer


@every_animal
def test_counted_parameters_are_theirs(name: str, pair_of: PairOf) -> None:
    pair = pair_of(name)
    counted = sum(parameter.numel() for parameter in pair.theirs.parameters())
    assert pair.ours.spec.num_parameters() == counted == sum(p.numel() for p in pair.ours.parameters())


@every_family
def test_gradients_are_theirs(name: str, tmp_path: Path) -> None:
    """Their gradients, saved as if they were weights, come through the weight map: it is linear."""
    model = build(ZOO[name], seed=3)
    model.save_pretrained(tmp_path / "weights")
    mine = load_directory(tmp_path / "weights")
    ids, labels = random_ids(2, 30), random_ids(2, 30, seed=5)
    for logits in (model(ids).logits, mine(ids)):
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.save_pretrained(tmp_path / "gradients")
    expected = dict(load_directory(tmp_path / "gradients").named_parameters())
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    for key, parameter in mine.named_parameters():
        assert parameter.grad is not None, key
        scale = expected[key].abs().max().item()
        assert gap(parameter.grad, expected[key]) <= 1e-5 * scale + 1e-7, key  # a key's bias has none but rounding


def first_difference(pair: Pair, ids: Tensor) -> str:
    """The first attention whose output differs, for a message that says where to look."""
    attention_names = ("self_attn", "attn", "attention")
    modules = (
        [module for name, module in pair.theirs.named_modules() if name.split(".")[-1] in attention_names],
        [module for module in pair.ours.modules() if isinstance(module, Attention | LatentAttention)],
    )
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, out, kept=kept: kept.append(first_of(out)))
        for group, kept in zip(modules, seen, strict=True)
        for module in group
    ]
    theirs(pair.theirs, ids)
    ours(pair.ours, ids)
    for hook in hooks:
        hook.remove()
    layers = [layer for layer, pair_of_outputs in enumerate(zip(*seen, strict=False)) if gap(*pair_of_outputs) > CLOSE]
    return f"the first attention to differ is that of layer {layers[0]}" if layers else "every attention agrees"


def first_of(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    """transformers' attention returns its weights too."""
    return out if isinstance(out, Tensor) else out[0]
