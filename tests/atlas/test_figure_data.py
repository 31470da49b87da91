"""What the figures show, against computations of its own that share no code with them."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio.atlas.diagrams import decoder_diagram
from intaglio.atlas.figure import chinese, english
from intaglio.atlas.figures.activations import Activations, Gates
from intaglio.atlas.figures.attention_maps import AttentionMaps, Watching
from intaglio.atlas.figures.beyond import BeyondTraining
from intaglio.atlas.figures.bottleneck import Bottleneck, right_share
from intaglio.atlas.figures.cache_bytes import CacheBytes
from intaglio.atlas.figures.dead_units import units_awake
from intaglio.atlas.figures.experts import Experts, kind_of
from intaglio.atlas.figures.family_tree import FamilyTree, changed_in_chinese
from intaglio.atlas.figures.four_bits import FourBits
from intaglio.atlas.figures.four_terms import by_distance, terms_of
from intaglio.atlas.figures.kv_cache import KVCache
from intaglio.atlas.figures.low_rank import LowRank, kept_by_rank
from intaglio.atlas.figures.masks import Masks
from intaglio.atlas.figures.paging import Batching, Paging
from intaglio.atlas.figures.pipelines import Pipelines
from intaglio.atlas.figures.placement import NormPlacement, identity_gradient, placed
from intaglio.atlas.figures.positions import AddedPositions, RotaryPositions
from intaglio.atlas.figures.reach import GradientReach
from intaglio.atlas.figures.sharding import Sharding
from intaglio.atlas.figures.shared_heads import SharedHeads
from intaglio.atlas.small_runs import code_bytes, fit, fresh, held_out_bytes, losses_by_place, small_spec
from intaglio.checkpoints.load import load_directory
from intaglio.lineage import generations, preset
from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import DecoderSpec


def test_work_with_and_without_a_cache_is_what_the_spec_counts() -> None:
    figure = KVCache(tokens=6, hidden_size=16, layers=2)
    data, spec = figure.data(), figure.spec()
    for tokens in range(1, 7):
        assert data["with"][tokens - 1] == spec.flops_per_token(tokens)
        assert data["without"][tokens - 1] == tokens * spec.flops_per_token(tokens)
    assert data["largest_difference"] < 1e-5
    assert data["cache_bytes"] == 2 * 6 * 16 * 2 * 4, "K and V, tokens, features, layers, fp32"


def test_cache_bytes_are_the_formulas() -> None:
    data = CacheBytes(contexts=(1024, 8192)).data()
    kinds = {name: dict(map(tuple, points))[8192] for name, points in data["kinds"].items()}
    layers, width = 32, 128  # llama-7b
    assert kinds["MHA 32"] == 2 * layers * 32 * width * 2 * 8192
    assert kinds["GQA 32:8"] == 2 * layers * 8 * width * 2 * 8192
    assert kinds["MQA"] == 2 * layers * width * 2 * 8192
    assert kinds["MLA"] == layers * (512 + 64) * 2 * 8192
    assert kinds["MHA, 4096"] == 2 * layers * 32 * width * 2 * 4096
    known = data["known"]
    assert dict(map(tuple, known["gpt3-175b"])) == {1024: 2 * 96 * 12288 * 2 * (1024 + 256) // 2}, "ends at 2048"
    assert dict(map(tuple, known["llama2-70b"])) == {1024: 2 * 80 * 8 * 128 * 2 * 1024}


def test_heads_read_their_groups() -> None:
    own, grouped, one, latent = SharedHeads(heads=8, shared=(8, 2, 1)).data()["panels"]
    assert own == [[head] for head in range(8)]
    assert grouped == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert one == latent == [list(range(8))]


def test_masks_by_brute_force() -> None:
    data = Masks().data()
    masks, tokens = data["masks"], range(12)
    document = [0] * 5 + [1] * 3 + [2] * 4
    wanted = {
        "causal": lambda q, k: k <= q,
        "banded": lambda q, k: q - 4 < k <= q,
        "alternating": lambda q, k: k <= q,
        "two bands": lambda q, k: q - 7 < k <= q,
        "packed": lambda q, k: k <= q and document[q] == document[k],
        "padded": lambda q, k: q < 3 or 3 <= k <= q,
        "whole": lambda q, k: True,
        "prefix": lambda q, k: k <= q or k < 5,
    }
    for name, seen in wanted.items():
        assert masks[name] == [[int(seen(q, k)) for k in tokens] for q in tokens], name
    assert masks["cached"] == [[int(k <= q) for k in tokens] for q in range(8, 12)]


def test_derivatives_are_the_textbooks() -> None:
    data = Activations(points=41).data()
    x = torch.tensor(data["x"], dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, 1.0)
    gelu = normal.cdf(x) + x * normal.log_prob(x).exp()
    sigma = torch.sigmoid(x)
    silu = sigma + x * sigma * (1 - sigma)
    slopes = {name: torch.tensor(both["slope"], dtype=torch.float64) for name, both in data["functions"].items()}
    torch.testing.assert_close(slopes["GELU"], gelu, atol=1e-5, rtol=0)
    torch.testing.assert_close(slopes["SiLU"], silu, atol=1e-5, rtol=0)
    torch.testing.assert_close(slopes["ReLU"], (x > 0).double(), atol=0, rtol=0)
    assert data["swish"]["β = 1"]["value"] == pytest.approx(data["functions"]["SiLU"]["value"], abs=1e-6)


def test_gates_multiply_the_branch_beside_them() -> None:
    data = Gates(points=9, values=(1.0, -2.0)).data()
    assert list(data["families"]) == ["GLU", "ReGLU", "GEGLU", "SwiGLU"]
    for x, glu, swiglu in zip(data["gate"], data["families"]["GLU"][1], data["families"]["SwiGLU"][1], strict=True):
        share = 1 / (1 + math.exp(-x))
        assert glu == pytest.approx(-2 * share, abs=1e-6)
        assert swiglu == pytest.approx(-2 * x * share, abs=1e-5)


def test_positions_are_the_papers() -> None:
    data = AddedPositions(places=5, size=8).data()
    for place, row in enumerate(data["table"]):
        for pair in range(4):
            angle = place / 10000 ** (2 * pair / 8)
            assert row[pair] == pytest.approx(math.sin(angle), abs=1e-5)
            assert row[4 + pair] == pytest.approx(math.cos(angle), abs=1e-5)
    assert dict(map(tuple, data["step"]))[8] == pytest.approx(1 / 7)
    mean = sum(math.cos(3 / 10000 ** (2 * pair / 8)) for pair in range(4)) / 4
    assert data["products"]["50"][3] == pytest.approx(mean, abs=1e-4)


def test_the_four_terms_add_up_to_the_scores() -> None:
    model: Any = fresh(small_spec(8, 16, {"intermediate_size": 8}, positions={"kind": "sinusoidal"}))
    ids = held_out_bytes()[:48].view(3, 16)
    watching = Watching()
    with torch.no_grad():
        model.layers[0].attention.q_proj.weight.mul_(50)
        model(ids, context=watching)
    terms = terms_of(model, ids)
    assert len(terms) == 4
    total = torch.stack(list(terms.values())).sum(dim=0)
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
    torch.testing.assert_close(total.masked_fill(hidden, float("-inf")).softmax(dim=-1), watching.weights[0])
    assert float(watching.weights[0].std()) > 0.05, "scores that say nothing would prove nothing"


def test_what_distance_explains() -> None:
    places = torch.arange(12.0)
    apart = places[:, None] - places
    assert by_distance(torch.cos(apart)) == pytest.approx(1)
    assert by_distance(torch.randn(60, 60, generator=torch.Generator().manual_seed(0))) < 0.2
    assert by_distance(places[None].expand(12, 12) + 0.0) < 0.6


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    data = RotaryPositions(size=16, theta=100.0, shown=(0, 1)).data()
    mean = sum(math.cos(7 / 100 ** (2 * pair / 16)) for pair in range(8)) / 8
    for scores in data["scores"].values():
        assert scores[7] == pytest.approx(mean, abs=2e-3)
    assert data["waves"]["linear × 8"] == pytest.approx([8 * wave for wave in data["waves"]["none"]], rel=1e-5)
    assert data["waves"]["none"][3] == pytest.approx(2 * math.pi * 100 ** (6 / 16), rel=1e-5)


def test_only_post_bends_the_identity_path() -> None:
    for kind in ("pre", "residual", "sandwich"):
        assert identity_gradient(placed(kind, 5, 8), 0) == pytest.approx(1.0, abs=1e-5)
    norms = NormPlacement(depths=(2, 12), width=32, seeds=1).data()["identity"]["post"]
    assert norms[1] < norms[0] / 20, "each of twenty more norms takes its part"


def test_gradients_reach_back_as_the_history_measures() -> None:
    logs = GradientReach(lengths=(2, 16), hidden_size=16, sequences=4, seeds=1).data()["logs"]
    change = {curve: found[-1] - found[0] for curve, found in logs.items()}
    assert change["RNN, scale 0.5"] < 14 * math.log10(0.5) + 1
    assert change["RNN, scale 2"] > change["RNN, scale 1"] > change["RNN, scale 0.5"]


def test_letters_that_are_right_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.tensor([[1, 2, 3], [4, 5, 6]])
    backwards = torch.tensor([[3, 2, 9], [6, 5, 4]])
    monkeypatch.setattr("intaglio.atlas.figures.bottleneck._written", lambda model, source: backwards)
    assert right_share(Seq2Seq.__new__(Seq2Seq), source) == pytest.approx(5 / 6)


def test_each_letter_looks_at_the_whole_word() -> None:
    data = Bottleneck(hidden_size=8, steps=2, batch=2, lengths=(3,), words=2).data()
    assert len(data["written"]) == len(data["alignment"]) == len(data["word"])
    assert [sum(row) for row in data["alignment"]] == pytest.approx([1.0] * len(data["word"]), abs=1e-5)


def test_shards_add_up_to_the_peak() -> None:
    data = {"stages": Sharding().planned()}
    sums = {zero: sum(stage["components"].values()) for zero, stage in data["stages"].items()}
    spec = preset("llama3-8b").spec
    assert data["stages"]["0"]["components"]["optimizer states"] >= 8 * spec.num_parameters(), "two moments in fp32"
    assert sums["0"] > sums["1"] >= sums["2"] > sums["3"]
    whole, eighth = (data["stages"][zero]["components"]["optimizer states"] for zero in ("0", "3"))
    assert eighth == pytest.approx(whole / 8, rel=1e-3)


def test_bubbles_are_the_formula() -> None:
    data = Pipelines(ranks=4, micro_batches=8).simulated()
    for name in ("gpipe", "1f1b"):
        assert data[name]["bubble"] == pytest.approx(3 / (8 + 3))
    for one in data.values():
        busy = sum(end - start for row in one["rows"] for *_, start, end in row)
        assert one["bubble"] == pytest.approx(1 - busy / (4 * one["makespan"]))
        for row in one["rows"]:
            assert all(a[4] <= b[3] + 1e-9 for a, b in pairwise(row)), "one thing at a time"


def test_errors_of_four_bits_by_brute_force() -> None:
    figure = FourBits(model="none")
    data = figure.data()
    weights = torch.cat([weight.reshape(-1, 64) for weight in figure._weights()[0]])[:400]
    scales = weights.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(data["levels"])
    nearest = levels[((weights / scales)[..., None] - levels).abs().argmin(dim=-1)] * scales
    lost = ((weights - nearest).square().sum() / weights.square().sum()).sqrt()
    assert data["errors"]["NF4"] == pytest.approx(float(lost), rel=0.02)
    assert data["errors"]["int8"] < 0.1 * data["errors"]["NF4"] < 0.1 * data["errors"]["int4, even"]
    assert sum(data["shares"]) == pytest.approx(1)
    assert sum(data["histogram"]) == pytest.approx(1)


@torch.no_grad()
def test_losses_by_place_are_the_models_own() -> None:
    model, text = fresh(small_spec(8, 16, {"intermediate_size": 8})), held_out_bytes()
    losses = losses_by_place(model, text, 16, 3)
    assert losses.shape == (15,)
    windows = [text[16 * row : 16 * row + 16] for row in range(3)]
    mine = [-float(model(one[None])[0, 4].log_softmax(dim=-1)[one[5]]) for one in windows]
    assert float(losses[4]) == pytest.approx(sum(mine) / 3, rel=1e-4)


def test_small_models_learn_and_repeat() -> None:
    def run() -> list[float]:
        return list(fit(fresh(small_spec(8, 16, {"intermediate_size": 8})), code_bytes(), steps=12, batch=4, window=16))

    first = run()
    assert first[-1] < first[0]
    assert run() == first


def test_positions_beyond_training() -> None:
    data = BeyondTraining(trained=16, read=32, width=8, steps=2, batch=1, windows=2).data()
    assert data["kinds"]["learned"][-1][0] < 16 < data["kinds"]["none"][-1][0]
    assert data["scaled"]["rotary"] == data["kinds"]["rotary"]
    assert data["scaled"]["linear"] != data["scaled"]["rotary"]


def test_what_a_rank_keeps() -> None:
    a, b = torch.randn(9, 2), torch.randn(2, 7)
    kept = kept_by_rank(a @ b)
    assert len(kept) == 7
    assert kept[0] < 1
    assert kept[1] == pytest.approx(1)
    assert kept_by_rank(torch.eye(4)) == pytest.approx([0.25, 0.5, 0.75, 1])


def test_an_adapter_trains_what_its_rank_says() -> None:
    data = LowRank(width=8, base_steps=1, steps=1, batch=1, window=16, ranks=(1, 2)).data()
    assert data["shares"]["2"] > data["shares"]["1"] > 0
    assert len(data["kept"]["update"]) == 8
    assert data["kept"]["update"][-1] == pytest.approx(1)


def test_units_that_sleep_are_counted() -> None:
    model: Any = fresh(small_spec(8, 16, {"intermediate_size": 32, "activation": "relu", "bias": True}))
    with torch.no_grad():
        for block in model.layers:
            block.feed_forward.up_proj.bias[:8] = -100.0
    ids = held_out_bytes()[:64].view(4, 16)
    awake = units_awake(model, ids)
    assert awake.shape == (64,)
    assert not awake[:8].any()
    assert not awake[32:40].any()
    assert awake[8:32].any()


def test_watching_changes_nothing(toy_dir: Path) -> None:
    model = load_directory(toy_dir).eval()
    ids, watching = torch.randint(100, (1, 9)), Watching()
    with torch.inference_mode():
        torch.testing.assert_close(model(ids, context=watching), model(ids), atol=1e-5, rtol=1e-5)
    weights = torch.cat(watching.weights)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:3]))


def test_maps_are_of_whole_characters(toy_dir: Path) -> None:
    data = AttentionMaps(model=str(toy_dir), maps=1).data()
    first, second = data["sentences"]
    assert first["pieces"] == list(first["text"]), "pieces of a character are one row"
    assert "".join(second["pieces"]) == second["text"].replace(" ", "")
    for one in data["sentences"]:
        layer, head, weights = one["heads"][0]
        assert [sum(row) for row in weights] == pytest.approx([1.0] * len(weights), abs=1e-5)
        assert one["looks"][layer][head] == max(map(max, one["looks"]))
    layer, head, weights = first["heads"][0]
    it, noun = first["text"].index("它"), first["text"].index("动物")
    assert first["looks"][layer][head] == pytest.approx(sum(weights[it][noun : noun + 2]), abs=1e-6)


def test_experts_share_all_choices() -> None:
    data = Experts(steps=12, batch=2, window=16, width=8, coefficient=5.0).data()
    for run in data["runs"].values():
        assert sum(map(sum, run["loads"])) == pytest.approx(1)
        assert all(
            scores[max(chosen, key=lambda one: scores[one])] == max(scores)
            for scores, chosen in zip(run["scores"], run["chosen"], strict=True)
        ), "the best is always chosen"
    assert {kind_of(byte) for byte in b"a \n7"} == {"letters", "spaces", "lines", "signs"}


def test_blocks_belong_to_one_sequence_or_to_a_shared_prefix() -> None:
    data = Paging().data()
    shared = set()
    for frame in data["paged"]:
        owners: dict[int, list[str]] = {}
        for name, (table, computed) in frame["tables"].items():
            assert len(table) == -(-computed // 4)
            for block in table:
                owners.setdefault(block, []).append(name)
        shared |= {tuple(names) for names in owners.values() if len(names) > 1}
        assert frame["slots"] == 4 * len(owners)
        assert frame["tokens"] <= frame["slots"]
    assert shared == {("A", "B")}
    for frame in data["contiguous"]:
        assert frame["slots"] == 32 * len(frame["tables"]) <= 96
        assert frame["tokens"] == sum(computed for _, computed in frame["tables"].values())
    assert len(data["contiguous"]) > len(data["paged"])


def test_no_step_has_more_than_its_budget() -> None:
    data = Batching().data()
    begun: set[str] = set()
    for number, step in enumerate(data["steps"]):
        assert sum(count for count, _ in step["parts"].values()) <= 16
        begun |= step["parts"].keys()
        assert len(begun) <= number // 2 + 1
    assert len(begun) == 8


def test_each_generation_changed_something_in_both_languages() -> None:
    assert set(changed_in_chinese()) == {one.name for one in generations()}


def test_the_tree_says_what_the_specs_count() -> None:
    rows = {row["name"]: row for row in FamilyTree().data()}
    assert rows["gpt1"]["parameters"] == preset("gpt1").spec.num_parameters()
    assert rows["gpt1"]["depth"] == rows["transformer"]["depth"] + 1
    assert rows["mixtral"]["active"] < rows["mixtral"]["parameters"]


def boxes_of(name: str) -> list[str]:
    """What stands in the diagram of a preset, from the top down."""
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    canvas = decoder_diagram(spec, english)
    return [box.text for box in sorted(canvas.boxes, key=lambda box: box.top)]


def test_norms_stand_where_the_placement_says() -> None:
    def around(name: str) -> list[str]:
        words = [
            text
            for text in boxes_of(name)
            if text.split()[0] in ("LayerNorm", "RMSNorm", "MHA", "GQA", "GELU", "SwiGLU")
        ]
        return [text.split()[0] for text in words]

    assert around("gpt1") == ["MHA", "LayerNorm", "GELU", "LayerNorm"]
    assert around("llama3-8b") == ["RMSNorm", "GQA", "RMSNorm", "SwiGLU", "RMSNorm"]
    assert around("olmo2-7b") == ["MHA", "RMSNorm", "SwiGLU", "RMSNorm", "RMSNorm"]


def test_kinds_of_layers_are_drawn_once_with_their_number() -> None:
    assert "× 32" in boxes_of("llama3-8b")
    gemma = boxes_of("gemma3-4b")
    assert ("5 in turn, × 5" in gemma, "1 in turn, × 5" in gemma) == (True, True)
    assert sum(text.startswith("GQA") for text in gemma) == 2, "what is left of a cycle was drawn already"


def test_diagrams_in_chinese() -> None:
    spec = preset("gpt1").spec
    assert isinstance(spec, DecoderSpec)
    assert "词嵌入" in [box.text for box in decoder_diagram(spec, chinese).boxes]
