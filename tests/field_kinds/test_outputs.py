"""What may be returned, and handed back: inputs, duplicates, views, constants, nothing, and gradients of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from steps import Case, leaf, run_case
from torch import nn


class GradientIsSaved(torch.autograd.Function):
    """The gradient is a saved tensor, untouched by the tangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(saved)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return ctx.saved_tensors[0], None


class GradientIsConstant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return torch.ones(4, 4)


class SomeGradients(torch.autograd.Function):
    """An integer output, an unused input, tangents that may be missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        y, positive = x.sin(), x > 0
        ctx.mark_non_differentiable(positive)
        ctx.save_for_backward(x, y)
        return y, positive, w.cos()

    @staticmethod
    def backward(ctx: Any, tangent: Any, _: Any, other: Any) -> Any:
        x, y = ctx.saved_tensors
        return None if tangent is None else tangent * x.cos() * y, None


def of_one(x: torch.Tensor, *outputs: str) -> Any:
    y = x.exp()
    return tuple({"y": y, "flat": y.view(-1), "transposed": y.t(), "row": y[0], "cos": y.cos()}[o] for o in outputs)


def twice(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.sigmoid(x @ w)
    return y, (y @ w).sigmoid()


def saved_and_returned(x: torch.Tensor, k: torch.Tensor) -> Any:
    s = k.sin().exp()
    return GradientIsSaved.apply(x, s), s


def only_last(out: Any, generator: torch.Generator) -> None:
    out[-1].sum().backward()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(i).sin()).softmax(-1)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.layers[2].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).cos()


def square(*names: str) -> list[torch.Tensor]:
    """4x4 arguments: "x" wants a gradient, "n" does not."""
    return [torch.randn(4, 4, requires_grad=name == "x") for name in names]


CASES: dict[str, Case] = {
    "inputs returned": lambda: (lambda x, y: (x, x.sin() * y, y), square("x", "n")),
    "returned twice": lambda: (lambda x: of_one(x, "y", "y", "cos"), square("x")),
    "views of an output": lambda: (lambda x: of_one(x, "y", "flat", "transposed", "row"), square("x")),
    "a view alone": lambda: (lambda x: of_one(x, "transposed", "cos"), square("x")),
    "an alias of an input": lambda: (lambda x: x.view(-1), square("x")),
    "None, numbers and text": lambda: (lambda x, y: (x * y, 3, None, x.sin() * y, "a", 2.5), square("x", "n")),
    "constants": lambda: (lambda x: (x.sin(), torch.ones(3), torch.zeros_like(x)), square("x")),
    "an output that is read again": lambda: (twice, square("x", "x")),
    "an output without gradient": lambda: (lambda x, y: (x.sin().detach(), y.sin(), x > 0), square("x", "x")),
    "no gradient for an input": lambda: (
        lambda x, y, z: x * y.detach() + 0 * z.detach().sum(),
        square("x", "x", "x"),
    ),
    "an unused input": lambda: (lambda x, y: x.sin(), square("x", "x")),
    "an input twice": lambda: (lambda x, y: (x @ y).sin(), square("x") * 2),
    "nothing to save": lambda: (lambda x: x * 1.0, square("x")),
    "one gradient for two inputs": lambda: (lambda x, y: (x + y).sum(), square("x", "x")),
    "scalars": lambda: (lambda x: x.sum().exp() * x.mean().sin() * 2, square("x")),
    "no elements": lambda: (
        lambda x, w: torch.cat([x @ w, x[:0] @ w]).sin().sum() + (x[:0] @ w).cos().sum(),
        square("x", "x"),
    ),
    "an input without elements": lambda: (lambda x, w: (x @ w).sin(), [leaf(0, 4), leaf(4, 4)]),
    "the gradient is an input": lambda: (GradientIsSaved.apply, square("x", "n")),
    "the gradient is a saved value": lambda: (lambda x, k: GradientIsSaved.apply(x, k.sin().exp()), square("x", "n")),
    "the gradient is an output": lambda: (saved_and_returned, square("x", "n")),
    "the gradient is a constant": lambda: (lambda x: GradientIsConstant.apply(x).cos(), square("x")),
    "only a constant gradient": lambda: (GradientIsConstant.apply, square("x")),
    "a function with missing tangents": lambda: (
        lambda x, w: [t * 1.5 for t in SomeGradients.apply(x @ w, w)],
        square("x", "x"),
    ),
    "lists and dicts": lambda: (
        lambda given: {"a": (given["x"] @ given["w"]).sin(), "b": [given["x"].exp()]},
        [dict(zip("xw", square("x", "x")))],
    ),
    "tangents for some outputs": lambda: (
        lambda x, w: ((x @ w).sin(), x.exp(), x * w),
        square("x", "x"),
        {"loss": only_last},
    ),
    "tied weights": lambda: (Tied(), [torch.randint(0, 10, (3, 4))]),
    "frozen parameters": lambda: (Frozen(), [torch.randn(4, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])
