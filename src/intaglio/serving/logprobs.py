"""Log-probabilities in the shapes of OpenAI's two endpoints, and vLLM's for prompts.

A token's own text is its bytes in UTF-8, with U+FFFD for what is half a character. In completions the tokens put
together are the whole text, so there a split character is told with the token that completes it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intaglio.engine.detokenizer import Detokenizer
from intaglio.serving.protocol.chat import ChatLogprobs, LikelyToken, TokenInfo
from intaglio.serving.protocol.completions import CompletionLogprobs
from intaglio.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from intaglio.engine.logprobs import TokenLogprob

__all__ = ["LogprobWriter", "chat_logprobs", "prompt_logprobs", "token_texts"]

_LOWEST = -9999.0  # JSON has no minus infinity
_CONTEXT = 16  # tokens of a prompt that are enough to know how its next token is spelled


def chat_logprobs(tokenizer: Tokenizer, told: "Sequence[TokenLogprob]") -> ChatLogprobs:
    """One entry a token, with its raw bytes."""
    return ChatLogprobs(content=[_info(tokenizer, one) for one in told])


def prompt_logprobs(
    tokenizer: Tokenizer, told: "Sequence[TokenLogprob | None]", top: int
) -> list[dict[str, Any] | None]:
    """For each token of a prompt the `top` likeliest and itself, by id, with rank and text; None for the first."""
    return [None if one is None else _by_id(tokenizer, one, top) for one in told]


def token_texts(tokenizer: Tokenizer, ids: Sequence[int], *, added_bos: bool = False) -> list[str]:
    """The text that each token of a prompt finishes; put together they are the prompt.

    Args:
        tokenizer: whose ids they are.
        ids: the prompt.
        added_bos: whether the first is a BOS that nobody wrote, which is no text.
    """
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    texts = [detokenizer.add([i]) for i in ids[added_bos:]]
    return [""] * added_bos + texts


class LogprobWriter:
    """Writes the log-probabilities of one choice of a completion as it grows.

    Args:
        tokenizer: whose ids they are.
        prompt_ids: what stands before.
        top: so many of the likeliest tokens are told.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], top: int) -> None:
        self._tokenizer, self._top, self._offset = tokenizer, top, 0
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        self._detokenizer.add(prompt_ids[-_CONTEXT:])

    def entries(
        self, texts: Sequence[str], told: "Sequence[TokenLogprob | None]", made: "Sequence[TokenLogprob]"
    ) -> CompletionLogprobs:
        """The next entries: those of an echoed prompt, whose tokens have these `texts`, then those of what was made."""
        tokens = [*texts, *(self._detokenizer.add([one.token_id]) for one in made)]
        everything = [*told, *made]
        return CompletionLogprobs(
            tokens=tokens,
            token_logprobs=[None if one is None else _finite(one.log_prob) for one in everything],
            top_logprobs=[None if one is None else self._likeliest(one) for one in everything],
            text_offset=[self._advance(token) for token in tokens],
        )

    def _advance(self, token: str) -> int:
        """Where the token begins."""
        begins, self._offset = self._offset, self._offset + len(token)
        return begins

    def _likeliest(self, one: "TokenLogprob") -> dict[str, float]:
        """By text; of two tokens with one text the likelier, so that the largest number is always there."""
        likeliest: dict[str, float] = {}
        for token_id, log_prob in [*one.top[: self._top], (one.token_id, one.log_prob)]:
            likeliest.setdefault(_text(self._tokenizer.token_bytes(token_id)), _finite(log_prob))
        return likeliest


def _info(tokenizer: Tokenizer, one: "TokenLogprob") -> TokenInfo:
    likeliest = [LikelyToken(**_token(tokenizer, *pair)) for pair in one.top]
    return TokenInfo(**_token(tokenizer, one.token_id, one.log_prob), top_logprobs=likeliest)


def _token(tokenizer: Tokenizer, token_id: int, log_prob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": _text(raw), "logprob": _finite(log_prob), "bytes": list(raw)}


def _by_id(tokenizer: Tokenizer, one: "TokenLogprob", top: int) -> dict[str, Any]:
    ranked = [(token_id, log_prob, rank) for rank, (token_id, log_prob) in enumerate(one.top[:top], 1)]
    return {
        str(token_id): {
            "logprob": _finite(log_prob),
            "rank": rank,
            "decoded_token": _text(tokenizer.token_bytes(token_id)),
        }
        for token_id, log_prob, rank in [*ranked, (one.token_id, one.log_prob, one.rank)]
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _finite(log_prob: float) -> float:
    return max(log_prob, _LOWEST)
