"""How good retrieval and answers are; every figure has one definition, given here."""

from collections.abc import Collection, Sequence

from intaglio.retrieval.words import words

__all__ = ["first_rank", "support"]


def first_rank(found: Sequence[str], right: Collection[str]) -> int | None:
    """The place, from 1, of the first passage that stands in one of the right files; None where none does.

    Recall@k is the share of questions where this is k or less, MRR the mean of its inverse (none counts 0).
    """
    return next((rank for rank, file in enumerate(found, 1) if file in right), None)


def support(answer: str, texts: Sequence[str]) -> float:
    """Faithfulness by overlap: the share of the answer's words, the commonest left out, that stand in the texts.

    0 where nothing is said. What is right and not in the texts counts against it; what is in them and false does not.
    """
    said = words(answer)
    known = {word for text in texts for word in words(text)}
    return sum(word in known for word in said) / len(said) if said else 0.0
