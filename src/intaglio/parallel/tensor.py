"""Tensor parallelism: every matrix of a decoder cut over some ranks (Shoeybi et al. 2019), each kind of part its way.

    part               cut by what they make (columns)            cut by what they read (rows)   whole
    attention          queries, keys, values: whole heads         output                         norms of heads
    latent attention   what expands queries, keys, values         output                         latents, their norms
    feed-forward       gate, up                                   down
    mixture            gate and up of every expert                down of every expert           router
    adapter (LoRA)     B beside columns                           A beside rows                  the other matrix
    tables             embeddings and output matrix by the vocabulary

Norms, learned positions and the biases beside rows are whole on every rank. Between the parts lies a `Stream`; outside
the stack everything is as on one device: ids come in, hidden states (whole, with a whole gradient) and logits come out.
The output matrix alone is different for who takes it by hand, see `vocabulary.output_matrix`.

Legend: B batch, T tokens, E features, V vocabulary, H query heads, K key/value heads, I intermediate features.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel.collectives import apportion, cut, join, join_alike, share
from intaglio.parallel.pieces import Plan, kept, place_all, read_pieces
from intaglio.parallel.streams import Alike, AlongSequence, Stream
from intaglio.parallel.vocabulary import Gathered, SharedRows, Spread
from intaglio.parts.block import Block, Residual
from intaglio.parts.latent_attention import LatentAttention
from intaglio.parts.moe import MixtureOfExperts
from intaglio.planning.layouts import require_cut_adapter, require_possible
from intaglio.specs.parallel import ParallelSpec

__all__ = ["parallelize", "require_cuttable"]

_ATTENTION = Plan(("q_proj", "k_proj", "v_proj"), ("o_proj",))
_LATENT = Plan(("q_proj", "q_b_proj", "kv_b_proj"), ("o_proj",))
_FEED_FORWARD = Plan(("gate_proj", "up_proj"), ("down_proj",))
_TABLE = Plan(("weight",))
_WHOLE = Plan()


def parallelize(model: Decoder, mesh: DeviceMesh, spec: ParallelSpec) -> None:
    """Cuts a decoder in place over the ranks of tp; every rank has the same weights when it comes.

    Parameters become DTensors on `mesh["tp"]` and keep their names; adapters that are on the model are cut with it.

    Args:
        model: before FSDP2, before anything of it is compiled.
        mesh: with a dimension `tp`.
        spec: of which `tp`, `sequence_parallel` and `loss_parallel` count.

    Raises:
        UserError: the model cannot be cut into so many pieces; see `require_possible` and `require_cuttable`.
    """
    if spec.tp == 1:
        return
    require_possible(model.spec, spec)
    require_cuttable(model)
    tp = mesh["tp"]
    stream: Stream = AlongSequence(tp.get_group()) if spec.sequence_parallel else Alike(tp.get_group())
    _embeddings(model, tp, stream)
    for layer in model.layers:
        assert isinstance(layer, Block)
        _layer(layer, tp, stream)
    _norm(model.norm, tp, stream)
    model.norm.register_forward_hook(lambda _, args, out: stream.end(out))
    if hasattr(model.lm_head, "weight"):
        _head(model, tp, stream, spec.loss_parallel)


def require_cuttable(model: Decoder) -> None:
    """Refuses weights and adapters that only make sense whole.

    Raises:
        UserError: names the first.
    """
    for name, module in model.named_modules():
        if hasattr(module, "quantized"):
            raise UserError(
                "4-bit weights lie in blocks that tp would cut through",
                where="tp",
                mend="take dp with zero 3 for QLoRA",
            )
        dora = getattr(module, "lora_magnitude_vector", None) is not None
        if dora or hasattr(module, "adapters"):
            require_cut_adapter(name, dora=dora)


def _embeddings(model: Decoder, tp: DeviceMesh, stream: Stream) -> None:
    table, rows = model.embed_tokens, SharedRows(model.spec.vocab_size, stream)
    place_all(table, tp, _TABLE)
    read_pieces(table, stream.group, summed=False)
    table.register_forward_pre_hook(kept(rows.find))
    table.register_forward_hook(kept(rows.sum))
    if model.positions is not None:
        _norm(model.positions, tp, stream)
        model.positions.register_forward_hook(lambda _, args, out: stream.add(out))


def _head(model: Decoder, tp: DeviceMesh, stream: Stream, loss_parallel: bool) -> None:
    """The output matrix: the embedding's rows where they are tied."""
    head, size, group = model.lm_head, model.spec.vocab_size, stream.group
    if not model.spec.tie_embeddings:
        place_all(head, tp, _TABLE)
    model.tie_weights()
    vars(head)["vocabulary"] = (Spread if loss_parallel else Gathered)(size, group)
    read_pieces(head, group, summed=False)
    head.register_forward_pre_hook(lambda _, args: (share(args[0], group),))
    head.register_forward_hook(lambda _, args, out: join_alike(out, -1, size, group))


