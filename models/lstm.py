"""LSTM language model: a recurrence written out step by step in Python, so each step is in the graph.

Zaremba et al., "Recurrent Neural Network Regularization" (2014), https://arxiv.org/abs/1409.2329
"real" is their large model on Penn Treebank, 66 M parameters.

Batch: tokens (batch, seq), targets (batch, seq). Loss: cross entropy of the next token.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import language_batch
from .layers import dropout
from .registry import ModelSpec


@dataclass(frozen=True, slots=True)
class LSTMConfig:
    layers: int = 2
    width: int = 128
    vocab: int = 512
    seq: int = 12
    batch: int = 64
    dropout: float = 0.0  # between the layers, not along time; 0.65 in the paper


class Cell(nn.Module):
    """One step of one layer: x, h and c (B, D) -> the new h and c (B, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self.input(x) + self.recurrent(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class LSTM(nn.Module):
    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.token = nn.Embedding(config.vocab, config.width)
        self.cells = nn.ModuleList(Cell(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab)
        for weight in self.parameters():
            nn.init.uniform_(weight, -(config.width**-0.5), config.width**-0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        sequence = self.token(tokens).unbind(1)  # seq times (batch, width)
        for cell in self.cells:
            h = c = torch.zeros_like(sequence[0])
            outputs = []
            for x in sequence:
                h, c = cell(dropout(x, self.dropout, self.training), h, c)
                outputs.append(h)
            sequence = outputs
        x = dropout(torch.stack(sequence, dim=1), self.dropout, self.training)
        logits = self.head(x)  # (batch, seq, vocab)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(config: LSTMConfig, seed: int) -> tuple[Tensor, Tensor]:
    return language_batch(config.vocab, config.batch, config.seq, seed)


SPEC = ModelSpec(
    name="lstm",
    config_type=LSTMConfig,
    presets={
        "tiny": LSTMConfig(layers=1, width=8, vocab=16, seq=4, batch=2),
        "default": LSTMConfig(),
        "real": LSTMConfig(layers=2, width=1500, vocab=10000, seq=35, batch=20),
    },
    build=LSTM,
    batch=batch,
)
