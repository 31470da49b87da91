"""BERT as a model of sentences, out of the parts that decoders are made of (Devlin et al. 2018, arXiv 1810.04805).

It is a post-norm stack in which every token sees the whole text, with one norm more, behind the embeddings. Texts lie
end to end, so that none is padded; a text's vector is the mean of its tokens' features, or the first one's (Reimers &
Gurevych 2019, arXiv 1908.10084).

Legend: N texts, M tokens of a batch of them end to end, E features.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from intaglio.checkpoints.sources import SafetensorsSource
from intaglio.errors import UserError
from intaglio.files import read_json
from intaglio.models.stack import Stack
from intaglio.parts.context import PackedWhole
from intaglio.parts.norm import build_norm
from intaglio.specs import BlockSpec, DecoderSpec, FeedForwardSpec, LayerNormSpec
from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.position import LearnedPositionsSpec

__all__ = ["BertEmbedder", "is_ours"]

_BUDGET: Final = 4096  # tokens of one forward: few enough for the caches, enough for full products
_TOGETHER: Final = (
    1024  # texts that are tokenised in one go: what the tokenizer tells of each takes a hundred times the text
)
_MODULES: Final = ("Transformer", "Pooling", "Normalize")
_LAYER: Final = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "attention.output.LayerNorm": "attention_norm.outside",
    "intermediate.dense": "feed_forward.up_proj",
    "output.dense": "feed_forward.down_proj",
    "output.LayerNorm": "feed_forward_norm.outside",
}


def is_ours(directory: Path) -> bool:
    """Whether a directory of sentence-transformers holds what this module computes: a plain BERT, pooled."""
    if not (directory / "modules.json").is_file():
        return False
    kinds = [module["type"].rpartition(".")[2] for module in read_json(directory / "modules.json")]
    pooling = read_json(directory / "1_Pooling" / "config.json") if kinds[1:2] == ["Pooling"] else {}
    modes = [mode for mode, chosen in pooling.items() if mode.startswith("pooling_mode") and chosen is True]
    return (
        tuple(kinds) in (_MODULES, _MODULES[:2])
        and modes in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"])
        and _is_plain(read_json(directory / "config.json"))
        and not any(_optional(directory / "config_sentence_transformers.json").get("prompts", {}).values())
    )


def _is_plain(config: dict[str, Any]) -> bool:
    absolute = config.get("position_embedding_type", "absolute") == "absolute"
    return config.get("model_type") == "bert" and config.get("hidden_act") == "gelu" and absolute


class BertEmbedder:
    """See `Embedder`.

    Args:
        directory: for which `is_ours`.
        name: what the index remembers it by.

    Raises:
        UserError: a file is missing or damaged, or the weights are other than the configuration says.
    """

    def __init__(self, directory: Path, name: str) -> None:
        config = read_json(directory / "config.json")
        self.name, self.dimension = name, int(config["hidden_size"])
        self._encoder = _read_encoder(directory, config)
        self._first = read_json(directory / "1_Pooling" / "config.json").get("pooling_mode_cls_token") is True
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        longest = _optional(directory / "sentence_bert_config.json").get("max_seq_length")
        self._tokenizer.enable_truncation(min(longest or config["max_position_embeddings"], _BUDGET))
        self._tokenizer.no_padding()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """See `Embedder`; a question is embedded as a passage is."""
        rows = [row for start in range(0, len(texts), _TOGETHER) for row in self._ids(texts[start : start + _TOGETHER])]
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for batch in _batches(rows):
            vectors[batch] = self._pooled([rows[i] for i in batch]).numpy()
        return vectors

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def _pooled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(N, E), each of length 1; in bf16 where that is fast: the cosine to fp32 stays above 0.9999."""
        lengths = [len(row) for row in rows]
        ids = torch.tensor([[token for row in rows for token in row]])  # (1, M)
        places = torch.cat([torch.arange(length) for length in lengths])[None]
        with torch.autocast("cpu", torch.bfloat16, enabled=_bf16_is_fast()):
            features = self._encoder.run(ids, places, PackedWhole(lengths))[0].float().split(lengths)
        return F.normalize(torch.stack([one[0] if self._first else one.mean(dim=0) for one in features]), dim=-1)


def _bf16_is_fast() -> bool:
    """Whether the processor multiplies bf16 itself."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Numbers of rows of about one length, so many as the budget takes."""
    batch: list[int] = []
    size = 0
    for i in sorted(range(len(rows)), key=lambda i: len(rows[i])):
        if batch and size + len(rows[i]) > _BUDGET:
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += len(rows[i])
    if batch:
        yield batch


class _Encoder(Stack):
    """A stack with a norm behind its embeddings."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__(spec, spec.blocks, spec.final_norm)
        self.embedding_norm = build_norm(spec.blocks[0].norm, spec.hidden_size)

    def _embed(self, ids: Tensor, places: Tensor) -> Tensor:
        x: Tensor = self.embedding_norm(super()._embed(ids, places))
        return x


def _spec(config: dict[str, Any]) -> DecoderSpec:
    block = BlockSpec(
        repeat=config["num_hidden_layers"],
        norm=LayerNormSpec(eps=config.get("layer_norm_eps", 1e-12)),
        placement="post",
        attention=AttentionSpec(
            num_heads=config["num_attention_heads"], bias=ProjectionBias(q=True, k=True, v=True, o=True)
        ),
        feed_forward=FeedForwardSpec(intermediate_size=config["intermediate_size"], activation="gelu", bias=True),
    )
    return DecoderSpec(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        max_position_embeddings=config["max_position_embeddings"],
        positions=LearnedPositionsSpec(),
        layers=(block,),
    )


def _read_encoder(directory: Path, config: dict[str, Any]) -> _Encoder:
    source, spec = SafetensorsSource(directory), _spec(config)
    prefix = "bert." if any(name.startswith("bert.") for name in source.shapes()) else ""

    def tensor(name: str) -> Tensor:
        if prefix + name not in source.shapes():
            raise UserError(f"tensor {prefix + name!r} is missing", where=str(directory), mend="fetch the model again")
        return source.tensor(prefix + name, torch.float32)

    kinds = tensor("embeddings.token_type_embeddings.weight")
    state = {
        "embed_tokens.weight": tensor("embeddings.word_embeddings.weight"),
        "positions.weight": tensor("embeddings.position_embeddings.weight") + kinds[0],  # every text is of one kind
        **{f"embedding_norm.{kind}": tensor(f"embeddings.LayerNorm.{kind}") for kind in ("weight", "bias")},
        **{
            f"layers.{layer}.{ours}.{kind}": tensor(f"encoder.layer.{layer}.{theirs}.{kind}")
            for layer in range(spec.num_layers)
            for theirs, ours in _LAYER.items()
            for kind in ("weight", "bias")
        },
    }
    encoder = _Encoder(spec)
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise UserError("the weights are other than its config.json says", where=str(directory)) from error
    return encoder.eval()


def _optional(path: Path) -> dict[str, Any]:
    """The JSON object in a file that need not be there."""
    value = read_json(path) if path.is_file() else {}
    return value if isinstance(value, dict) else {}
