"""Text to token ids and back, over the `tokenizers` library, from and to a Hugging Face directory.

`tokenizer.json` alone decides which ids a text has: where it is present, transformers 5 ignores `add_bos_token` and
`add_eos_token` of `tokenizer_config.json` (its post-processor says what is added), and so do we.
"""

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from intaglio.errors import UserError
from intaglio.files import read_json, read_text, whole_file, write_json
from intaglio.text.pieces import Spelling

__all__ = ["Encoded", "Tokenizer", "add_border_tokens", "read_eos_ids", "read_mapping", "read_signs"]

# the names transformers gives a special token, in the order in which it adds missing ones to the vocabulary
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class Encoded:
    """Ids of a text, and for each the characters it came from.

    Attributes:
        ids: token ids.
        offsets: `(start, end)` in characters of the text, spaces included; the pieces of one character share it.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A tokenizer with its special tokens and chat templates.

    Args:
        backend: the `tokenizers` object; taken over, not copied.
        config: the contents of a `tokenizer_config.json`; keys not known here are kept for `save`.
        chat_templates: Jinja source, or sources by name, of which `default` is the main one.
        eos_token_ids: further ids that end a text, besides the tokenizer's own `eos_token`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        *,
        chat_templates: str | Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self._config = dict(config or {})
        padding = backend.padding or {}
        if "pad_token" in padding:
            self._config.setdefault("pad_token", padding["pad_token"])
        backend.no_padding()
        backend.no_truncation()
        _add_missing_tokens(backend, self._config)
        self._saved_post_processor = backend.post_processor
        _count_spaces_in_offsets(backend)
        self.chat_templates = _templates_by_name(chat_templates)
        self.special_tokens: dict[str, str] = _named_tokens(self._config)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        own = [] if self.eos_token_id is None else [self.eos_token_id]
        self.eos_token_ids: frozenset[int] = frozenset([*own, *eos_token_ids])
        self.spelling = Spelling.of(backend)

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """Reads the tokenizer of a Hugging Face directory, as transformers' AutoTokenizer would.

        Raises:
            UserError: there is no `tokenizer.json`, or a file cannot be read or makes no sense.
        """
        folder = Path(path)
        backend, config, eos_ids = _read_backend(folder), _read_config(folder), read_eos_ids(folder)
        try:
            templates = _read_templates(folder, config.pop("chat_template", None))
            return cls(backend, config, chat_templates=templates, eos_token_ids=eos_ids)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"malformed: {error!r}", where=str(folder / "tokenizer_config.json")) from error

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json`, `tokenizer_config.json` and the chat templates into the directory `path`.

        Ids in `eos_token_ids` beyond the tokenizer's own belong to `generation_config.json`, which is not written here.
        transformers gives equal ids, with one exception of its own: beside a `config.json` of model type `qwen2` it
        reads every tokenizer as a byte-level one that splits words as Qwen2 does.
        """
        folder = Path(path)
        with whole_file(folder / "tokenizer.json") as beside:
            self._write_backend(beside)
        # the class named before may need code that is not ours to ship; the plain one reads tokenizer.json as it is
        kept = {key: value for key, value in self._config.items() if key not in ("chat_template", "auto_map")}
        kept |= self.special_tokens | {"tokenizer_class": "PreTrainedTokenizerFast"}
        write_json(folder / "tokenizer_config.json", kept)
        for name, source in self.chat_templates.items():
            file = "chat_template.jinja" if name == "default" else f"{_MORE_TEMPLATES}/{name}.jinja"
            with whole_file(folder / file) as beside:
                beside.write_bytes(source.encode())

    def with_template(self, source: str, special: Sequence[str] = (), ends: Sequence[str] = ()) -> "Tokenizer":
        """A copy that writes chats by another template, in place of all that this one has.

        Args:
            source: Jinja.
            special: tokens that are special from now on; those that are new get ids behind the last.
            ends: tokens that end a text besides those that do so here.

        Raises:
            UserError: the ids have gaps, so that a new token would get another's.
        """
        backend, ids = self._extended(special)
        stops = self.eos_token_ids | {ids[token] for token in ends}
        return Tokenizer(backend, self._config, chat_templates=source, eos_token_ids=stops)

    def with_special(self, special: Sequence[str]) -> "Tokenizer":
        """A copy with tokens that are special from now on; those that are new get ids behind the last.

        Raises:
            UserError: see `with_template`.
        """
        backend, _ = self._extended(special)
        return Tokenizer(
            backend, self._config, chat_templates=dict(self.chat_templates), eos_token_ids=self.eos_token_ids
        )

    def _extended(self, special: Sequence[str]) -> tuple[tokenizers.Tokenizer, dict[str, int]]:
        """A copy of what is underneath with more special tokens, and all ids."""
        known: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        if self._saved_post_processor is not None:
            backend.post_processor = self._saved_post_processor
        backend.add_special_tokens([_added_token(token) for token in special])
        ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        new = {token: ids[token] for token in special if token not in known}
        if clash := set(new.values()) & set(known.values()):
            what = f"there is no room for new tokens: the ids have gaps, and id {min(clash)} is taken"
            raise UserError(what, mend=f"take a template that needs none of {', '.join(new)}")
        return backend, ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; special tokens written in the text become their ids.

        Args:
            text: any text.
            add_special_tokens: whether to add what the tokenizer adds around a text (a BOS, say).
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """The ids of each text, as `encode` gives them, unpadded; faster than one at a time."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> Encoded:
        """The ids of `text`, nothing added, with the characters each token came from."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, encoding.offsets)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. An id the tokenizer does not know (a padded vocabulary's) is no text at all."""
        known = [i for i in ids if i >= 0]
        text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes one token stands for; none for an id the tokenizer does not know."""
        token = self.token(token_id)
        return b"" if token is None else self.spelling.to_bytes(token)

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None for an id the tokenizer does not know."""
        token: str | None = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None if it has none."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's vocabulary may be padded beyond it."""
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size

    @property
    def num_ids(self) -> int:
        """One more than the largest id: the rows a model needs. More than `vocab_size` where ids have gaps."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values())

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object underneath."""
        return self._backend

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` puts a BOS in front."""
        return self.bos_token_id is not None and self.encode("")[:1] == [self.bos_token_id]

    @property
    def chat_template(self) -> str | None:
        """The main chat template's Jinja source."""
        return self.chat_templates.get("default")

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        return self.special_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The token that fills a batch up."""
        return self.special_tokens.get("pad_token")

    @property
    def unk_token(self) -> str | None:
        """The token for what has none."""
        return self.special_tokens.get("unk_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`; `eos_token_ids` has all that end a text."""
        return self._named_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of `pad_token`."""
        return self._named_id("pad_token")

    @property
    def unk_token_id(self) -> int | None:
        """The id of `unk_token`."""
        return self._named_id("unk_token")

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _write_backend(self, file: Path) -> None:
        exact = self._backend.post_processor
        self._backend.post_processor = self._saved_post_processor
        try:
            self._backend.save(str(file))
        except Exception as error:  # the library raises bare Exceptions for a full disk
            raise OSError(0, str(error)) from error
        finally:
            self._backend.post_processor = exact


