"""BERT: a bidirectional transformer encoder, pre-trained on masked tokens and next sentences.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018), https://arxiv.org/abs/1810.04805
"real" is BERT-base, 110 M parameters.

Batch: tokens (batch, seq), of which some are masked; segments (batch, seq) of 0 and 1; targets (batch, seq),
-100 where nothing was masked; follows (batch,), whether the second segment follows the first.
Loss: cross entropy of the masked tokens plus that of `follows`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import FeedForward, SelfAttention, check_heads, dropout, init_small
from .registry import ModelSpec

MASK = 0  # the token that stands for a masked one


@dataclass(frozen=True, slots=True)
class BERTConfig:
    layers: int = 4
    width: int = 128
    heads: int = 4
    vocab: int = 512
    seq: int = 256
    batch: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self.heads, self.width)
        if self.seq < 2:
            raise ValueError("seq must be at least 2, as the second token is masked")


class Block(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.dropout, causal=False)
        self.norm1 = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width, 4 * config.width, config.dropout)
        self.norm2 = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        out: Tensor = self.norm2(x + self.feed_forward(x))
        return out


class BERT(nn.Module):
    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.token = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.seq, config.width)
        self.segment = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.width, config.width)
        self.transform_norm = nn.LayerNorm(config.width)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab))
        self.pooler = nn.Linear(config.width, config.width)
        self.follows = nn.Linear(config.width, 2)
        self.apply(init_small)

    def forward(self, tokens: Tensor, segments: Tensor, targets: Tensor, follows: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions) + self.segment(segments)  # (batch, seq, width)
        x = dropout(self.norm(x), self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        masked = self.transform_norm(F.gelu(self.transform(x)))
        logits = F.linear(masked, self.token.weight, self.token_bias)  # (batch, seq, vocab)
        pooled = dropout(torch.tanh(self.pooler(x[:, 0])), self.dropout, self.training)  # (batch, width)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + F.cross_entropy(self.follows(pooled), follows)


def batch(config: BERTConfig, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(1, config.vocab, (config.batch, config.seq), generator=generator)
    follows = torch.randint(2, (config.batch,), generator=generator)
    position = torch.arange(config.seq).expand(config.batch, -1)
    masked = position % 7 == 1  # a seventh of the text, where BERT masks 15 % at random
    segments = (position >= config.seq // 2).long()
    return text.where(~masked, MASK), segments, text.where(masked, -100), follows


SPEC = ModelSpec(
    name="bert",
    config_type=BERTConfig,
    presets={
        "tiny": BERTConfig(layers=2, width=16, heads=2, vocab=32, seq=8),
        "default": BERTConfig(),
        "real": BERTConfig(layers=12, width=768, heads=12, vocab=30522, seq=512, batch=8),
    },
    build=BERT,
    batch=batch,
)
