"""A plain loop in the manner of nanoGPT: the 10-million model in one page of torch, with autocast for bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Nano", "train_step"]


class Nano(nn.Module):
    """The architecture of `_loops.SMALL`: pre-norm, rotary, gated SiLU, tied embeddings. (B, T) ids -> (B, T, V)."""

    def __init__(
        self, vocab_size: int, layers: int, hidden_size: int, num_heads: int, intermediate_size: int, length: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.blocks = nn.ModuleList(_Block(hidden_size, num_heads, intermediate_size) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        width = hidden_size // num_heads
        turns = torch.outer(torch.arange(length), 10_000 ** (-torch.arange(0, width, 2) / width))  # (T, D/2)
        self.register_buffer("turns", torch.stack((turns.cos(), turns.sin())))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.head(self.norm(x))


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(size, eps=1e-5), nn.RMSNorm(size, eps=1e-5)
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, inner, bias=False), nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(_turned(q, turns), _turned(k, turns), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    cos, sin = turns.to(x.dtype)  # (T, D/2)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor, bf16: bool) -> None:
    """Forward, loss, backward, clip, AdamW."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
