"""Nested regions (``nested_compile_region``): partitioned by the same function, once each, called many times.

PyTorch keeps the fake results of one call of a region and shows them at all calls, so what shares storage
with what is read off the region's own graph.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import Case, leaf, run_case, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp
from optpart.partitioner import Partitioner

region = torch.compiler.nested_compile_region


@region
def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().exp()


@region
def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout((x @ w).sin(), 0.5).exp()


@region
def outer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return block(block(x, w).sin(), w) * x


@region
def three(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x @ w, x.sin(), w.cos()


@region
def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x, w: (x @ w).sin().exp(), x, w, use_reentrant=False) * x


class Layers(nn.Module):
    """One region for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.layer(layer, x)
        return x

    @staticmethod
    @region
    def layer(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + layer(x).sin()


class Overwritten(nn.Module):
    """A buffer that two calls of a region read, and the step overwrites behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = scaled(scaled(x, self.b.clone()), self.b.clone())
        self.b.add_(1)
        return y.cos() * self.b


@region
def scaled(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x * b).sin()


def two() -> list[torch.Tensor]:
    return [leaf(8, 8), leaf(8, 8)]


CASES: dict[str, Case] = {
    "one call": lambda: (lambda x, w: block(x, w).cos(), two()),
    "two calls": lambda: (lambda x, w: block(block(x, w), w).cos(), two()),
    "three calls, two weights": lambda: (lambda x, w: block(block(block(x, w), w.sin()), w).cos(), two()),
    "operands swapped": lambda: (lambda x, w: three(x, w)[0].exp() + three(w, x)[2], two()),
    "dropout": lambda: (lambda x, w: dropped(dropped(x, w), w).cos(), two()),
    "nested": lambda: (lambda x, w: outer(outer(x, w), w).cos(), two()),
    "modules": lambda: (Layers(), [leaf(4, 8)]),
    "symbolic sizes": lambda: (lambda x, w: block(block(x, w), w).cos(), two(), {"dynamic": True}),
    "in a checkpoint": lambda: (lambda x, w: checkpoint(block, x, w, use_reentrant=False).cos(), two()),
    "checkpoint inside": lambda: (lambda x, w: checkpointed(checkpointed(x, w), w), two()),
    "an overwritten buffer": lambda: (Overwritten(), [leaf(8, 8)], {"calls": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


def test_a_region_is_partitioned_once() -> None:
    partitioner = Partitioner(on_failure="raise")
    step(lambda x, w: block(block(block(x, w), w), w), two(), tp.aot_eager_backend(partitioner))
    assert len(partitioner.partitions) == 2  # the region, and the graph around it
    assert partitioner.fallbacks == 0


def test_a_region_takes_no_budget_in_bytes(caplog: pytest.LogCaptureFixture) -> None:
    partitioner = Partitioner(on_failure="raise", memory_budget="1 GiB")
    step(lambda x, w: block(block(x, w), w), two(), tp.aot_eager_backend(partitioner))
    assert "nested region takes no memory budget in bytes" in caplog.text
