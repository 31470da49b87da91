"""Marian's tokenizers, on two toy ones trained here: transformers' ids and texts, and what is refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from transformers import MarianTokenizer

from intaglio.checkpoints.models import load_tokenizer
from intaglio.checkpoints.save import save_model
from intaglio.engine.detokenizer import Detokenizer
from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.text.sentencepieces import PiecesTokenizer
from tiny_pairs import PAIRS, random_pairs_model
from toy_models import user_error

ENGLISH = """the cat sat on the mat and the dog sat on the log
a little owl looks at the moon over the quiet town
where is the library and when does it open
one two three four five six seven eight nine ten""".splitlines()
GERMAN = """die Katze saß auf der Matte und der Hund saß auf dem Klotz
eine kleine Eule schaut über der stillen Stadt zum Mond
wo ist die Bibliothek und wann öffnet sie
eins zwei drei vier fünf sechs sieben acht neun zehn""".splitlines()
TEXTS = [
    "the cat sat on the log",
    "Where is  the 猫?",
    "",
    " two ten",
    ">>de<< the dog",
    "über öffnet",
    "a  b\tc",
    "naïve ﬁsh ①",
]


def trained(lines: list[str], size: int) -> bytes:
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as Marian's are: two models, one list of pieces, which numbers them in an order of its own."""
    path = tmp_path_factory.mktemp("marian")
    models = {"source": trained(ENGLISH, 70), "target": trained(GERMAN, 70)}
    pieces = set[str]()
    for name, model in models.items():
        (path / f"{name}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(i) for i in range(processor.vocab_size())}
    order = ["</s>", "<unk>", *sorted(pieces - {"</s>", "<unk>", "<s>"}), ">>de<<", "<pad>"]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(order)}))
    (path / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    return path


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Iterator[MarianTokenizer]:
    with pytest.warns(UserWarning, match="sacremoses"):  # which it would not use for this either
        yield MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def ours(folder: Path) -> PiecesTokenizer:
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, PiecesTokenizer)
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_theirs(text: str, ours: PiecesTokenizer, theirs: MarianTokenizer) -> None:
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == ids[:-1]
    assert ids[-1] == ours.eos_token_id == theirs.eos_token_id
    assert ours.encode_target(text) == theirs(text_target=text)["input_ids"]
    assert ours.decode(ids).rstrip() == theirs.decode(ids, skip_special_tokens=True)  # a stream cannot know its end
    assert ours.encode_batch([text, text]) == [ids, ids]


def test_the_two_sides_cut_differently(ours: PiecesTokenizer) -> None:
    assert ours.encode("the cat") != ours.encode_target("the cat")
    assert ours.decode(ours.encode_target("die Katze")) == "die Katze"


def test_special_tokens_are_known(ours: PiecesTokenizer, theirs: MarianTokenizer) -> None:
    assert (ours.pad_token_id, ours.unk_token_id) == (theirs.pad_token_id, theirs.unk_token_id)
    assert ours.eos_token_ids == {0}
    assert ours.special_token_ids >= {0, 1, ours.pad_token_id}
    assert ours.vocab_size == len(theirs)


def test_offsets_are_characters(ours: PiecesTokenizer) -> None:
    text = "the 猫 sat"
    encoded = ours.encode_with_offsets(text)
    assert encoded.ids == ours.encode(text, add_special_tokens=False)
    assert "".join(text[begin:end] for begin, end in encoded.offsets) == text


def test_it_streams(ours: PiecesTokenizer) -> None:
    ids = ours.encode_target("der Hund öffnet zehn")
    stream = Detokenizer(ours)
    shown = [stream.add([token]) for token in ids]
    assert "".join(shown) + stream.flush() == "der Hund öffnet zehn"
    assert len([piece for piece in shown if piece]) > 3


def test_what_is_saved_is_read_again_here_and_there(ours: PiecesTokenizer, tmp_path: Path) -> None:
    ours.save(tmp_path)
    back = load_tokenizer(tmp_path)
    with pytest.warns(UserWarning, match="sacremoses"):
        there = MarianTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert back.encode(text) == ours.encode(text) == there(text)["input_ids"]


def test_a_directory_with_a_model_translates(ours: PiecesTokenizer, tmp_path: Path) -> None:
    """The whole way: text, source ids, target ids, text; greedy and by beams."""
    spec = PAIRS["2017"].updated(
        vocab_size=ours.vocab_size,
        start_token_id=ours.pad_token_id,
        logits_bias=True,
        positions={"kind": "sinusoidal", "layout": "halves"},
    )
    save_model(random_pairs_model(spec), tmp_path / "m", ours, {"num_beams": 3, "length_penalty": 0.5})
    llm = LLM(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text())["eos_token_id"] == 0
    for params in (
        SamplingParams(temperature=0, max_tokens=7),
        SamplingParams(temperature=0, max_tokens=7, num_beams=4),
    ):
        (one,) = llm.generate("the cat sat", params)
        assert one.prompt_tokens == len(ours.encode("the cat sat"))
        assert one.text == ours.decode(one.token_ids)
        assert len(one.log_probs) == len(one.token_ids) <= 7
    recommended = SamplingParams(temperature=0, num_beams=3, length_penalty=0.5, max_tokens=7)
    assert llm.recommended(max_tokens=7) == recommended
    assert llm.generate("the cat sat", recommended)[0].finish_reason in ("stop", "length")
    (nothing,) = llm.generate("", SamplingParams(temperature=0, max_tokens=3))  # an end token is a source too
    assert nothing.prompt_tokens == 1


def test_what_makes_no_sense(folder: Path, ours: PiecesTokenizer, tmp_path: Path) -> None:
    source, target = (folder / "source.spm").read_bytes(), (folder / "target.spm").read_bytes()
    with user_error("'</s>' is not in the vocabulary"):
        PiecesTokenizer(source, target, {"<unk>": 0})
    with user_error("source.spm: not a SentencePiece model"):
        PiecesTokenizer(b"nonsense", target, {"<unk>": 0, "</s>": 1})
    ours.save(tmp_path)
    (tmp_path / "target.spm").unlink()
    with user_error("target.spm: cannot be read"):
        load_tokenizer(tmp_path)
    ours.save(tmp_path)
    (tmp_path / "vocab.json").write_text("[]")
    with user_error("vocab.json"):
        load_tokenizer(tmp_path)
