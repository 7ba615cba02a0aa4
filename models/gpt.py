"""GPT-2: a decoder-only transformer with learned positions.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019),
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"real" is GPT-2 small, 124 M parameters with the output tied to the token embedding.

Batch: tokens (batch, seq), targets (batch, seq). Loss: cross entropy of the next token.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import language_batch
from .layers import PreNormBlock, check_heads, dropout, init_small
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class GPTConfig:
    layers: int = 4
    width: int = 128
    heads: int = 4
    vocab: int = 512
    seq: int = 256
    batch: int = 2
    dropout: float = 0.0
    tied: bool = False  # the output layer shares the weight of the token embedding

    def __post_init__(self) -> None:
        check_heads(self.heads, self.width)


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.token = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.seq, config.width)
        self.blocks = nn.ModuleList(
            PreNormBlock(config.width, config.heads, config.dropout, causal=True) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.apply(init_small)
        for name, weight in self.named_parameters():  # keeps the residual stream at its scale over the depth
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                nn.init.normal_(weight, std=0.02 * (2 * config.layers) ** -0.5)
        if config.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)  # (batch, seq, width)
        x = dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # (batch, seq, vocab)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(config: GPTConfig, seed: int) -> tuple[Tensor, Tensor]:
    return language_batch(config.vocab, config.batch, config.seq, seed)


SPEC = ModelSpec(
    name="gpt",
    config_type=GPTConfig,
    presets={
        "tiny": GPTConfig(layers=2, width=16, heads=2, vocab=32, seq=8),
        "default": GPTConfig(),
        "real": GPTConfig(layers=12, width=768, heads=12, vocab=50257, seq=1024, batch=4, tied=True),
    },
    build=GPT,
    batch=batch,
)