def _layer(block: Block, tp: DeviceMesh, stream: Stream) -> None:
    for residual in (block.attention_norm, block.feed_forward_norm):
        assert isinstance(residual, Residual)
        _norm(residual, tp, stream)
    _attention(block.attention, tp, stream)
    _region(block.feed_forward, stream)
    if isinstance(block.feed_forward, MixtureOfExperts):
        _mixture(block.feed_forward, tp, stream)
    else:
        _pieces(block.feed_forward, tp, stream, _FEED_FORWARD)


def _norm(part: nn.Module, tp: DeviceMesh, stream: Stream) -> None:
    """What works on the stream token by token, whole on every rank."""
    place_all(part, tp, _WHOLE)
    for inner in part.modules():
        if inner._parameters:
            read_pieces(inner, stream.group, summed=stream.cut)


def _region(part: nn.Module, stream: Stream) -> None:
    """A part that computes a summand: from the stream and back into it."""
    part.register_forward_pre_hook(lambda _, args: (stream.enter(args[0]), *args[1:]))
    part.register_forward_hook(lambda _, args, out: stream.leave(out))


def _pieces(part: nn.Module, tp: DeviceMesh, stream: Stream, plan: Plan) -> None:
    """The parameters of a part, or of a piece of one, that computes a summand."""
    place_all(part, tp, plan)
    read_pieces(part, stream.group, summed=True, plan=plan)


def _attention(part: Any, tp: DeviceMesh, stream: Stream) -> None:
    part.register_forward_pre_hook(_told(stream))
    _region(part, stream)
    latent = isinstance(part, LatentAttention)
    _pieces(part, tp, stream, _LATENT if latent else _ATTENTION)
    if latent:
        part.spec = part.spec.updated(num_heads=part.spec.num_heads // tp.size())
    elif part.q_norm is not None and not part.norm_heads:
        q_size, kv_size, _ = part.sizes
        _whole_projection(part.q_norm, q_size, stream)
        _whole_projection(part.k_norm, kv_size, stream)


def _told(stream: Stream) -> Callable[[nn.Module, Any], None]:
    """A recomputed layer may be of another forward than the last: its context knows how long that was."""

    def hook(part: nn.Module, args: Any) -> None:
        positions = getattr(args[2], "positions", None)
        stream.length = stream.length if positions is None else positions.shape[1]

    return hook


def _whole_projection(norm: nn.Module, size: int, stream: Stream) -> None:
    """A norm over all heads at once, of which each rank has some: (B, T, H*D)."""
    group = stream.group
    norm.register_forward_pre_hook(lambda _, args: (join(args[0], -1, size, group),))
    norm.register_forward_hook(lambda _, args, out: cut(out, -1, group))


def _mixture(part: MixtureOfExperts, tp: DeviceMesh, stream: Stream) -> None:
    """Every rank routes all tokens alike, and has a piece of every expert."""
    group = stream.group
    place_all(part.router, tp, _WHOLE)
    read_pieces(part.router, group, summed=False)
    part.router.register_forward_pre_hook(lambda _, args: (apportion(args[0], group),))
    part.router.register_forward_hook(_shared_weights(stream))
    for inner in (part.experts, part.shared):
        if inner is not None:
            _pieces(inner, tp, stream, _FEED_FORWARD)


def _shared_weights(stream: Stream) -> Callable[[nn.Module, Any, Any], tuple[Tensor, Tensor]]:
    def hook(router: nn.Module, args: Any, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        weights, chosen = out
        return share(weights, stream.group), chosen

    return hook
