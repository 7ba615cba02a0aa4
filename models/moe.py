"""A Llama-like decoder whose feed-forward layers are mixtures of experts.

Each token goes to its `chosen` best experts, as in Mixtral: Jiang et al., "Mixtral of Experts" (2024),
https://arxiv.org/abs/2401.04088. An expert takes at most `capacity` tokens of a sequence, relative to an even
spread, and later ones pass it by, and a loss spreads the load, as in the Switch Transformer: Fedus et al.
(2021), https://arxiv.org/abs/2101.03961. So all shapes are known before the data.
"real" is the size of Mixtral 8x7B, 46.7 B parameters.

Batch: tokens (batch, seq), targets (batch, seq). Loss: cross entropy of the next token plus `balance` times
the load-balance loss, averaged over the layers.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import language_batch
from .layers import RMSNorm, dropout, init_small
from .llama import Attention, LlamaConfig, rotation
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class MoEConfig(LlamaConfig):
    hidden: int = 128
    rope_base: float = 1_000_000.0
    experts: int = 4
    chosen: int = 2  # experts of each token
    capacity: float = 1.25
    balance: float = 0.01  # weight of the load-balance loss

    def __post_init__(self) -> None:
        LlamaConfig.__post_init__(self)
        if self.chosen > self.experts:
            raise ValueError(f"chosen={self.chosen} must be at most experts={self.experts}")


class Mixture(nn.Module):
    """(B, T, D) -> (B, T, D), and the load-balance loss, which is 1 when the load is even."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        e, d, h = config.experts, config.width, config.hidden
        self.experts, self.chosen, self.dropout = e, config.chosen, config.dropout
        slots = math.ceil(config.capacity * config.chosen * config.seq / e)
        self.slots = min(slots, config.seq)  # of each expert, for each sequence
        self.router = nn.Linear(d, e, bias=False)
        self.gate = nn.Parameter(torch.empty(e, d, h).normal_(std=0.02))
        self.up = nn.Parameter(torch.empty(e, d, h).normal_(std=0.02))
        self.down = nn.Parameter(torch.empty(e, h, d).normal_(std=0.02))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probability = self.router(x).softmax(-1)  # (B, T, experts)
        weight, expert = probability.topk(self.chosen)  # (B, T, chosen)
        weight = (weight / weight.sum(-1, keepdim=True)).flatten(1)
        expert = expert.flatten(1)  # (B, T * chosen), as all below of two dimensions

        taken = F.one_hot(expert, self.experts)  # (B, T * chosen, experts)
        place = (taken.cumsum(1) * taken).sum(-1) - 1  # in the queue of the expert
        spill = self.experts * self.slots  # a slot that nobody reads
        slot = torch.where(place < self.slots, expert * self.slots + place, spill)

        index = slot[..., None].expand(-1, -1, x.shape[-1])
        sent = x.repeat_interleave(self.chosen, dim=1)  # (B, T * chosen, D)
        queue = x.new_zeros(len(x), spill + 1, x.shape[-1]).scatter_add(1, index, sent)
        y = queue[:, :-1].view(len(x), self.experts, self.slots, -1)  # (B, experts, slots, D)
        y = (F.silu(y @ self.gate) * (y @ self.up)) @ self.down
        answer = F.pad(y.flatten(1, 2), (0, 0, 0, 1)).gather(1, index)  # zero from the spill
        out = (answer * weight[..., None]).view(*x.shape[:2], self.chosen, -1).sum(2)

        load = taken.to(x.dtype).mean((0, 1))  # (experts,), the share of the tokens sent to each
        balance = self.experts * (load * probability.mean((0, 1))).sum()
        return dropout(out, self.dropout, self.training), balance


class Block(nn.Module):
    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config.width, config.heads, config.kv_heads, config.dropout)
        self.norm2 = RMSNorm(config.width)
        self.mixture = Mixture(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.norm1(x), cos, sin)
        y, balance = self.mixture(self.norm2(x))
        return x + y, balance


class MoE(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.balance = config.balance
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
        balances = []
        for block in self.blocks:
            x, balance = block(x, self.cos, self.sin)
            balances.append(balance)
        logits = self.head(self.norm(x))  # (batch, seq, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + self.balance * torch.stack(balances).mean()


def batch(config: MoEConfig, seed: int) -> tuple[Tensor, Tensor]:
    return language_batch(config.vocab, config.batch, config.seq, seed)


_8X7B = MoEConfig(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocab=32000, seq=2048, batch=1, experts=8)

SPEC = ModelSpec(
    name="moe",
    config_type=MoEConfig,
    presets={
        "tiny": MoEConfig(layers=1, width=16, heads=4, kv_heads=2, hidden=16, vocab=32, seq=8),
        "default": MoEConfig(layers=2),
        "real": _8X7B,
    },
    build=MoE,
    batch=batch,
)
