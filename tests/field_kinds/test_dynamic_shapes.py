"""Symbolic sizes, sizes that data decides, numbers taken from tensors: bound, saved last, known on their side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import PLANS, Case, compare, leaf, planned, run_case
from torch import nn
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp


@pytest.fixture(autouse=True)
def traced_into_the_graph() -> Iterator[None]:
    """Numbers and shapes that come out of tensors do not break the graph."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def rows_by_number(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 1)
    torch._check(k <= 6)
    return (x[:k] @ w).sin().sum(0)


def ones_by_number(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 2)
    return (torch.ones(k, 8) @ w).sin().sum(0) * x.sum()


def positive_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[(x[:, 0] > 0).nonzero().squeeze(1)].sin().sum(0) @ w


def split_by_numbers(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
    sizes = n.tolist()
    for size in sizes:
        torch._check(size >= 0)
    return [t.sin().sum(0) @ w for t in x.split(sizes)]


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x, w: (x @ w).sin().view(-1).exp(), x, w, use_reentrant=False).cos()


def half_of_the_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return x.topk(half, 1)[0].sin() @ w[:half]


class Backward(torch.autograd.Function):
    """``gradient(tangent, x)`` is the subclass's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()


class RowsInBackward(Backward):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return tangent * x[(x[:, 0] > 0).nonzero().squeeze(1)].sum()


class RowsOfTheTangent(Backward):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return tangent * x[(tangent[:, 0] > 0).nonzero().squeeze(1)].sum()


class NumberInBackward(Backward):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        n = x.argmax().item()
        torch._check(n >= 0)
        return tangent * torch.ones(n + 1).sum() * x


class SizesInBackward(Backward):
    """A size of a tensor that no tangent goes into, read by ops that do not read the tensor."""

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        y = torch.cat([x, x[:1]])
        n = y.shape[0]
        return tangent * y.sum() * (torch.ones(n).sum() + tangent.new_zeros(n).sum())


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def two() -> list[Any]:
    return [leaf(6, 8), leaf(8, 8)]


dynamic = {"dynamic": True}
CASES: dict[str, Case] = {
    "views": lambda: (lambda x, w: (x @ w).sin().view(-1, 2, x.shape[1] // 2).exp().flatten(1), two(), dynamic),
    "sizes as numbers": lambda: (
        lambda x, w: ((x @ w).sin() * x.shape[0]).exp() / (x.shape[1] * 2 + 1) * x.shape[0] ** 0.5,
        two(),
        dynamic,
    ),
    "concatenation": lambda: (lambda x, w: torch.cat([x, x @ w, x[: x.shape[0] // 2]]).sin().sum(0), two(), dynamic),
    "factories": lambda: (
        lambda x, w: (torch.zeros(x.shape[0], w.shape[1]) + x @ w * torch.arange(x.shape[1])).sin(),
        two(),
        dynamic,
    ),
    "sizes returned": lambda: (lambda x, w: ((x @ w).sin(), x.shape[0], x.shape[1] * 2), two(), dynamic),
    "only a size is read": lambda: (lambda x, w: (w.sin() * x.shape[0]).exp(), two(), dynamic),
    "only the size of a result is read": lambda: (
        lambda x, w: (x @ w).sum(0).expand(x.sin().shape[0], -1).sin(),
        two(),
        dynamic,
    ),
    "numbers as arguments": lambda: (
        lambda x, w, s, n: ((x @ w) * s).sin()[:n] * n / s,
        [*two(), 2.5, 3],
        dynamic,
    ),
    "layer_norm and dropout": lambda: (
        lambda x, w: F.dropout(F.layer_norm(x @ w, (w.shape[1],)).sin(), 0.5).exp(),
        two(),
        dynamic,
    ),
    "attention": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q.sin(), k, v, is_causal=True).sin(),
        [leaf(2, 2, 8, 4), leaf(2, 2, 8, 4), leaf(2, 2, 8, 4)],
        dynamic,
    ),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        [leaf(3, 2, 8, 8)],
        dynamic,
    ),
    "padding": lambda: (lambda x: F.pad(x.sin(), (0, 8 - x.shape[1] % 8)).cos(), [leaf(3, 5)], dynamic),
    "topk of a size": lambda: (half_of_the_columns, two(), dynamic),
    "embedding": lambda: (
        lambda w, i: F.embedding(i, w).sin().mean(1),
        [leaf(10, 4), torch.randint(0, 10, (3, 5))],
        dynamic,
    ),
    "checkpoint": lambda: (checkpointed, two(), dynamic),
    "a number from a tensor": lambda: (lambda x, w, n: ((x @ w) * n.item()).sin(), [*two(), torch.tensor(3.5)], dynamic),
    "rows by a number": lambda: (rows_by_number, [*two(), torch.tensor(3)], dynamic),
    "rows by a number, other sizes fixed": lambda: (rows_by_number, [*two(), torch.tensor(3)]),
    "ones by a number": lambda: (ones_by_number, [*two(), torch.tensor(3)], dynamic),
    "nonzero": lambda: (positive_rows, two(), dynamic),
    "nonzero, other sizes fixed": lambda: (positive_rows, two()),
    "mask": lambda: (lambda x, w: x[x > 0].sin().sum() * w, two(), dynamic),
    "mask, returned": lambda: (lambda x, w: x[x > 0].sin(), two(), dynamic),
    "split by numbers": lambda: (split_by_numbers, [*two(), torch.tensor([1, 2, 3])], dynamic),
    "repeat_interleave": lambda: (
        lambda x, w, n: x.repeat_interleave(n, 0).sin().sum(0) @ w,
        [*two(), torch.tensor([1, 2, 0, 3, 1, 1])],
        dynamic,
    ),
    "rows in the backward": lambda: (lambda x, w: RowsInBackward.apply(x @ w).exp(), two()),
    "rows of the tangent": lambda: (lambda x, w: RowsOfTheTangent.apply(x @ w).exp(), two()),
    "a number in the backward": lambda: (lambda x, w: NumberInBackward.apply(x @ w).exp(), two(), dynamic),
    "sizes in the backward": lambda: (lambda x, w: SizesInBackward.apply(x @ w).exp(), two(), dynamic),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


def test_one_compile_serves_all_sizes() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ w, (w.shape[1],)).sin().view(-1, 2).exp()

    def run(partition: Any) -> list[Any]:
        compiles: list[int] = []

        def counted(*args: Any, **kw: Any) -> Any:
            compiles.append(1)
            return partition(*args, **kw)

        function = torch.compile(block, backend=tp.aot_eager_backend(counted), dynamic=True)
        gradients = []
        for rows in (3, 5, 9):
            x = torch.full((rows, 4), 0.3).cumsum(0).requires_grad_()
            w = torch.eye(4, 6).cumsum(1).requires_grad_()
            function(x, w).sum().backward()
            gradients += [x.grad, w.grad]
        assert len(compiles) == 1
        torch.compiler.reset()
        return gradients

    expected = run(tp.default_partition)
    for name, plan in PLANS.items():
        compare(run(planned(plan)), expected, name)
