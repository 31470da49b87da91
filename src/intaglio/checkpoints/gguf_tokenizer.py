"""A GGUF file's tokenizer as Hugging Face's `tokenizer.json`.

GGUF knows two kinds by `tokenizer.ggml.model`: `gpt2`, byte-level BPE with its merges, and `llama`, a SentencePiece
vocabulary with scores and no merges. Both become the `tokenizers` library's BPE.
"""

from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

from intaglio.checkpoints.gguf_container import Container
from intaglio.errors import UserError, nearest

__all__ = ["PRE_TOKENIZERS", "SPACE", "build_tokenizer_files", "cutting_steps"]

CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6  # token types; 1 is an ordinary token, 2 the unknown one
SPACE: Final = "▁"

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPLIT_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
OPENING: Final = r"[^\r\n\p{L}\p{N}]?"


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging.

    Attributes:
        split: a regular expression whose matches are the pieces; None for GPT-2's own.
        digits: whether every digit stands alone, cut off before the rest.
        normalizer: the Unicode form the text is brought to, if any.
        whole_first: whether a piece that is itself a token is taken whole, without merging.
        begins: whether a text begins with the beginning-of-text token when the file does not say.
    """

    split: str | None = None
    digits: bool = False
    normalizer: str | None = None
    whole_first: bool = False
    begins: bool = False


GPT2: Final = PreTokenizer()
DIGITS_APART: Final = PreTokenizer(digits=True)
LLAMA3: Final = PreTokenizer(split=f"{CONTRACTIONS}|{WORD}|\\p{{N}}{{1,3}}{SPLIT_TAIL}", whole_first=True, begins=True)
QWEN2: Final = PreTokenizer(split=f"{CONTRACTIONS}|{WORD}|\\p{{N}}{SPLIT_TAIL}", normalizer="NFC")
TEKKEN: Final = PreTokenizer(
    split=f"{OPENING}{UPPER}*{LOWER}+|{OPENING}{UPPER}+{LOWER}*|\\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    whole_first=True,
    begins=True,
)
PRE_TOKENIZERS: Final = {
    "default": GPT2,
    "gpt-2": GPT2,
    "smollm": DIGITS_APART,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
}


@dataclass(frozen=True)
class Vocabulary:
    """The file's tokens: token i is `tokens[i]`, of type `types[i]`."""

    container: Container
    tokens: list[str]
    types: list[int]

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata under `tokenizer.ggml.`."""
        return self.container.metadata.get(f"tokenizer.ggml.{key}", default)

    def error(self, what: str, mend: str = "") -> UserError:
        """An error in this file."""
        return UserError(what, where=str(self.container.path), mend=mend)

    def token(self, name: str) -> str | None:
        """The text of the special token `name` (bos, eos, unknown, padding), if the file has one."""
        index = self.get(f"{name}_token_id")
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise self.error(f"'tokenizer.ggml.{name}_token_id' is {index!r}, not a token of the vocabulary")
        return self.tokens[index]


def build_tokenizer_files(container: Container) -> dict[str, Any]:
    """`tokenizer.json` and `tokenizer_config.json` as dicts, and `chat_template.jinja` as text if there is one.

    Raises:
        UserError: a tokenizer or a way of cutting text that is not known, or metadata missing.
    """
    vocabulary = _read_vocabulary(container)
    kind = vocabulary.get("model")
    if kind == "gpt2":
        name = str(vocabulary.get("pre", "default"))
        if name not in PRE_TOKENIZERS:
            raise vocabulary.error(f"pre-tokenizer {name!r} is not known", nearest(name, PRE_TOKENIZERS))
        body, begins = _byte_level(vocabulary, PRE_TOKENIZERS[name]), PRE_TOKENIZERS[name].begins
    elif kind == "llama":
        body, begins = _sentence_piece(vocabulary), True
    else:
        raise vocabulary.error(f"tokenizer kind {kind!r} is not known", "known: gpt2, llama")
    adds = {"bos": bool(vocabulary.get("add_bos_token", begins)), "eos": bool(vocabulary.get("add_eos_token", False))}
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": _added_tokens(vocabulary)}
    files = {
        "tokenizer.json": head | body | {"post_processor": _post_processor(vocabulary, adds)},
        "tokenizer_config.json": _tokenizer_config(vocabulary, adds),
        "chat_template.jinja": container.metadata.get("tokenizer.chat_template"),
    }
    return {name: content for name, content in files.items() if content is not None}


def _read_vocabulary(container: Container) -> Vocabulary:
    tokens = _array(container, "tokens", str)
    plain = [1] * len(tokens)
    has_types = "tokenizer.ggml.token_type" in container.metadata
    return Vocabulary(container, tokens, _array(container, "token_type", int, len(tokens)) if has_types else plain)


def _array(container: Container, key: str, kind: type[Any], length: int | None = None) -> list[Any]:
    """The list under `tokenizer.ggml.`, checked; a GGUF list holds values of one type."""
    value = container.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not isinstance(next(iter(value), None), kind):
        what = f"the metadata key 'tokenizer.ggml.{key}' is missing or of the wrong type"
        raise UserError(what, where=str(container.path))
    if length is not None and len(value) != length:
        what = f"'tokenizer.ggml.{key}' has {len(value)} entries for {length} tokens"
        raise UserError(what, where=str(container.path))
    return value


def _byte_level(vocabulary: Vocabulary, cut: PreTokenizer) -> dict[str, Any]:
    ids = _ids(vocabulary, vocabulary.tokens)
    pairs = [merge.split(" ", 1) for merge in _array(vocabulary.container, "merges", str)]
    for pair in pairs:
        if not (len(pair) == 2 and pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids):
            raise vocabulary.error(f"the merge {' '.join(pair)!r} is not of two tokens into one")
    return {
        "normalizer": {"type": cut.normalizer} if cut.normalizer else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cutting_steps(cut)},
        "decoder": _byte_step(use_regex=True),
        "model": _bpe(ids, pairs, ignore_merges=cut.whole_first),
    }


def cutting_steps(cut: PreTokenizer) -> list[dict[str, Any]]:
    """How text is cut, as the steps of a `tokenizer.json`."""
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if cut.digits else []
    if cut.split:
        split = {"type": "Split", "pattern": {"Regex": cut.split}, "behavior": "Isolated", "invert": False}
        steps.append(split)
    return [*steps, _byte_step(use_regex=cut.split is None)]


def _byte_step(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sentence_piece(vocabulary: Vocabulary) -> dict[str, Any]:
    """SentencePiece's BPE joins, again and again, the neighbours whose union scores highest: a rank for each way to
    cut a token in two gives the same joins (Kudo & Richardson, arXiv:1808.06226, section 3.1)."""
    scores = _array(vocabulary.container, "scores", float, len(vocabulary.tokens))
    tokens = list(starmap(_spelling, zip(vocabulary.tokens, vocabulary.types, strict=True)))
    ids = _ids(vocabulary, tokens)
    prefix = bool(vocabulary.get("add_space_prefix", True))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    undo = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    merges = _merges_from_scores(tokens, vocabulary.types, scores, ids)
    options = {"unk_token": vocabulary.token("unknown"), "fuse_unk": True, "byte_fallback": BYTE in vocabulary.types}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": undo + strip},
        "model": _bpe(ids, merges, **options),
    }


def _spelling(token: str, kind: int) -> str:
    """GGUF writes a user-defined run of spaces with real spaces; inside the model a space is always `▁`."""
    return SPACE * len(token) if kind == USER_DEFINED and not token.strip(" ") else token


def _merges_from_scores(
    tokens: list[str], types: list[int], scores: list[float], ids: dict[str, int]
) -> list[list[str]]:
    """Every way to cut a token into two tokens, best token first: user-defined ones, then by score; of one token's
    cuts, the one with the longest left part."""
    reachable = [i for i, kind in enumerate(types) if kind not in (CONTROL, UNUSED, BYTE) and len(tokens[i]) > 1]
    reachable.sort(key=lambda i: (types[i] != USER_DEFINED, -scores[i]))
    merges = []
    for i in reachable:
        token = tokens[i]
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in ids and token[cut:] in ids:
                merges.append([token[:cut], token[cut:]])
    return merges


def _ids(vocabulary: Vocabulary, tokens: list[str]) -> dict[str, int]:
    """Token to id; unused tokens only pad the embedding and are left out."""
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, vocabulary.types, strict=True)) if kind != UNUSED}
    if len(ids) != sum(kind != UNUSED for kind in vocabulary.types):
        raise vocabulary.error("'tokenizer.ggml.tokens' holds the same token twice")
    return ids


def _bpe(ids: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    defaults = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", "dropout": None, **defaults, **options, "vocab": ids, "merges": merges}


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens found in the text before anything is cut or merged: control ones (special) and user-defined ones."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spaces_are_merged = vocabulary.get("model") == "llama"
    return [
        {"id": i, "content": token, **plain, "special": kind == CONTROL}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == CONTROL or (kind == USER_DEFINED and (token.strip(" ") or not spaces_are_merged))
    ]


def _post_processor(vocabulary: Vocabulary, adds: dict[str, bool]) -> dict[str, Any] | None:
    """The begin and end tokens that encoding adds; None when it adds none."""
    names = {end: vocabulary.token(end) for end, wanted in adds.items() if wanted}
    missing = [end for end, token in names.items() if token is None]
    if missing:
        raise vocabulary.error(
            f"the tokenizer adds {missing[0]!r}, but 'tokenizer.ggml.{missing[0]}_token_id' is missing"
        )
    if not names:
        return None

    def around(part: str, segment: int) -> list[dict[str, Any]]:
        ends = {end: [{"SpecialToken": {"id": token, "type_id": segment}}] for end, token in names.items()}
        return [*ends.get("bos", []), {"Sequence": {"id": part, "type_id": segment}}, *ends.get("eos", [])]

    special = {
        token: {"id": token, "ids": [vocabulary.get(f"{end}_token_id")], "tokens": [token]}
        for end, token in names.items()
    }
    single, pair = around("A", 0), around("A", 0) + around("B", 1)
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def _tokenizer_config(vocabulary: Vocabulary, adds: dict[str, bool]) -> dict[str, Any]:
    special = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {f"{ours}_token": vocabulary.token(theirs) for ours, theirs in special.items()}
    architecture = vocabulary.container.metadata.get("general.architecture")
    length = vocabulary.container.metadata.get(f"{architecture}.context_length")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        **{f"add_{end}_token": wanted for end, wanted in adds.items()},
    }
    return {key: value for key, value in (settings | named).items() if value is not None}
