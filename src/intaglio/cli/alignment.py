"""The picture of an alignment: where a Seq2Seq with attention looked in the source for each token of its answer."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM
    from intaglio.text.tokenizer import Tokenizer

__all__ = ["draw_alignment", "require_alignment"]


def require_alignment(llm: "LLM") -> None:
    """Refuses a model that has no alignment to draw.

    Raises:
        UserError: it is no Seq2Seq, or one without attention.
    """
    from intaglio.models.seq2seq import Seq2Seq

    if not isinstance(llm.model, Seq2Seq) or llm.model.attention is None:
        what = "this model has no alignment to draw"
        raise UserError(what, where="--show-attention", mend="it is for a Seq2Seq with attention")


def draw_alignment(llm: "LLM", source: Sequence[int], target: Sequence[int], path: Path) -> None:
    """Draws the weights of every token of `target`, which the model made of `source`: a row each, as a PNG.

    Raises:
        UserError: see `draw_heat_map`.
    """
    import torch

    from intaglio.plots import draw_heat_map

    model = llm.model
    device = next(model.parameters()).device
    before = [model.spec.start_token_id, *target[:-1]]  # a row belongs to the token that follows
    with torch.inference_mode():
        memory = model.encode(torch.tensor([list(source)], device=device))
        weights = model.alignment(torch.tensor([before], device=device), memory)[0]  # (T, S)
    draw_heat_map(path, weights.float().tolist(), _names(llm.tokenizer, target), _names(llm.tokenizer, source))


def _names(tokenizer: "Tokenizer", ids: Iterable[int]) -> list[str]:
    """Each token's text; a special token, or half a character, as the vocabulary spells it."""
    texts = [(tokenizer.decode([token_id]), tokenizer.token(token_id)) for token_id in ids]
    return [text if text and "\ufffd" not in text else token or "" for text, token in texts]
