"""The encoder-decoder: outputs and gradients are torch's, padding has no effect, training is parallel over prefixes."""

import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from intaglio.errors import UserError
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.parts.block import Block, CrossBlock
from intaglio.specs import EncoderDecoderSpec
from tiny_pairs import BIASES, LAYER, PAIRS, SOURCES, TARGETS, block, both, padded_rows, pairs_spec, random_pairs_model

CLOSE = 1e-5

every_pair = pytest.mark.parametrize("spec", PAIRS.values(), ids=PAIRS)


class TestTorchsOwn:
    """Weights copied from torch.nn.Transformer."""

    def given(self, norm_first: bool) -> tuple[nn.Transformer, EncoderDecoder]:
        placement = "pre" if norm_first else "post"
        stack = {"layers": [block(repeat=2, placement=placement)], "final_norm": LAYER}
        ours = random_pairs_model(pairs_spec(encoder=stack, decoder=stack))
        theirs = nn.Transformer(
            32, 4, 2, 2, dim_feedforward=48, dropout=0.0, batch_first=True, norm_first=norm_first
        ).train()
        for parameter in theirs.parameters():
            parameter.data = torch.randn_like(parameter) * 0.3
        copy_weights(theirs, ours)
        return theirs, ours

    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("ragged", [False, True])
    def test_outputs_and_gradients_are_torchs(self, norm_first: bool, ragged: bool) -> None:
        theirs, ours = self.given(norm_first)
        sources, targets = (SOURCES, TARGETS) if ragged else ([[3, 4, 5], [6, 7, 2]], [[1, 9], [1, 8]])
        (source, sizes), (target, lengths) = padded_rows(sources), padded_rows(targets)
        expected = theirs(
            embedded(ours.encoder.embed_tokens, source),
            embedded(ours.decoder.embed_tokens, target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=padding(source, sizes),
            tgt_key_padding_mask=padding(target, lengths),
            memory_key_padding_mask=padding(source, sizes),
            tgt_is_causal=True,
        )
        real = ~padding(target, lengths)
        found = ours.hidden_states(target, ours.encode(source, sizes), lengths)
        assert (found - expected)[real].abs().max() < CLOSE
        weights = torch.randn_like(expected)
        (expected * weights)[real].sum().backward()
        (found * weights)[real].sum().backward()
        for (name, mine), one in matched(theirs, ours):
            assert mine.grad is not None, name
            assert (mine.grad - one).abs().max() < CLOSE * max(1.0, one.abs().max().item()), name


def embedded(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Embeddings plus the paper's sinusoids, written out."""
    size = table.embedding_dim
    waves = torch.zeros(ids.shape[1], size)
    for place in range(ids.shape[1]):
        for i in range(size // 2):
            angle = place / 10000 ** (2 * i / size)
            waves[place, 2 * i], waves[place, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table.weight.detach()[ids] + waves


def padding(ids: Tensor, lengths: list[int]) -> Tensor:
    """(B, T), True where there is nothing."""
    return torch.arange(ids.shape[1]) >= torch.tensor(lengths)[:, None]


def names_of(theirs: nn.Transformer) -> dict[str, list[str]]:
    """Their tensor -> ours, in order; three where theirs holds queries, keys and values."""
    parts = {"self_attn": "attention", "multihead_attn": "cross_attention"}
    norms = {"encoder": ("attention", "feed_forward"), "decoder": ("attention", "cross_attention", "feed_forward")}
    table: dict[str, list[str]] = {}
    for name, _ in theirs.named_parameters():
        side, *rest, kind = name.split(".")
        if rest == ["norm"]:
            table[name] = [f"{side}.norm.{kind}"]
            continue
        layer, inner = f"{side}.layers.{rest[1]}", rest[2]
        if inner in parts and kind.startswith("in_proj_"):
            projections = [f"{layer}.{parts[inner]}.{p}_proj" for p in "qkv"]
            table[name] = [f"{one}.{kind.removeprefix('in_proj_')}" for one in projections]
        elif inner in parts:
            table[name] = [f"{layer}.{parts[inner]}.o_proj.{kind}"]
        elif inner.startswith("norm"):
            place = "before" if theirs.encoder.layers[0].norm_first else "outside"
            table[name] = [f"{layer}.{norms[side][int(inner[4:]) - 1]}_norm.{place}.{kind}"]
        else:
            up_or_down = {"linear1": "up_proj", "linear2": "down_proj"}[inner]
            table[name] = [f"{layer}.feed_forward.{up_or_down}.{kind}"]
    return table


def matched(theirs: nn.Transformer, ours: EncoderDecoder) -> list[tuple[tuple[str, nn.Parameter], Tensor]]:
    """Our parameters, each with the gradient theirs has."""
    mine, found = dict(ours.named_parameters()), []
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, names in names_of(theirs).items():
        gradient = gradients[name]
        assert gradient is not None
        found += [((one, mine[one]), part) for one, part in zip(names, gradient.chunk(len(names)), strict=True)]
    left = set(mine) - {name for (name, _), _ in found}
    assert left == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    return found


def copy_weights(theirs: nn.Transformer, ours: EncoderDecoder) -> None:
    mine = dict(ours.named_parameters())
    for name, names in names_of(theirs).items():
        for one, part in zip(names, dict(theirs.named_parameters())[name].chunk(len(names)), strict=True):
            mine[one].data = part.detach().clone()


@torch.no_grad()
def one_by_one(model: EncoderDecoder) -> list[Tensor]:
    """The logits (T, V) of each pair by itself."""
    return [model(torch.tensor([s]), torch.tensor([t]))[0] for s, t in zip(SOURCES, TARGETS, strict=True)]


@every_pair
@pytest.mark.parametrize(("pad", "extra"), [(0, 0), (2, 0), (63, 3)])  # 2 ends every source
def test_batch_equals_single_whatever_the_padding(spec: EncoderDecoderSpec, pad: int, extra: int) -> None:
    model = random_pairs_model(spec)
    (source, sizes), (target, lengths) = padded_rows(SOURCES, pad, extra), padded_rows(TARGETS, pad, extra)
    with torch.no_grad():
        logits = model(source, target, torch.tensor(sizes), lengths)
    assert logits.shape == (*target.shape, spec.vocab_size)
    for row, expected in enumerate(one_by_one(model)):
        torch.testing.assert_close(logits[row, : lengths[row]], expected, rtol=0, atol=CLOSE)


def test_rows_of_one_length_may_be_padded_too() -> None:
    model = random_pairs_model(PAIRS["2017"])
    source, target = torch.tensor([[5, 6, 7], [8, 9, 2]]), torch.tensor([[1, 5], [1, 6]])
    with torch.no_grad():
        expected = model(source, target)
        padded = model(F.pad(source, (0, 4)), F.pad(target, (0, 2)), [3, 3], [2, 2])
        ragged = model(source, F.pad(target, (0, 2)), None, [2, 2])
    assert padded.shape[1] == 4
    for found in (padded, ragged):
        torch.testing.assert_close(found[:, :2], expected, rtol=0, atol=CLOSE)


def test_a_row_of_nothing_but_padding_leaves_its_neighbours_alone() -> None:
    """Its own numbers are finite, the same whatever the padding is, and so are all gradients."""
    model = random_pairs_model(PAIRS["2017"])
    rows = [[9, 8, 2], [0, 0, 0]]
    target = torch.tensor([[1, 5], [1, 6]])
    logits = [model(torch.tensor(rows) + torch.tensor([[0], [fill]]), target, [3, 0]) for fill in (0, 7)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    torch.testing.assert_close(logits[0][:1], model(torch.tensor(rows[:1]), target[:1]), rtol=0, atol=CLOSE)
    logits[0].sum().backward()
    assert logits[0].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    nothing = model(torch.zeros(2, 3, dtype=torch.long), target, [0, 0], [2, 0])
    assert nothing.isfinite().all()


def test_parallel_training_is_the_sum_over_prefixes() -> None:
    """One masked forward over a target is one sample for every prefix of it: the same loss, the same gradients."""
    spec, target = PAIRS["2017"].updated(dropout=0.0), [1, 8, 3, 14, 2]
    parallel, separate = random_pairs_model(spec).train(), random_pairs_model(spec).train()
    source, sizes = padded_rows(SOURCES)
    inputs, labels = torch.tensor([target[:-1]] * 4), torch.tensor([target[1:]] * 4)
    F.cross_entropy(parallel(source, inputs, sizes).flatten(0, 1), labels.flatten(), reduction="sum").backward()
    total = 0.0
    for end in range(1, len(target)):
        last = separate(source, inputs[:, :end], sizes)[:, -1]  # (B, V)
        loss = F.cross_entropy(last, labels[:, end - 1], reduction="sum")
        total += loss.item()
        loss.backward()
    with torch.no_grad():
        whole = F.cross_entropy(parallel(source, inputs, sizes).flatten(0, 1), labels.flatten(), reduction="sum")
    assert whole.item() == pytest.approx(total, rel=1e-6)
    for (name, one), other in zip(parallel.named_parameters(), separate.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_a_target_never_sees_what_follows_and_a_source_sees_all() -> None:
    model = random_pairs_model(PAIRS["2017"])
    source, target = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad():
        before = model(source, target)
        later = model(source, torch.tensor([[1, 5, 6, 9]]))
        other = model(torch.tensor([[5, 6, 7, 9]]), target)
    torch.testing.assert_close(later[:, :3], before[:, :3], rtol=0, atol=1e-6)
    assert ((other - before).abs().amax(dim=(0, 2)) > 1e-3).all()


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """On what each sublayer adds and on embeddings plus positions: 2 + 3 a pair of layers, 2 at the bottoms."""
    spec = pairs_spec(dropout=0.25)
    model = EncoderDecoder(spec)
    dropped = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert len(dropped) == 2 + 3 * 2 + 2 * 3
    assert {module.p for module in dropped} == {0.25}
    for layer in model.modules():
        if isinstance(layer, Block):
            assert layer.attention_norm.dropout is not None
            assert layer.feed_forward_norm.dropout is not None
            assert not isinstance(layer, CrossBlock) or layer.cross_attention_norm.dropout is not None
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 5]])
    model.train()
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))
    assert not any(isinstance(module, nn.Dropout) for module in EncoderDecoder(pairs_spec()).modules())


def test_dropout_zeroes_the_branch_and_spares_the_residual() -> None:
    model = random_pairs_model(both(block(placement="pre"), dropout=0.5)).train()
    residual = cast(Block, model.encoder.layers[0]).attention_norm
    x = torch.randn(4, 50, 32)
    added = residual(x, lambda h: torch.ones_like(h)) - x
    assert set(added.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (added == 0).float().mean() < 0.6


def test_tied_matrices_are_one() -> None:
    model = random_pairs_model(PAIRS["2017"])
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight is model.lm_head.weight


@every_pair
def test_arithmetic_is_the_built_models(spec: EncoderDecoderSpec) -> None:
    with torch.device("meta"):
        model = EncoderDecoder(spec).to(torch.bfloat16)
    assert spec.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    if "experts" in str(spec.plain()):
        assert spec.num_active_parameters() < spec.num_parameters()
        return
    assert spec.num_active_parameters() == spec.num_parameters()
    ids = torch.zeros(1, 12, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, ids)
    assert spec.flops_per_token(12) * 12 == counter.get_total_flops()


def test_more_tokens_than_positions() -> None:
    model = random_pairs_model(PAIRS["2017"])
    long, short = torch.zeros(1, 41, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(UserError, match="a source of 41 tokens, where the model has 40 positions"):
        model.encode(long)
    with pytest.raises(UserError, match="a target of 41 tokens"):
        model.decode(long, model.encode(short))
    assert model.encode(long, [40]).lengths == (40,)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start_token_id": 64}, "start_token_id 64 is beyond the vocabulary of 64"),
        ({"encoder": {"layers": [block(attention={"num_heads": 4, "window": 3})]}}, "no window"),
        ({"decoder": {"layers": [block(placement="parallel")]}}, "parallel"),
        ({"hidden_size": 33}, "not even"),
        ({"dropout": 1.0}, "dropout"),
        ({"encoder": {"layers": [block()], "final": None}}, "unknown key 'encoder.final'"),
    ],
)
def test_what_a_spec_cannot_say(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        pairs_spec(**fields)


@every_pair
def test_plain_data_says_it_all(spec: EncoderDecoderSpec) -> None:
    from intaglio.specs import validate

    assert validate(EncoderDecoderSpec, spec.plain()) == spec


def test_a_final_norm_of_none_is_said() -> None:
    stack = {"layers": [block(placement="pre")], "final_norm": None}
    spec = pairs_spec(encoder=stack)
    assert spec.encoder.final_norm is None
    assert spec.decoder.final_norm is None  # post-norm ends in one
    assert EncoderDecoderSpec.model_validate(spec.plain()) == spec
    assert pairs_spec(encoder={"layers": [block(placement="pre")]}).encoder.final_norm is not None


def test_biases_are_where_the_spec_says() -> None:
    model = random_pairs_model(both(block(attention={"num_heads": 4, "bias": {**BIASES, "k": False}})))
    biases = {name for name, _ in model.decoder.layers[0].named_parameters() if "cross" in name and "bias" in name}
    assert "cross_attention.k_proj.bias" not in biases
    assert "cross_attention.v_proj.bias" in biases
