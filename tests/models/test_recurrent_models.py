"""Recurrent models, and what stands on them: language model, tagger, classifier."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.errors import UserError
from intaglio.models.bag_of_words import BagOfWords
from intaglio.models.build import build_model
from intaglio.models.decoder import Decoder
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.heads import PooledClassifier, Tagger
from intaglio.models.init import init_weights
from intaglio.models.recurrent import RecurrentEncoder, RecurrentModel
from intaglio.specs import CellSpec, LSTMCellSpec, RecurrentSpec, RNNCellSpec
from tiny_pairs import PAIRS
from tiny_specs import decoder
from torch_recurrent import CELLS

IDS = torch.tensor([[5, 2, 9, 9, 1], [7, 3, 0, 0, 0], [4, 0, 0, 0, 0]])
LENGTHS = torch.tensor([5, 2, 1])

every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def spec(cell: CellSpec | None = None, bidirectional: bool = False, **fields: Any) -> RecurrentSpec:
    sizes = {"vocab_size": 11, "embedding_size": 8, "hidden_size": 8, "num_layers": 2}
    return RecurrentSpec.model_validate(
        {**sizes, "cell": cell or LSTMCellSpec(), "bidirectional": bidirectional, **fields}
    )


def language_model(cell: CellSpec | None = None, **fields: Any) -> RecurrentModel:
    model = RecurrentModel(spec(cell, **fields))
    init_weights(model, 1)
    return model.double()


class TestLanguageModel:
    @every_cell
    def test_a_token_changes_no_logits_before_it(self, cell: CellSpec) -> None:
        model, other = language_model(cell), IDS.clone()
        other[:, 3] = 10
        a, b = model(IDS), model(other)
        assert torch.equal(a[:, :3], b[:, :3])
        assert not torch.equal(a[:, 3:], b[:, 3:])

    def test_a_text_in_two_parts_is_the_text(self) -> None:
        model = language_model()
        whole, _ = model.hidden_states(IDS)
        first, state = model.hidden_states(IDS[:, :2])
        second, _ = model.hidden_states(IDS[:, 2:], state)
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole)

    def test_it_learns_a_text_by_heart(self) -> None:
        model, ids = language_model(), IDS[:1]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(300):
            loss = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.05

    def test_tied(self) -> None:
        model = language_model(tie_embeddings=True)
        assert model.lm_head.weight is model.embed_tokens.weight
        assert model.embed_tokens.weight.abs().max() <= 0.1

    def test_it_cannot_look_ahead(self) -> None:
        with pytest.raises(UserError, match="bidirectional"):
            build_model(spec(bidirectional=True))


class TestWeights:
    def test_a_seed_gives_the_same_weights(self) -> None:
        for build in (lambda: RecurrentModel(spec()), lambda: Decoder(decoder())):
            states = []
            for seed in (1, 1, 2):
                model = build()
                init_weights(model, seed)
                states.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
            assert torch.equal(states[0], states[1])
            assert not torch.equal(states[0], states[2])

    def test_the_forget_gate_starts_open(self) -> None:
        bias = language_model().get_parameter("recurrent.layers.0.0.bias").unflatten(0, (4, -1))
        assert bias[1].eq(1).all()
        assert not bias[[0, 2, 3]].any()

    def test_every_spec_has_its_model(self) -> None:
        assert isinstance(build_model(decoder()), Decoder)
        assert isinstance(build_model(spec()), RecurrentModel)
        assert isinstance(build_model(next(iter(PAIRS.values()))), EncoderDecoder)


class TestTagger:
    def test_a_tag_may_hang_on_what_follows(self) -> None:
        other = IDS.clone()
        other[0, 4] = 8
        for both, changes in ((True, True), (False, False)):
            torch.manual_seed(0)
            tagger = Tagger(RecurrentEncoder(spec(bidirectional=both)), 3)
            a, b = tagger(IDS, LENGTHS), tagger(other, LENGTHS)
            assert a.shape == (3, 5, 3)
            assert torch.equal(a[0, 0], b[0, 0]) != changes

    def test_padding_makes_no_difference(self) -> None:
        torch.manual_seed(0)
        tagger = Tagger(RecurrentEncoder(spec(bidirectional=True)), 3)
        scores = tagger(IDS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = tagger(IDS[row : row + 1, :length])
            torch.testing.assert_close(scores[row : row + 1, :length], alone)


class TestSummaries:
    @pytest.mark.parametrize("name", ["bag", "one way", "both ways"])
    def test_padding_makes_no_difference(self, name: str) -> None:
        classifier = classifiers(11)[name]
        scores = classifier(IDS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(scores[row : row + 1], classifier(IDS[row : row + 1, :length]))

    @pytest.mark.parametrize("name", ["bag", "one way", "both ways"])
    def test_a_row_without_tokens_has_a_score(self, name: str) -> None:
        classifier = classifiers(11)[name]
        empty = classifier(IDS, torch.tensor([5, 0, 1]))[1]
        assert torch.equal(empty, classifier.score.bias)
        assert torch.equal(classifier(IDS[:1, :0])[0], classifier.score.bias)

    def test_both_ends_are_read(self) -> None:
        torch.manual_seed(0)
        encoder = RecurrentEncoder(spec(bidirectional=True))
        hidden, _ = encoder.hidden_states(IDS, lengths=LENGTHS)
        summary = encoder.summary(IDS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            assert torch.equal(summary[row], torch.cat([hidden[row, length - 1, :8], hidden[row, 0, 8:]]))

    def test_the_bag_is_the_mean_of_its_words(self) -> None:
        bag = BagOfWords(11, 8)
        expected = torch.stack([bag.embed_tokens(row[:n]).mean(dim=0) for row, n in zip(IDS, LENGTHS, strict=True)])
        torch.testing.assert_close(bag.summary(IDS, LENGTHS), expected)


def classifiers(vocab_size: int) -> dict[str, PooledClassifier]:
    """Of two classes, with random weights."""
    torch.manual_seed(0)
    one, both = (spec(RNNCellSpec(), both, vocab_size=vocab_size, hidden_size=16) for both in (False, True))
    return {
        "bag": PooledClassifier(BagOfWords(vocab_size, 16), 2),
        "one way": PooledClassifier(RecurrentEncoder(one), 2),
        "both ways": PooledClassifier(RecurrentEncoder(both), 2),
    }


class TestWordOrder:
    """我爱你 against 你爱我: the words are the same, and who loves whom is in their order alone."""

    PEOPLE = "我你他她它谁"
    VERBS = "爱见问帮等"

    def task(self) -> tuple[Tensor, Tensor]:
        """Every `A verb B` of two people; the class is whether A stands before B in `PEOPLE`."""
        words = self.PEOPLE + self.VERBS
        rows, classes = [], []
        for a in self.PEOPLE:
            for b in self.PEOPLE.replace(a, ""):
                for verb in self.VERBS:
                    rows.append([words.index(word) for word in a + verb + b])
                    classes.append(int(self.PEOPLE.index(a) < self.PEOPLE.index(b)))
        return torch.tensor(rows), torch.tensor(classes)

    def accuracy(self, name: str) -> float:
        """After training on half of the sentences; a sentence and its mirror are in the same half."""
        ids, classes = self.task()
        model = classifiers(len(self.PEOPLE + self.VERBS))[name]
        held_out = (ids[:, 0] + ids[:, 2] + ids[:, 1]) % 3 == 0
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(200):
            loss = F.cross_entropy(model(ids[~held_out]), classes[~held_out])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (model(ids[held_out]).argmax(dim=1) == classes[held_out]).float().mean().item()

    def test_a_bag_stays_at_chance_exactly(self) -> None:
        assert self.accuracy("bag") == 0.5

    def test_because_a_bag_scores_every_order_alike_to_the_last_bit(self) -> None:
        bag = classifiers(11)["bag"]
        torch.manual_seed(1)
        ids = torch.randint(11, (20, 30))
        shuffled = torch.stack([row[torch.randperm(30)] for row in ids])
        assert torch.equal(bag(ids), bag(shuffled))

    def test_a_recurrent_model_solves_it(self) -> None:
        assert self.accuracy("one way") == 1.0
