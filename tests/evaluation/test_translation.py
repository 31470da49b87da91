"""BLEU and chrF: sacrebleu's numbers, with intervals that hold them."""

import pytest

from intaglio.evaluation.translation import sentence_scores, translation_gain, translation_scores

SAID = ["the cat sat on a mat today", "hello there you", "no way out of here at all", "x"]
MEANT = ["the cat sat on the mat today", "hello there", "there is no way out of here", "y"]


def test_they_are_sacrebleus() -> None:
    import sacrebleu

    found = translation_scores(SAID, MEANT)
    assert found["bleu"].mean == pytest.approx(sacrebleu.corpus_bleu(SAID, [MEANT]).score)
    assert found["chrf"].mean == pytest.approx(sacrebleu.corpus_chrf(SAID, [MEANT]).score)
    for mean, low, high in found.values():
        assert low < mean < high


def test_the_same_rows_give_the_same_interval() -> None:
    assert translation_scores(SAID, MEANT) == translation_scores(SAID, MEANT)


def test_right_and_wrong_are_far_apart() -> None:
    assert translation_scores([MEANT[0], MEANT[2]], [MEANT[0], MEANT[2]])["bleu"].low == pytest.approx(100)
    assert translation_scores(["a b c d"] * 2, ["e f g h"] * 2)["chrf"].high == 0


def test_chinese_is_counted_by_characters() -> None:
    said, meant = ["插入一个框架到文档"], ["插入一个框架到页面"]
    assert translation_scores(said, meant, "zh")["bleu"].mean > 50
    assert translation_scores(said, meant, "13a")["bleu"].mean < 10


def test_a_gain_is_the_difference_of_the_scores_and_paired() -> None:
    worse = ["a b c d", *SAID[1:]]
    scores, before = translation_scores(SAID, MEANT), translation_scores(worse, MEANT)
    gain = translation_gain([SAID], [worse], MEANT)
    for name in ("bleu", "chrf"):
        assert gain[name].mean == pytest.approx(scores[name].mean - before[name].mean)
    assert translation_gain([SAID, SAID], [SAID, SAID], MEANT)["chrf"] == (0, 0, 0)


def test_several_references_are_sacrebleus_too() -> None:
    import sacrebleu

    several = [[MEANT[0], "a cat sat on a mat"], [MEANT[1]], [MEANT[2]], ["y", "x"]]
    streams = [[row[i] if i < len(row) else None for row in several] for i in (0, 1)]
    found = translation_scores(SAID, several)
    assert found["bleu"].mean == pytest.approx(sacrebleu.corpus_bleu(SAID, streams).score)  # type: ignore[arg-type]
    assert found["chrf"].mean == pytest.approx(sacrebleu.corpus_chrf(SAID, streams).score)  # type: ignore[arg-type]
    assert found["bleu"].mean > translation_scores(SAID, MEANT)["bleu"].mean


def test_sentences_alone() -> None:
    import sacrebleu

    found = sentence_scores(SAID[0], [MEANT[0], "no"])
    assert found["bleu"] == pytest.approx(sacrebleu.sentence_bleu(SAID[0], [MEANT[0], "no"]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.sentence_chrf(SAID[0], [MEANT[0], "no"]).score)
    assert sentence_scores("Paris", ["Paris"])["bleu"] == pytest.approx(100)
