"""Llama 3: a decoder with grouped-query attention, rotary positions, RMS norm and SwiGLU.

Grattafiori et al., "The Llama 3 Herd of Models" (2024), https://arxiv.org/abs/2407.21783
"real" is the 8B model, "llama70b" the 70B one.

Batch: tokens (batch, seq), targets (batch, seq). Loss: cross entropy of the next token.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import language_batch
from .layers import RMSNorm, check_heads, dropout, init_small, split_heads
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    layers: int = 4
    width: int = 128
    heads: int = 8
    kv_heads: int = 2  # heads of keys and values, each shared by heads / kv_heads queries
    hidden: int = 352  # of the feed-forward layers
    vocab: int = 512
    seq: int = 256
    batch: int = 2
    rope_base: float = 500_000.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self.heads, self.width)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")
        if self.width // self.heads % 2:
            raise ValueError(f"the width of a head, {self.width // self.heads}, must be even to be rotated")


def rotation(seq: int, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine (seq, width / 2) of the angles by which RoPE turns a head of that width."""
    frequency = base ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(seq)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + width/2]) of a head: (batch, heads, seq, width) -> the same."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, heads: int, kv_heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dropout = heads, kv_heads, dropout
        kv_width = width // heads * kv_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_width, bias=False)
        self.value = nn.Linear(width, kv_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(split_heads(self.query(x), self.heads), cos, sin)
        k = rotate(split_heads(self.key(x), self.kv_heads), cos, sin)
        v = split_heads(self.value(x), self.kv_heads)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True, enable_gqa=True)
        return dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class SwiGLU(nn.Module):
    """Gated feed-forward layer: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return dropout(self.down(F.silu(self.gate(x)) * self.up(x)), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config.width, config.heads, config.kv_heads, config.dropout)
        self.norm2 = RMSNorm(config.width)
        self.feed_forward = SwiGLU(config.width, config.hidden, config.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        cos, sin = rotation(config.seq, config.width // config.heads, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(init_small)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)  # (batch, seq, width)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))  # (batch, seq, vocab)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(config: LlamaConfig, seed: int) -> tuple[Tensor, Tensor]:
    return language_batch(config.vocab, config.batch, config.seq, seed)


_8B = LlamaConfig(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocab=128256, seq=2048, batch=1)
_70B = LlamaConfig(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672, vocab=128256, seq=2048, batch=1)

SPEC = ModelSpec(
    name="llama",
    config_type=LlamaConfig,
    presets={
        "tiny": LlamaConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=32, vocab=32, seq=8),
        "default": LlamaConfig(),
        "real": _8B,
        "llama70b": _70B,
    },
    build=Llama,
    batch=batch,
)