def add_border_tokens(backend: tokenizers.Tokenizer, *, bos: str | None = None, eos: str | None = None) -> None:
    """Makes `backend` put `bos` before each text and `eos` after it (either may be None).

    For tokenizers that come with flags instead of a post-processor, as GGUF files do.

    Raises:
        UserError: a token is not in the vocabulary.
    """
    ids = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    for token, token_id in ids.items():
        if token_id is None:
            raise UserError(f"the token to add around a text, {token!r}, is not in the vocabulary")
    before, after = ([] if bos is None else [bos]), ([] if eos is None else [eos])
    second = [f"{token}:1" for token in (*before, "$B", *after)]
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=list(ids.items()),
    )


def read_signs(folder: Path) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    """What a directory says of its chats, without its vocabulary, which takes long to read.

    Returns:
        the chat templates by name, the named special tokens, and the tokens that end a text.

    Raises:
        UserError: a file is not what it should be.
    """
    config = _read_config(folder)
    named, added = _named_tokens(config), _read_added_tokens(folder)
    ends = {named.get("eos_token"), *(added.get(i) for i in read_eos_ids(folder))}
    templates = _read_templates(folder, config.get("chat_template"))
    return templates, named, frozenset(filter(None, ends))


def _read_added_tokens(folder: Path) -> dict[int, str]:
    """Id and token of what `tokenizer.json` lists before its vocabulary."""
    file = folder / "tokenizer.json"
    text = read_text(file) if file.is_file() else ""
    start = re.search(r'"added_tokens"\s*:\s*(?=\[)', text)
    try:
        listed = json.JSONDecoder().raw_decode(text, start.end())[0] if start else []
        return {token["id"]: token["content"] for token in listed}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"malformed added_tokens: {error!r}", where=str(file)) from error


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(
            "there is no tokenizer.json",
            where=str(folder),
            mend="copy it from where the model came from, or train one with `intaglio tokenizer train FOLDER`",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"not a tokenizer the tokenizers library reads: {error}", where=str(file)) from error


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_mapping(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= read_mapping(folder / "special_tokens_map.json")
    return config


def read_mapping(file: Path) -> dict[str, Any]:
    """The JSON object in a file, an empty one where there is no file.

    Raises:
        UserError: not JSON, or not an object.
    """
    value = read_json(file) if file.is_file() else {}
    if not isinstance(value, dict):
        raise UserError("a JSON object is expected", where=str(file))
    return value


def _read_templates(folder: Path, in_config: Any) -> dict[str, str]:
    """Files come before `chat_template` in tokenizer_config.json, which is a source or a list of named ones."""
    files = {file.stem: file for file in sorted((folder / _MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: read_text(file) for name, file in files.items()}
    if isinstance(in_config, list):
        return {str(entry["name"]): str(entry["template"]) for entry in in_config}
    return _templates_by_name(in_config)


def read_eos_ids(folder: Path) -> list[int]:
    """`eos_token_id` of generation_config.json and config.json: an id, a list of ids, or null."""
    ids: list[int] = []
    for file in (folder / "generation_config.json", folder / "config.json"):
        value = read_mapping(file).get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) for i in found):
            raise UserError(f"eos_token_id is {value!r}, not an id or a list of ids", where=str(file))
        ids += found
    return ids


def _templates_by_name(templates: str | Mapping[str, str] | None) -> dict[str, str]:
    if templates is None:
        return {}
    return {"default": templates} if isinstance(templates, str) else dict(templates)


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens; a model's own (`image_token`, say) come after those that transformers names."""
    own = (name for name in config if name.endswith("_token"))
    contents = {name: _content(config.get(name)) for name in dict.fromkeys([*_NAMES, *own])}
    return {name: content for name, content in contents.items() if content is not None}


def _content(value: Any) -> str | None:
    """A special token is written as a string or as an object with a `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Adds what the config calls a token and the vocabulary lacks, in the order in which transformers does."""
    decoder = config.get("added_tokens_decoder") or {}
    listed = [decoder[key] for key in sorted(decoder, key=int)]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([_added_token(entry) for entry in listed if _content(entry) not in known])
    backend.add_special_tokens([_added_token(value) for value in _special_values(config)])


def _special_values(config: Mapping[str, Any]) -> list[Any]:
    """Named special tokens, then further ones, as strings or objects."""
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    more = list(more.values()) if isinstance(more, Mapping) else more
    values = [*(config[name] for name in _named_tokens(config)), *more]
    return [value for value in values if _content(value) is not None]


def _added_token(value: Any) -> tokenizers.AddedToken:
    if isinstance(value, str):
        return tokenizers.AddedToken(value, normalized=False, special=True)
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(value["content"], **{key: value[key] for key in fields if key in value})


def _count_spaces_in_offsets(backend: tokenizers.Tokenizer) -> None:
    """Byte-level post-processors may cut spaces off the offsets; a mask by positions needs them whole."""
    post_processor = backend.post_processor
    if post_processor is None:
        return
    state = post_processor.__getstate__()
    whole = state.replace(b'"trim_offsets":true', b'"trim_offsets":false')
    if whole != state:
        other = copy.deepcopy(post_processor)
        other.__setstate__(whole)
        backend.post_processor = other
