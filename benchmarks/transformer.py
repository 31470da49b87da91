"""The 2017 Transformer beside torch.nn.Transformer (forward and backward, fp32); cached decoding beside full review.

`equal`: rows of one length on both sides. `ragged`: lengths as sentences have them, in the order they come in; the peer
pads, ours lays real tokens end to end, and tokens a second count real ones. `parallel`: one masked forward and backward
over the targets beside one for each of their prefixes. `decode`: greedy, with the caches of target and source, beside
looking everything over again for each token. Dropout is 0 on both sides, or where `--dropout` says.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from _timing import in_turn, report
from torch import Tensor, nn

from intaglio import preset
from intaglio.engine.full_review import FullReview
from intaglio.engine.session import EncoderDecoderSession, Session
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.init import init_weights
from intaglio.parts.memory import lay_end_to_end
from intaglio.parts.position import SinusoidalPositions
from intaglio.specs import EncoderDecoderSpec, validate

_START = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=32, help="of equal rows, and of ragged ones in the mean")
    parser.add_argument("--tokens", type=int, default=256, help="decoded, for a batch of 8")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--tiny", action="store_true", help="a model that only shows that everything runs")
    parser.add_argument("--only", choices=("equal", "ragged", "parallel", "decode"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ours = EncoderDecoder(_spec(options.tiny, options.dropout))
    init_weights(ours, seed=0)
    peer = Peer(ours.spec)
    batch, length = options.batch, options.length
    benchmarks: dict[str, Callable[[], None]] = {
        "equal": lambda: train("equal", ours, peer, Pairs.of([length] * batch, ours.spec), options.rounds),
        "ragged": lambda: train("ragged", ours, peer, Pairs.of(_lengths(batch, length), ours.spec), options.rounds),
        "parallel": lambda: parallel(ours, Pairs.of([length] * batch, ours.spec), options.rounds),
        "decode": lambda: decode(ours, options.tokens, length, options.rounds),
    }
    for name, run in benchmarks.items():
        if options.only in (None, name):
            run()


def _spec(tiny: bool, dropout: float) -> EncoderDecoderSpec:
    plain = preset("transformer-base").spec.plain()
    if tiny:
        plain |= {"vocab_size": 99, "hidden_size": 64, "embedding_scale": 8.0}
        for side in ("encoder", "decoder"):
            layer = plain[side]["layers"][0]
            layer["attention"].pop("head_dim", None)
            layer |= {"repeat": 2, "feed_forward": {**layer["feed_forward"], "intermediate_size": 128}}
    spec: EncoderDecoderSpec = validate(EncoderDecoderSpec, {**plain, "dropout": dropout})
    return spec


def _lengths(count: int, mean: int) -> list[int]:
    """As sentences have them: log-normal, a few of them long."""
    drawn = torch.exp(torch.randn(count, generator=torch.Generator().manual_seed(1)) * 0.6)
    return (drawn / drawn.mean() * mean).round().clamp(min=3, max=4 * mean).int().tolist()


@dataclass(frozen=True)
class Pairs:
    """A batch, padded on the right; targets are as long as their sources."""

    source: Tensor
    target: Tensor
    labels: Tensor
    lengths: list[int]

    @classmethod
    def of(cls, lengths: Sequence[int], spec: EncoderDecoderSpec) -> "Pairs":
        shape = (len(lengths), max(lengths))
        source, labels = (torch.randint(3, spec.vocab_size, shape) for _ in range(2))
        padding = torch.arange(shape[1]) >= torch.tensor(lengths)[:, None]
        target = F.pad(labels[:, :-1], (1, 0), value=_START)
        return cls(source, target, labels.masked_fill(padding, -100), list(lengths))

    @property
    def tokens(self) -> int:
        """Real ones, of both sides."""
        return 2 * sum(self.lengths)


class Peer(nn.Module):
    """torch.nn.Transformer with the embeddings, the sinusoids and the tied output that it leaves to its user."""

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        block, size = spec.encoder.blocks[0], spec.hidden_size
        self.embedding = nn.Embedding(spec.vocab_size, size)
        nn.init.normal_(self.embedding.weight, std=0.02)
        waves = SinusoidalPositions(size, "interleaved")(torch.arange(spec.max_position_embeddings))
        self.register_buffer("waves", waves)
        self.dropout = nn.Dropout(spec.dropout)
        self.transformer = nn.Transformer(
            size,
            block.attention.num_heads,
            len(spec.encoder.blocks),
            len(spec.decoder.blocks),
            dim_feedforward=block.feed_forward.intermediate_size,  # type: ignore[union-attr]
            dropout=spec.dropout,
            batch_first=True,
        )

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None) -> Tensor:
        """Logits (B, T, V)."""
        size = target.shape[1]
        hidden = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=torch.ones(size, size, dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        embedded: Tensor = self.dropout(self.embedding(ids) * scale + self.get_buffer("waves")[: ids.shape[1]])
        return embedded


def train(name: str, ours: EncoderDecoder, peer: Peer, pairs: Pairs, rounds: int) -> None:
    """Forward, loss and backward of a batch."""
    ragged = len(set(pairs.lengths)) > 1
    padding = torch.arange(pairs.source.shape[1]) >= torch.tensor(pairs.lengths)[:, None] if ragged else None

    def theirs() -> None:
        logits = peer(pairs.source, pairs.target, padding)
        F.cross_entropy(logits.flatten(0, 1), pairs.labels.flatten()).backward()
        peer.zero_grad()

    def mine() -> None:
        _loss(ours, pairs).backward()
        ours.zero_grad()

    ours.train()
    peer.train()
    mine()
    theirs()
    seconds = in_turn(mine, theirs, rounds)
    rates = [round(pairs.tokens / one, 1) for one in seconds]
    padded = 1 - pairs.tokens / (2 * pairs.source.numel())
    figures = {"ours": rates[0], "peer": rates[1], "ratio": round(seconds[1] / seconds[0], 3)}
    report(f"transformer_{name}", unit="real tokens/s", padding=round(padded, 3), batch=len(pairs.lengths), **figures)


def _loss(model: EncoderDecoder, pairs: Pairs) -> Tensor:
    """Of real tokens alone, and the output matrix with them: the hidden states of padding are never made."""
    memory = model.encode(pairs.source, pairs.lengths)
    labels = lay_end_to_end(pairs.labels, pairs.lengths)[0]
    if memory.equal:
        hidden = model.hidden_states(pairs.target, memory).flatten(0, 1)
    else:
        hidden = model.hidden_packed(lay_end_to_end(pairs.target, pairs.lengths), memory, pairs.lengths)[0]
    return F.cross_entropy(model.logits(hidden), labels)


def parallel(model: EncoderDecoder, pairs: Pairs, rounds: int) -> None:
    """All prefixes of the targets at once, and one after the other."""

    def prefixes() -> None:
        for end in range(1, pairs.target.shape[1] + 1):
            memory = model.encode(pairs.source)
            last = model.hidden_states(pairs.target[:, :end], memory)[:, -1]
            F.cross_entropy(model.logits(last), pairs.labels[:, end - 1]).backward()
        model.zero_grad()

    def together() -> None:
        _loss(model, pairs).backward()
        model.zero_grad()

    model.train()
    together()
    mine, other = in_turn(together, prefixes, rounds)
    figures = {"ours": round(mine, 3), "peer": round(other, 3), "ratio": round(other / mine, 2)}
    report("transformer_parallel_training", unit="s", length=pairs.target.shape[1], **figures)


def decode(model: EncoderDecoder, tokens: int, length: int, rounds: int, batch: int = 8) -> None:
    """Greedy, from the first token to the last, the reading of the source included."""
    sources = torch.randint(3, model.spec.vocab_size, (batch, length)).tolist()

    @torch.inference_mode()
    def run(session: Session) -> list[list[int]]:
        logits = session.prefill(sources)
        made = [logits.argmax(dim=-1)]
        for _ in range(tokens - 1):
            made.append(session.step(made[-1]).argmax(dim=-1))
        return torch.stack(made, dim=1).tolist()

    model.eval()
    times = in_turn(
        lambda: run(EncoderDecoderSession(model, [tokens] * batch)),
        lambda: run(FullReview(model, [tokens] * batch)),
        rounds,
    )
    figures = {"ours": round(batch * tokens / times[0], 1), "peer": round(batch * tokens / times[1], 1)}
    report(
        "transformer_decode",
        unit="tokens/s",
        batch=batch,
        tokens=tokens,
        **figures,
        ratio=round(times[1] / times[0], 2),
    )


if __name__ == "__main__":
    main()
