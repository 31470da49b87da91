"""Seq2Seq: at once equals step by step, padding without effect, and both fusions against loops written plainly."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.models.init import init_weights
from intaglio.models.seq2seq import Seq2Seq
from intaglio.parts.recurrent import Cell, Recurrent, State
from intaglio.parts.scoring import Additive
from intaglio.specs import GRUCellSpec, LSTMCellSpec, ScoringSpec, Seq2SeqSpec
from tiny_pairs import padded_rows
from tiny_seq2seq import SCORINGS, SOURCES, TARGETS, ZOO, random_seq2seq, seq2seq_spec

CLOSE = 1e-12

every_one = pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)


def pairs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources, their lengths, targets, their lengths; all ragged."""
    (source, ends), (target, lengths) = padded_rows(SOURCES), padded_rows(TARGETS)
    return source, torch.as_tensor(ends), target, torch.as_tensor(lengths)


def cells(recurrent: Recurrent) -> list[Cell]:
    """Layer by layer, the forward one before the backward one."""
    return [module for module in recurrent.modules() if isinstance(module, Cell)]


def stepped(model: Seq2Seq, source: Tensor, ends: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits (B, T, V) and weights (B, T, S) by `step` alone."""
    memory = model.encode(source, ends)
    state, logits, weights = memory.state, [], []
    for column in target.T:
        one, state, looked = model.step(column, state, memory)
        logits.append(one)
        weights.append(looked)
    found = None if weights[0] is None else torch.stack([w for w in weights if w is not None], dim=1)
    return torch.stack(logits, dim=1), found


def gradients(model: Seq2Seq, logits: Tensor, target: Tensor, lengths: Tensor) -> list[Tensor]:
    """By every parameter, of a random sum over real places."""
    real = torch.arange(target.shape[1]) < lengths[:, None]
    torch.manual_seed(2)
    total = (logits * torch.randn(logits.shape, dtype=logits.dtype))[real].sum()
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, model.parameters(), strict=True)]


@every_one
def test_at_once_is_step_by_step_in_values_and_gradients(spec: Seq2SeqSpec) -> None:
    model = random_seq2seq(spec)
    source, ends, target, lengths = pairs()
    at_once, by_step = model(source, target, ends, lengths), stepped(model, source, ends, target)[0]
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(at_once[row, :length], by_step[row, :length], rtol=0, atol=CLOSE)
    for mine, theirs in zip(
        gradients(model, at_once, target, lengths), gradients(model, by_step, target, lengths), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@every_one
def test_padding_makes_no_difference(spec: Seq2SeqSpec) -> None:
    model = random_seq2seq(spec)
    source, ends, target, lengths = pairs()
    logits = model(source, target, ends, lengths)
    other = source.masked_fill(torch.arange(source.shape[1]) >= ends[:, None], 12)
    assert torch.equal(model(other, target, ends, lengths), logits)
    longer = model(F.pad(other, (0, 3)), F.pad(target, (0, 2)), ends, lengths)[:, : target.shape[1]]
    torch.testing.assert_close(longer, logits, rtol=0, atol=CLOSE)
    for row, (one, written) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = model(torch.tensor([one]), torch.tensor([written]))[0]
        torch.testing.assert_close(logits[row, : len(written)], alone, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].attention])
def test_weights_are_of_real_places_alone(name: str) -> None:
    model = random_seq2seq(ZOO[name])
    source, ends, target, _ = pairs()
    weights = model.alignment(target, model.encode(source, ends))
    padded = (torch.arange(source.shape[1]) >= ends[:, None])[:, None].expand_as(weights)
    assert weights[padded].eq(0).all()
    assert weights[~padded].gt(0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(target.shape).double())
    by_step = stepped(model, source, ends, target)[1]
    assert by_step is not None
    torch.testing.assert_close(weights, by_step, rtol=0, atol=CLOSE)


class TestReferences:
    """Loops that read like the papers, one pair and one number of layers."""

    def given(self, **fields: Any) -> tuple[Seq2Seq, Tensor, Tensor]:
        model = random_seq2seq(seq2seq_spec(GRUCellSpec(), encoder_layers=1, decoder_layers=1, **fields))
        return model, torch.tensor([7, 3, 11, 5]), torch.tensor([1, 8, 3, 9])

    def annotations(self, model: Seq2Seq, source: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states in both directions side by side, and the decoder's first state."""
        (forward, backward), h = cells(model.encoder), torch.zeros(1, 8).double()
        rows: tuple[list[Tensor], list[Tensor]] = [], []
        for cell, ids, made in ((forward, source, rows[0]), (backward, source.flip(0), rows[1])):
            state: State = (h,)
            for token in ids:
                state = cell.step(model.embed_source(token)[None], state)
                made.append(state[0])
        ends = torch.cat([rows[0][-1], rows[1][-1]], dim=-1)
        states = torch.cat([torch.cat(rows[0]), torch.cat(rows[1][::-1])], dim=-1)  # (S, 2 H)
        bridge = model.bridges[0][0]  # type: ignore[index]
        return states, ends @ bridge.weight.T + bridge.bias

    def look(self, scoring: Additive, h: Tensor, states: Tensor) -> Tensor:
        energies = torch.tanh(h @ scoring.query.weight.T + states @ scoring.key.weight.T) @ scoring.vector.weight[0]
        weights = energies.exp() / energies.exp().sum()
        return (weights[:, None] * states).sum(dim=0, keepdim=True)

    def test_before(self) -> None:
        """Bahdanau's: the context of the state before enters the cell."""
        model, source, target = self.given(bidirectional=True, attention=SCORINGS["additive, before"])
        states, h = self.annotations(model, source)
        expected = []
        for token in target:
            context = self.look(model.attention.scoring, h, states)  # type: ignore[union-attr, arg-type]
            x = torch.cat([model.embed_target(token)[None], context], dim=-1)
            (h,) = cells(model.decoder)[0].step(x, (h,))
            expected.append(h @ model.lm_head.weight.T)
        torch.testing.assert_close(model(source[None], target[None])[0], torch.cat(expected), rtol=0, atol=CLOSE)

    def test_after(self) -> None:
        """The context of the current state stands beside it when the token is chosen."""
        model, source, target = self.given(bidirectional=True, attention=SCORINGS["additive, after"])
        states, h = self.annotations(model, source)
        expected = []
        for token in target:
            (h,) = cells(model.decoder)[0].step(model.embed_target(token)[None], (h,))
            context = self.look(model.attention.scoring, h, states)  # type: ignore[union-attr, arg-type]
            expected.append(torch.cat([h, context], dim=-1) @ model.lm_head.weight.T)
        torch.testing.assert_close(model(source[None], target[None])[0], torch.cat(expected), rtol=0, atol=CLOSE)

    def test_without_attention_the_state_is_all_there_is(self) -> None:
        model, source, target = self.given()
        (cell,), h = cells(model.encoder), torch.zeros(1, 8).double()
        for token in source:
            (h,) = cell.step(model.embed_source(token)[None], (h,))
        expected = []
        for token in target:
            (h,) = cells(model.decoder)[0].step(model.embed_target(token)[None], (h,))
            expected.append(h @ model.lm_head.weight.T)
        torch.testing.assert_close(model(source[None], target[None])[0], torch.cat(expected), rtol=0, atol=CLOSE)


class TestHandedOver:
    def handed(self, encoder_layers: int, decoder_layers: int) -> tuple[Tensor, Tensor]:
        """The encoder's last hidden states, and those that the decoder starts from."""
        model = random_seq2seq(
            seq2seq_spec(LSTMCellSpec(), encoder_layers=encoder_layers, decoder_layers=decoder_layers)
        )
        source = torch.tensor(SOURCES[:1])
        _, last = model.encoder(model.embed_source(source))
        return last[1], model.encode(source).state[1]

    def test_layers_are_counted_from_the_top(self) -> None:
        for sizes, taken in {(2, 2): [0, 1], (3, 1): [2], (3, 2): [1, 2], (1, 3): [0, 0, 0], (2, 3): [0, 0, 1]}.items():
            last, first = self.handed(*sizes)
            assert torch.equal(first, last[taken])


class TestScheduledSampling:
    @pytest.fixture(params=["lstm, no attention", "gru, reset before, additive, after", "tanh, dot, before"])
    def model(self, request: pytest.FixtureRequest) -> Seq2Seq:
        return random_seq2seq(ZOO[request.param], std=0.8)

    def greedy(self, model: Seq2Seq, source: Tensor, ends: Tensor, steps: int) -> Tensor:
        """What the model writes by itself behind the start token, (B, T)."""
        memory = model.encode(source, ends)
        state, made = memory.state, [torch.full((len(source),), 1)]
        for _ in range(steps - 1):
            logits, state, _ = model.step(made[-1], state, memory)
            made.append(logits.argmax(dim=-1))
        return torch.stack(made, dim=1)

    def test_0_is_teacher_forcing_exactly(self, model: Seq2Seq) -> None:
        source, ends, target, lengths = pairs()
        memory = model.encode(source, ends)
        assert torch.equal(model.decode(target, memory, lengths, sampling=0.0), model.decode(target, memory, lengths))

    def test_1_is_greedy(self, model: Seq2Seq) -> None:
        source, ends, target, _ = pairs()
        memory, own = model.encode(source, ends), self.greedy(model, source, ends, target.shape[1])
        assert not torch.equal(own, target)
        sampled = model.decode(target, memory, sampling=1.0)
        torch.testing.assert_close(sampled, model.decode(own, memory), rtol=0, atol=CLOSE)

    def test_a_seed_throws_the_same_coins(self, model: Seq2Seq) -> None:
        source, ends, target, _ = pairs()
        memory = model.encode(source, ends)
        runs = [
            model.decode(target, memory, sampling=0.5, generator=torch.Generator().manual_seed(seed))
            for seed in (1, 1, 2)
        ]
        assert torch.equal(runs[0], runs[1])
        assert not torch.equal(runs[0], runs[2])

    def test_each_token_but_the_first_is_replaced_as_often_as_asked(self) -> None:
        """The model's own token is always 12, the true one always 5."""
        model = random_seq2seq(seq2seq_spec(LSTMCellSpec()))
        seen: list[Tensor] = []
        model.embed_target.register_forward_hook(lambda _, args, out: seen.append(args[0]))
        model.logits = lambda features: F.one_hot(torch.full(features.shape[:-1], 12), 13)  # type: ignore[method-assign]
        memory = model.encode(torch.full((2000, 2), 3))
        model.decode(torch.full((2000, 9), 5), memory, sampling=0.3, generator=torch.Generator().manual_seed(4))
        read = torch.cat(seen, dim=1)
        assert read[:, 0].eq(5).all()
        assert read[:, 1:].eq(12).double().mean().item() == pytest.approx(0.3, abs=0.02)


class TestDropout:
    def test_it_falls_on_every_step_alike(self) -> None:
        """Rows of equal tokens differ in training, by either road, and not otherwise."""
        for fusion in ("after", "before"):
            spec = seq2seq_spec(LSTMCellSpec(), ScoringSpec.model_validate({"score": "general", "fusion": fusion}))
            model = random_seq2seq(spec.updated(dropout=0.5))
            source, target = torch.full((2, 4), 3), torch.full((2, 3), 1)
            a, b = model.eval()(source, target)
            torch.testing.assert_close(a, b, rtol=0, atol=CLOSE)
            a, b = model.train()(source, target)
            assert not torch.isclose(a, b).all(dim=-1).any()

    def test_between_layers_in_a_step_too(self) -> None:
        model = random_seq2seq(seq2seq_spec(LSTMCellSpec(), dropout=0.999)).train().decoder
        x = torch.ones(1, 6).double()
        _, state = model.step(x, model.initial(x))
        expected = cells(model)[1].step(torch.zeros(1, 8).double(), (x.new_zeros(1, 8), x.new_zeros(1, 8)))
        assert torch.equal(state[0][1], expected[0])


class TestEdges:
    @pytest.mark.parametrize("name", ["lstm, no attention", "lstm, additive, after", "lstm, dot, before", "both ways"])
    def test_a_source_without_tokens_is_a_context_of_zeros(self, name: str) -> None:
        model = random_seq2seq(ZOO[name])
        target = torch.tensor([TARGETS[0]] * 3)
        source = torch.tensor([[5, 6, 2], [7, 7, 7], [8, 2, 0]])
        logits = model(source, target, [3, 0, 2])
        assert logits.isfinite().all()
        nothing = model(torch.empty(1, 0, dtype=torch.long), target[:1])
        torch.testing.assert_close(logits[1:2], nothing, rtol=0, atol=CLOSE)
        if ZOO[name].attention:
            weights = model.alignment(target, model.encode(source, [3, 0, 2]))
            assert weights[1].eq(0).all()

    def test_all_sources_without_tokens_train(self) -> None:
        model = random_seq2seq(ZOO["both ways, lstm"])
        model(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[1, 2], [1, 3]]), [0, 0]).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    def test_a_batch_of_one_and_a_target_of_the_start_token_alone(self) -> None:
        model = random_seq2seq(ZOO["both ways, input feeding"])
        assert model(torch.tensor([[4]]), torch.tensor([[1]])).shape == (1, 1, 13)

    def test_taken_rows_go_on_as_what_they_became(self) -> None:
        model, rows = random_seq2seq(ZOO["both ways, lstm"]), torch.tensor([2, 0, 0, 3])
        source, ends, target, _ = pairs()
        taken = model.encode(source, ends).take(rows)
        again = model.encode(source[rows], ends[rows])
        torch.testing.assert_close(model.decode(target, taken), model.decode(target, again), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", ["both ways, lstm", "gru, reset after, additive, before", "tanh, no attention"])
def test_a_saved_one_comes_back(name: str, tmp_path: Path) -> None:
    model = random_seq2seq(ZOO[name]).float()
    save_model(model, tmp_path / "model")
    back = load_directory(tmp_path / "model", None, "cpu")
    assert isinstance(back, Seq2Seq)
    assert back.spec == model.spec
    source, ends, target, lengths = pairs()
    assert torch.equal(back.eval()(source, target, ends, lengths), model(source, target, ends, lengths))


class TestTraining:
    def test_a_seed_gives_the_same_weights(self) -> None:
        states = []
        for seed in (1, 1, 2):
            model = Seq2Seq(ZOO["both ways, lstm"])
            init_weights(model, seed)
            states.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        assert torch.equal(states[0], states[1])
        assert not torch.equal(states[0], states[2])
        assert cells(model.decoder)[0].bias.unflatten(0, (4, -1))[1].eq(1).all()

    @staticmethod
    @cache
    def turning(scoring: str) -> tuple[Seq2Seq, float]:
        """Trained to turn texts of four tokens around, and its last loss."""
        sizes = {"hidden_size": 24, "encoder_layers": 1, "decoder_layers": 1, "bidirectional": "dot" not in scoring}
        model = Seq2Seq(seq2seq_spec(GRUCellSpec(), SCORINGS[scoring], **sizes))
        init_weights(model, 3)
        generator = torch.Generator().manual_seed(5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(180):
            source = torch.randint(2, 13, (32, 4), generator=generator)
            target = torch.cat([torch.ones(32, 1, dtype=torch.long), source.flip(1)], dim=1)
            loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model, loss.item()

    @pytest.mark.parametrize("scoring", ["additive, after", "additive, before", "general, after", "dot, after"])
    def test_it_learns_to_turn_a_text_around(self, scoring: str) -> None:
        assert self.turning(scoring)[1] < 0.5  # chance is 2.4

    def test_and_then_looks_along_the_other_diagonal(self) -> None:
        model, _ = self.turning("general, after")
        source = torch.tensor([[3, 9, 5, 12], [4, 4, 11, 6]])
        weights = model.alignment(F.pad(source.flip(1)[:, :3], (1, 0), value=1), model.encode(source))
        assert weights.argmax(dim=-1).tolist() == [[3, 2, 1, 0]] * 2
