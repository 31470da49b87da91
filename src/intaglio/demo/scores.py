"""The number of each stage, read from what came of it; and what is to be beaten where no demo ran before."""

from intaglio.demo.stage import Found

__all__ = [
    "answering_speed",
    "billion_tokens_a_day",
    "bits_per_byte",
    "byte_5gram",
    "first_piece",
    "held_out_loss",
    "largest_difference",
    "right_answers",
    "right_before",
    "seconds",
    "serving_speed",
    "told_apart",
    "told_apart_before",
]


def seconds(found: Found) -> float:
    """Of the whole stage."""
    return float(found["seconds"])


def answering_speed(found: Found) -> float:
    """Tokens a second of one answer alone."""
    return float(found["tokens_per_second"])


def bits_per_byte(found: Found) -> float:
    """Of held-out files, after the last step: nats of all tokens / (bytes of their text * ln 2)."""
    return float(found["bits_per_byte"])


def byte_5gram(found: Found) -> tuple[float, str]:
    """What counting bytes comes to on the same files."""
    return found["byte_5gram"], "a byte 5-gram"


def held_out_loss(found: Found) -> float:
    """Nats a target on held-out rows, after the last step."""
    return float(found["eval_loss"])


def told_apart(found: Found) -> float:
    """Share of held-out pairs whose chosen answer is the likelier one."""
    return float(found["after"]["accuracy"])


def told_apart_before(found: Found) -> tuple[float, str]:
    """The same share before the first step."""
    return found["before"]["accuracy"], "before it"


def largest_difference(found: Found) -> float:
    """Of any logit, between the model that was written and what it was made of."""
    return float(found["max_difference"])


def right_answers(found: Found) -> float:
    """Share of the exam."""
    return float(found["score"]["mean"])


def right_before(found: Found) -> tuple[float, str]:
    """The share before training: the gain is the difference of both on the same questions."""
    return found["score"]["mean"] - found["gain"]["difference"], "before training"


def first_piece(found: Found) -> float:
    """Seconds from the first question to the first piece of its answer."""
    return float(found["turns"][0]["first_token_s"])


def serving_speed(found: Found) -> float:
    """Tokens a second of all answers together."""
    return float(found["output_tokens_per_second"])


def billion_tokens_a_day(found: Found) -> float:
    """Of pretraining, by the plan."""
    return float(found["tokens_per_day"]) / 1e9
