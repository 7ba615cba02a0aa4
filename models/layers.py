"""Layers that several models share.

Shapes: B batch, T positions, D width, H heads, C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """F.dropout, which leaves no trace in the graph when there is nothing to drop."""
    return F.dropout(x, p) if training and p > 0 else x


class RMSNorm(nn.Module):
    """Divides each position by the root of its mean square: (..., D) -> (..., D). Zhang & Sennrich 2019."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, D/H)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(y, self.heads) for y in self.qkv(x).chunk(3, dim=-1))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        return dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, the same at each position: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training)


class PreNormBlock(nn.Module):
    """Attention and feed-forward, each normalised before and added to its input: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout, causal)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class ConvNorm(nn.Sequential):
    """Convolution and batch norm: (B, C, Y, X) -> (B, C', Y/stride, X/stride)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        )


def init_small(module: nn.Module) -> None:
    """For `model.apply`: weights of linear layers and embeddings from a normal of 0.02, biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def check_heads(heads: int, width: int) -> None:
    """ValueError unless the width can be split among the heads."""
    if width % heads:
        raise ValueError(f"heads={heads} must divide width={width}")
