"""A `config.json` while it is read: every key is asked for, and what nobody asked for is an error."""

import math
from typing import Any, TypeVar

from intaglio.errors import UserError, nearest

__all__ = ["CannotExpress", "Config", "as_kind"]

_MISSING = object()

# Keys that say nothing about what the model computes: bookkeeping, training and generation.
_SILENT = frozenset(
    """_attn_implementation _attn_implementation_autoset _flash_attn_2_enabled _name_or_path add_bos_token
    add_eos_token architectures attention_dropout attention_probs_dropout_prob attn_pdrop auto_map aux_loss_alpha
    bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout dtype embd_pdrop embed_dropout
    eos_token_id ep_size finetuning_task gradient_checkpointing hidden_dropout id2label initializer_range is_decoder
    is_encoder_decoder is_llama_config keys_to_ignore_at_inference label2id max_length model_type n_ctx n_special
    num_labels num_nextn_predict_layers output_attentions output_hidden_states output_past output_router_logits
    pad_token_id predict_special_tokens pretraining_tp problem_type resid_dropout resid_pdrop return_dict
    router_jitter_noise seq_aux summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj task_specific_params tokenizer_class torch_dtype torchscript transformers.js_config
    transformers_version unk_token_id unsloth_fixed unsloth_version use_cache use_return_dict""".split()
)


class CannotExpress(Exception):
    """A family has no words for a spec."""


T = TypeVar("T")


def as_kind(value: Any, kind: type[T]) -> T:
    """`value`, which a family can only express if it is of `kind`."""
    if not isinstance(value, kind):
        raise CannotExpress(f"{type(value).__name__} is not {kind.__name__}")
    return value


class Config:
    """The keys of a `config.json`.

    Args:
        data: the parsed JSON.
        where: the file, for messages.
    """

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self._data, self.where = data, where
        self._used: set[str] = set()

    def raw(self, key: str, default: Any = _MISSING) -> Any:
        """The value of `key`; `null` is as good as absent.

        Raises:
            UserError: absent, and there is no default.
        """
        self._used.add(key)
        value = self._data.get(key)
        if value is None:
            if default is _MISSING:
                raise UserError(f"missing key {key!r}", where=self.where)
            return default
        return value

    def integer(self, key: str, default: Any = _MISSING) -> Any:
        """A whole number, or the default (which may be None)."""
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: Any = _MISSING) -> Any:
        """A number, or the default (which may be None)."""
        return self._typed(key, default, (int, float), "a number")

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value: bool = self._typed(key, default, bool, "true or false")
        return value

    def positive(self, key: str, default: Any = _MISSING) -> Any:
        """A number above zero."""
        value = self.number(key, default)
        if value is not default and value <= 0:
            raise UserError(f"{key!r} must be above zero, not {value!r}", where=self.where)
        return value

    def layers(self, key: str = "num_hidden_layers") -> int:
        """The number of layers, which is written out one by one and so must be a sane one."""
        value: int = self.integer(key)
        if not 0 < value <= 10_000:
            raise UserError(f"{key!r} must be between 1 and 10000, not {value!r}", where=self.where)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """A JSON object; an empty one where there is none."""
        value: dict[str, Any] = self._typed(key, {}, dict, "a JSON object")
        return value

    def sequence(self, key: str, default: Any = _MISSING) -> list[Any]:
        """A JSON list."""
        value: list[Any] = self._typed(key, default, list, "a list")
        return value

    def _typed(self, key: str, default: Any, kind: Any, name: str) -> Any:
        value = self.raw(key, default)
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        wrong = wrong or (isinstance(value, float) and not math.isfinite(value))
        if value is not default and wrong:
            raise UserError(f"{key!r} must be {name}, not {value!r}", where=self.where)
        return value

    def expect(self, key: str, *allowed: Any, default: Any = None) -> None:
        """A key that we read only to be sure that its value is one we compute.

        Raises:
            UserError: any other value; names key and value.
        """
        value = self.raw(key, default)
        if value is not None and value not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise UserError(f"unsupported value {key} = {value!r}", where=self.where, mend=f"supported: {wanted}")

    def choice(self, key: str, table: dict[str, Any], default: str | None = None) -> Any:
        """The entry of `table` that the value names.

        Raises:
            UserError: the value is not in the table; names it and the nearest that is.
        """
        name = self.raw(key) if default is None else self.raw(key, default)
        if not isinstance(name, str) or name not in table:
            raise UserError(f"unsupported value {key} = {name!r}", where=self.where, mend=nearest(str(name), table))
        return table[name]

    def finish(self) -> None:
        """Every key has been read.

        Raises:
            UserError: one was not, so this reader does not know what it does to the model.
        """
        given = {key for key, value in self._data.items() if value is not None}
        unread = sorted(given - self._used - _SILENT)
        if unread:
            mend = "it may change what the model computes, and this family's reader does not know how"
            raise UserError(f"unknown key {unread[0]!r}", where=self.where, mend=mend)
