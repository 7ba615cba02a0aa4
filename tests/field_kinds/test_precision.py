"""Low precision: casts inside and outside of autocast.  Eager caches casts, so the default partition is the yardstick."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import Case, leaf, run_case, step
from torch import nn

from optpart import torch_private as tp
from optpart.partitioner import Partitioner

bits = {"yardsticks": ("default",)}


def autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(torch.tanh(x @ w), w).float().exp()


class Quantized(torch.autograd.Function):
    """Quantizes the weight in the forward, and once more in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ Quantized.quantize(w)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return tangent @ Quantized.quantize(w).t(), x.t() @ tangent

    @staticmethod
    def quantize(w: torch.Tensor) -> torch.Tensor:
        scale = w.abs().amax() / 7
        return (w / scale).round().clamp(-8, 7) * scale


class Layers(nn.Module):
    """Four products with weights that are cast, or quantized, first."""

    def __init__(self, kind: str, width: int = 32) -> None:
        super().__init__()
        self.kind = kind
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width) / 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            if self.kind == "quantized":
                x = Quantized.apply(x, w).tanh()
            elif self.kind == "cast":
                x = (x.bfloat16() @ w.bfloat16()).float().tanh()
            else:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    x = torch.tanh(x @ w)
        return x.float().sum()


KINDS = ("quantized", "cast", "autocast")
CASES: dict[str, Case] = {
    "autocast": lambda: (autocast, [leaf(8, 8), leaf(8, 8)], bits),
    "bfloat16": lambda: (lambda x, w: (x.bfloat16() @ w.bfloat16()).float().tanh(), [leaf(8, 8), leaf(8, 8)]),
    "float16": lambda: (lambda x, w: (x.half() @ w.half()).float().tanh(), [leaf(8, 8), leaf(8, 8)]),
    "float64": lambda: (
        lambda x, w: (x @ w).sin(),
        [leaf(4, 4, dtype=torch.float64), leaf(4, 4, dtype=torch.float64)],
    ),
}
for each in KINDS:
    CASES[f"weights, {each}"] = lambda kind=each: (Layers(kind), [torch.randn(4, 32)], bits)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


@pytest.mark.parametrize("kind", KINDS)
def test_no_copy_of_a_weight_is_kept(kind: str) -> None:
    """The weight itself lives anyway, so its cast is made again."""
    partitioner = Partitioner(on_failure="raise")
    step(Layers(kind, 64), [torch.randn(1, 64)], tp.aot_eager_backend(partitioner))
    (found,) = partitioner.partitions
    graph = found.problem.graph
    saved = [graph.values[v] for v in found.result.plan.saved(graph)]
    assert sum(v.nbytes for v in saved) < 64 * 64 * 2, [v.name for v in saved]
