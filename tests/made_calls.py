"""Calls that are made once on real tensors, and their signatures; a model of many kinds of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optpart import torch_private as tp
from optpart.graph import Graph, Signature, TensorSpec
from optpart.planning import capture_joint

aten = torch.ops.aten


def spec(tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(tuple(tensor.shape), tensor.stride(), dtype, str(tensor.device))


def signature(operator: Any, *args: Any, **kwargs: Any) -> Signature:
    """The signature of a call with these arguments; the call is made once, for its outputs."""

    def plain(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return tuple(map(plain, argument))
        return spec(argument) if isinstance(argument, Tensor) else argument

    outputs = tuple(spec(t) if isinstance(t, Tensor) else None for t in tp.tree_leaves(operator(*args, **kwargs)))
    return Signature(str(operator), plain(args), tuple((k, plain(v)) for k, v in kwargs.items()), outputs)


def mm(n: int) -> Signature:
    return signature(aten.mm.default, torch.ones(n, n), torch.ones(n, n))


class Zoo(nn.Module):
    """Ops whose inputs have to fit: indices, classes, masks, windows, probabilities, variances."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.conv, self.batch_norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer_norm, self.group_norm = nn.LayerNorm(4), nn.GroupNorm(2, 8)

    def forward(self, tokens: Tensor, classes: Tensor, mask: Tensor, grid: Tensor) -> Tensor:
        x = self.table(tokens).permute(0, 3, 1, 2)  # (2, 8, 4, 4)
        x = F.dropout(torch.relu(self.batch_norm(self.conv(x))), 0.5)
        x = self.group_norm(self.layer_norm(x)) + F.grid_sample(x, grid, align_corners=False)
        attended = F.scaled_dot_product_attention(x, x, x)
        x = torch.where(mask, x, attended.sigmoid().log() + x.tanh() * 2)
        best, place = x.flatten(2).topk(3, -1)
        spread = torch.zeros_like(x.flatten(2)).scatter_add(2, place, best).cumsum(-1).gather(2, place)
        pooled = F.max_pool2d(x, 2).flatten(1)
        picked = pooled[:, place[0, 0]] + pooled.index_select(1, place[0, 1]) + x.std((2, 3)).sqrt()[:, :3].softmax(-1)
        scores = F.interpolate(x, scale_factor=2, mode="bilinear")
        loss = F.cross_entropy(scores, classes) + F.cross_entropy(pooled, classes[:, 0, 0])
        likely = F.binary_cross_entropy(pooled.sigmoid(), torch.rand_like(pooled))
        return loss + likely + F.mse_loss(picked, best[:, 0]) + spread.mean() + F.pad(x, (1, 1)).norm()

    @staticmethod
    def batch() -> tuple[Tensor, ...]:
        tokens, classes = torch.randint(0, 7, (2, 4, 4)), torch.randint(0, 8, (2, 8, 8))
        return tokens, classes, torch.rand(2, 1, 4, 4) < 0.5, torch.rand(2, 4, 4, 2)


@functools.cache
def zoo_graph() -> Graph:
    torch.manual_seed(0)
    (joint,) = tp.trace_joint(Zoo(), Zoo.batch())
    return capture_joint(joint).graph


class Losses(nn.Module):
    """Convolutions have workspaces, mse_loss returns too large a storage, batch norm's statistics stay float32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.stem(x)))
        return F.mse_loss(F.dropout(self.head(y), 0.1), x)
