"""T5: an encoder-decoder transformer whose positions are biases on the attention, learned per distance.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2019),
https://arxiv.org/abs/1910.10683. "real" is T5-base, 223 M parameters.

Batch: source (batch, source_seq), inputs (batch, seq), which are the targets shifted right by one, and
targets (batch, seq). Loss: cross entropy of the targets.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import RMSNorm, dropout, split_heads
from .registry import ModelSpec

START = 0  # the token before the first target


@dataclass(frozen=True, slots=True)
class T5Config:
    layers: int = 2  # of the encoder, and as many of the decoder
    width: int = 128
    heads: int = 4
    head_width: int = 32
    hidden: int = 512  # of the feed-forward layers
    vocab: int = 512
    source_seq: int = 256
    seq: int = 128
    batch: int = 2
    buckets: int = 32  # of distances that share a bias; the far ones grow with the logarithm
    far: int = 128  # the distance from which on there is one bucket
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 4 <= self.buckets < self.far:
            raise ValueError(f"buckets={self.buckets} must be at least 4 and less than far={self.far}")


class Attention(nn.Module):
    """Attention of x (B, T, D) to memory (B, S, D), with a bias (1, H, T, S) on the scores: -> (B, T, D)."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads, self.dropout = config.heads, config.dropout
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key = nn.Linear(config.width, inner, bias=False)
        self.value = nn.Linear(config.width, inner, bias=False)
        self.out = nn.Linear(inner, config.width, bias=False)
        nn.init.normal_(self.query.weight, std=(config.width * config.head_width) ** -0.5)
        for layer in (self.key, self.value):
            nn.init.normal_(layer.weight, std=config.width**-0.5)
        nn.init.normal_(self.out.weight, std=inner**-0.5)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        q = split_heads(self.query(x), self.heads)
        k = split_heads(self.key(memory), self.heads)
        v = split_heads(self.value(memory), self.heads)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p, scale=1.0)
        return dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class FeedForward(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)
        self.dropout = config.dropout
        nn.init.normal_(self.up.weight, std=config.width**-0.5)
        nn.init.normal_(self.down.weight, std=config.hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = dropout(F.relu(self.up(x)), self.dropout, self.training)
        return dropout(self.down(x), self.dropout, self.training)


class RelativeBias(nn.Module):
    """The bias (1, H, T, T) on the scores of T positions; a causal one is -inf for the positions to come."""

    bucket: Tensor
    mask: Tensor

    def __init__(self, config: T5Config, seq: int, causal: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(config.buckets, config.heads)
        nn.init.normal_(self.table.weight, std=config.width**-0.5)
        position = torch.arange(seq)
        ahead = position[None, :] - position[:, None]  # (T, T), how far the key is ahead of the query
        buckets = config.buckets if causal else config.buckets // 2  # else half for each direction
        distance = (-ahead).clamp(min=0) if causal else ahead.abs()
        near = buckets // 2
        growth = torch.log(distance.clamp(min=1) / near) / math.log(config.far / near)
        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        bucket = torch.where(distance < near, distance, far)
        if not causal:
            bucket = bucket + buckets * (ahead > 0)
        mask = torch.zeros(seq, seq).masked_fill(ahead > 0, -math.inf if causal else 0.0)
        self.register_buffer("bucket", bucket, persistent=False)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self) -> Tensor:
        bias: Tensor = self.table(self.bucket)  # (T, T, H)
        return bias.permute(2, 0, 1)[None] + self.mask


class Block(nn.Module):
    """Attention to itself, in a decoder also to the memory, and feed-forward: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: T5Config, decoder: bool) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(config.width), Attention(config)
        if decoder:
            self.norm2, self.cross = RMSNorm(config.width), Attention(config)
        self.norm3, self.feed_forward = RMSNorm(config.width), FeedForward(config)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, bias)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory, None)
        out: Tensor = x + self.feed_forward(self.norm3(x))
        return out


class Stack(nn.Module):
    """The encoder, or the decoder: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: T5Config, seq: int, decoder: bool) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.bias = RelativeBias(config, seq, causal=decoder)
        self.blocks = nn.ModuleList(Block(config, decoder) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = dropout(x, self.dropout, self.training)
        bias = self.bias()
        for block in self.blocks:
            x = block(x, bias, memory)
        return dropout(self.norm(x), self.dropout, self.training)


class T5(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab, config.width)  # for both stacks and for the output
        self.encoder = Stack(config, config.source_seq, decoder=False)
        self.decoder = Stack(config, config.seq, decoder=True)

    def forward(self, source: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        memory = self.encoder(self.token(source))  # (batch, source_seq, width)
        x = self.decoder(self.token(inputs), memory)  # (batch, seq, width)
        logits = F.linear(x * x.shape[-1] ** -0.5, self.token.weight)  # (batch, seq, vocab)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(config: T5Config, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(1, config.vocab, (config.batch, config.source_seq), generator=generator)
    targets = torch.randint(1, config.vocab, (config.batch, config.seq), generator=generator)
    return source, F.pad(targets[:, :-1], (1, 0), value=START), targets


SPEC = ModelSpec(
    name="t5",
    config_type=T5Config,
    presets={
        "tiny": T5Config(
            layers=1, width=16, heads=2, head_width=8, hidden=32, vocab=32, source_seq=8, seq=6, buckets=8
        ),
        "default": T5Config(),
        "real": T5Config(
            layers=12, width=768, heads=12, head_width=64, hidden=3072, vocab=32128, source_seq=512, seq=512, batch=8
        ),
    },
    build=T5,
    batch=batch,
)
