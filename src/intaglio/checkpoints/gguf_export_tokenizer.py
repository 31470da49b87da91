"""A tokenizer as GGUF's metadata: what `gguf_tokenizer` reads, written.

GGUF names ways of cutting text and has no room for others, and a SentencePiece vocabulary has scores in place of
merges. So what is written is read again (`check_tokenizer`): each token's text and what usually goes wrong must get the
ids that they had.
"""

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gguf import TokenType

from intaglio.checkpoints.gguf_config import STOPS
from intaglio.checkpoints.gguf_tokenizer import PRE_TOKENIZERS, SPACE, cutting_steps
from intaglio.errors import UserError
from intaglio.files import read_json
from intaglio.text.tokenizer import Tokenizer

__all__ = ["check_tokenizer", "tokenizer_metadata"]

_PREFIX: Final = "tokenizer.ggml."
_SAMPLES: Final = (
    "Hello, world!  Two spaces,\ttabs\n\n\nand   lines.\r\n",
    "It's 3.14159 or 1234567 or 10%, isn't it? I'LL SAY",
    "def f(x):\n    return x[1:] // 2  # done\n\n\n",
    "Grüße, naïve café, Ελλάδα, Привет, 你好，世界, 日本語です, नमस्ते, 👩‍👩‍👧 é\u0301 \u00a0x",
    " leading and trailing ",
)
_TEXT = 200  # tokens whose texts are tried together


def tokenizer_metadata(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """The keys and values of a GGUF file about its tokenizer; lists of strings, numbers or truths among them.

    Args:
        tokenizer: a BPE over bytes, or SentencePiece's with bytes to fall back to.
        rows: of the embeddings; tokens that nobody uses fill up to there.

    Raises:
        UserError: another kind of tokenizer, a way of cutting text that GGUF has no name for, or more tokens than rows.
    """
    state = _state(tokenizer)
    model = state["model"]
    if model.get("type") != "BPE":
        raise _no_room(f"a tokenizer of kind {model.get('type')}", "BPE over bytes or SentencePiece's can be written")
    if tokenizer.num_ids > rows:
        raise _no_room(f"{tokenizer.num_ids} token ids and {rows} embeddings", "the tokenizer is another model's")
    pieces = bool(model.get("byte_fallback"))
    body = _sentence_piece(tokenizer, state, rows) if pieces else _byte_level(tokenizer, state, rows)
    keys = {**body, **_special(tokenizer)}
    template = {} if tokenizer.chat_template is None else {"tokenizer.chat_template": tokenizer.chat_template}
    return {**{_PREFIX + key: value for key, value in keys.items()}, **template}


def check_tokenizer(tokenizer: Tokenizer, written: Tokenizer) -> None:
    """Holds what was written against what was meant.

    Raises:
        UserError: a text gets other ids.
    """
    for text in _texts(tokenizer):
        if tokenizer.encode(text) != written.encode(text):
            raise _no_room(f"a tokenizer that cuts {text[:40]!r} as this one does", "keep the model in its directory")
    stops = (sorted(tokenizer.eos_token_ids), sorted(written.eos_token_ids))
    if stops[0] != stops[1]:
        raise _no_room(f"the stop tokens {stops[0]}", f"it has room for {len(STOPS)}")


def _no_room(what: str, mend: str) -> UserError:
    return UserError(f"GGUF cannot say {what}", mend=mend)


def _state(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer's `tokenizer.json`."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        state: dict[str, Any] = read_json(Path(folder) / "tokenizer.json")
        return state


def _byte_level(tokenizer: Tokenizer, state: dict[str, Any], rows: int) -> dict[str, Any]:
    merges = state["model"]["merges"]
    return {
        "model": "gpt2",
        "pre": _pre_tokenizer(state),
        **_tokens(tokenizer, state, rows),
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
    }


def _pre_tokenizer(state: dict[str, Any]) -> str:
    """GGUF's name for how a text is cut."""
    normalizer, steps = state["normalizer"], _plain_steps(state["pre_tokenizer"])
    for name, cut in PRE_TOKENIZERS.items():
        wanted = {"type": cut.normalizer} if cut.normalizer else None
        if name != "default" and steps == _plain_steps(*cutting_steps(cut)) and normalizer == wanted:
            return name
    raise _no_room("how this tokenizer cuts text", f"it has names for {', '.join(PRE_TOKENIZERS)}")


def _plain_steps(*steps: Any) -> list[str]:
    """Steps one behind the other, without what changes offsets only."""
    plain = []
    for step in steps:
        if step and step["type"] == "Sequence":
            plain += _plain_steps(*step["pretokenizers"])
        elif step:
            kept = {key: value for key, value in step.items() if key != "trim_offsets"}
            plain.append(json.dumps(kept, sort_keys=True))
    return plain


def _sentence_piece(tokenizer: Tokenizer, state: dict[str, Any], rows: int) -> dict[str, Any]:
    """A token's score is minus the rank of the first merge that makes it; SentencePiece joins the highest first."""
    known = _tokens(tokenizer, state, rows)
    made = ("".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in state["model"]["merges"])
    ranks = {token: -float(rank) for rank, token in enumerate(dict.fromkeys(made))}
    unmade = -float(len(ranks))
    first = tokenizer.token(tokenizer.encode("a", add_special_tokens=False)[0]) or ""
    return {
        "model": "llama",
        "pre": "default",
        **known,
        "scores": [ranks.get(token, unmade) for token in known["tokens"]],
        "add_space_prefix": first.startswith(SPACE),
    }


def _tokens(tokenizer: Tokenizer, state: dict[str, Any], rows: int) -> dict[str, Any]:
    """Every id's token and type, those that nobody uses included."""
    names = {i: token for token, i in tokenizer.backend.get_vocab(with_added_tokens=True).items()}
    types = {
        token["id"]: TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        for token in state["added_tokens"]
    }
    if state["model"].get("byte_fallback"):
        types |= {i: TokenType.BYTE for i, token in names.items() if _is_byte(token)}
        types |= {i: TokenType.UNKNOWN for i, token in names.items() if token == tokenizer.unk_token}
    ordinary = dict.fromkeys(names, TokenType.NORMAL)
    all_types = {**dict.fromkeys(range(rows), TokenType.UNUSED), **ordinary, **types}
    return {
        "tokens": [names.get(i, f"[PAD{i}]") for i in range(rows)],
        "token_type": [int(all_types[i]) for i in range(rows)],
    }


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _special(tokenizer: Tokenizer) -> dict[str, Any]:
    """Named tokens by their ids; ends beyond the tokenizer's own are those of turns and messages."""
    more = sorted(tokenizer.eos_token_ids - {tokenizer.eos_token_id})
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = {
        "bos": tokenizer.bos_token_id,
        "unknown": tokenizer.unk_token_id,
        "padding": tokenizer.pad_token_id,
        **dict(zip(STOPS, [*own, *more], strict=False)),
    }
    around = tokenizer.encode("")
    return {
        **{f"{name}_token_id": i for name, i in ids.items() if i is not None},
        "add_bos_token": tokenizer.adds_bos,
        "add_eos_token": bool(around[1:] if tokenizer.adds_bos else around),
    }


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
    """What is tried: texts that cut in odd places, and every token's text, some hundred in a row."""
    special = "".join(f"{tokenizer.token(i)} a" for i in sorted(tokenizer.special_token_ids)[:50])
    yield from (*_SAMPLES, special)
    ids = iter(range(tokenizer.num_ids))
    while some := list(islice(ids, _TEXT)):
        yield tokenizer.decode(some)
