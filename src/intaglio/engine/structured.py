"""Text of a given shape: at each step the tokens after which the text can still become a JSON value of a schema, or a
match of an expression or a grammar.

What is possible is worked out by llguidance: an Earley parser over derivatives of regular expressions, walked along the
trie of all tokens.
"""

import json
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intaglio.engine.sampling_params import Structured
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Shape", "check"]

# without a bound a model that does not know how to go on would write spaces for ever
_SPACE = r" |\n[ \t]{0,64}"
_BEFORE = "\x02"  # joins no other character in a token


def check(structured: Structured) -> None:
    """Looks whether the shape makes sense; needs no tokenizer, so that a server can say so at once.

    Raises:
        UserError: a schema, an expression or a grammar that is malformed, or that nothing can satisfy; or llguidance is
            not installed.
    """
    fault = _library().LLMatcher.validate_grammar(_grammar(structured))
    if fault and not fault.startswith("WARNING"):
        raise _fault(structured, fault)


class Shape:
    """How far one sequence has come in its shape.

    Args:
        structured: the shape.
        tokenizer: whose ids are made.
        vocab_size: the model's.

    Raises:
        UserError: see `check`.
    """

    def __init__(self, structured: Structured, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._matcher = _fresh_matcher(structured, tokenizer, vocab_size).deep_copy()

    def allowed(self) -> NDArray[np.bool_]:
        """(vocab_size,): which tokens may come next. Once the text may end, the model's EOS are among them."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)

    def take(self, token_id: int) -> None:
        """Goes on with a token."""
        self._matcher.consume_token(token_id)

    @property
    def over(self) -> bool:
        """Whether nothing can follow: the text is whole, or the parser has met its limits and given up."""
        return bool(self._matcher.is_stopped())


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise UserError("structured output needs llguidance", mend="pip install 'intaglio[serve]'") from error
    return llguidance


def _grammar(structured: Structured) -> str:
    """As llguidance has it; it takes neither half of a surrogate pair nor integers beyond 64 bits."""
    try:
        return _written(structured)
    except ValueError as error:
        raise _fault(structured, str(error)) from error


def _written(structured: Structured) -> str:
    make, value = _library().LLMatcher, structured.value
    match structured.kind:
        case "regex":
            return make.grammar_from_regex(value)
        case "grammar":
            return make.grammar_from_lark(value)
        case "json_object":
            value = '{"type": "object"}'
    return make.grammar_from_json_schema(_schema(value), defaults={"whitespace_pattern": _SPACE})


def _schema(value: str) -> Any:
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", where="structured.json_schema") from error
    if not isinstance(schema, dict):
        raise UserError("a schema is a JSON object", where="structured.json_schema")
    return schema


@lru_cache(maxsize=64)
def _fresh_matcher(structured: Structured, tokenizer: Tokenizer, vocab_size: int) -> Any:
    """Before the first token; to be copied, not used. A schema is compiled once for all sequences that share it."""
    check(structured)
    matcher = _library().LLMatcher(_trie(tokenizer, vocab_size), _grammar(structured), log_level=0)
    matcher.compute_bitmask()  # where it begins, a shape may turn out to be empty or too large
    if matcher.is_error():
        fault = matcher.get_error()
        raise _fault(structured, "no text has this shape" if fault.startswith("NoExtension") else fault)
    return matcher


def _fault(structured: Structured, what: str) -> UserError:
    """What is told quotes the shape, which may be long."""
    told = what.partition("<state>")[0].splitlines()[:5]
    lines = [line if len(line) < 120 else f"{line[:120]}..." for line in told]
    return UserError(" ".join(lines), where=f"structured.{structured.kind}")


@lru_cache(maxsize=4)
def _trie(tokenizer: Tokenizer, vocab_size: int) -> Any:
    """All tokens as bytes; takes about a second for 50,000 of them."""
    return _library().LLTokenizer(_Vocabulary(tokenizer, vocab_size), eos_token=_ends(tokenizer, vocab_size))


def _ends(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The ids that end a text; where a model has none, one beyond its vocabulary."""
    return sorted(i for i in tokenizer.eos_token_ids if i < vocab_size) or [vocab_size]


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        ends = _ends(tokenizer, vocab_size)
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted({*tokenizer.special_token_ids, *ends})
        self.tokens = [tokenizer.token_bytes(i) for i in range(max(vocab_size, ends[-1] + 1))]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a piece from the middle of a text: without the space that some put in front of a whole one."""
        text = text.decode() if isinstance(text, bytes) else text
        if not self._tokenizer.spelling.space_piece:
            return self._tokenizer.encode(text, add_special_tokens=False)
        before = self._tokenizer.encode(_BEFORE, add_special_tokens=False)
        return self._tokenizer.encode(_BEFORE + text, add_special_tokens=False)[len(before) :]
