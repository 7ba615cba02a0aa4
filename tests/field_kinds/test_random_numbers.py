"""Random draws: the backward sees the forward's numbers, and the generator ends where eager leaves it.

(`steps.check` compares the generator's state too.)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import PLANS, Case, leaf, planned, repeats, run_case, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp


class DrawsInBackward(torch.autograd.Function):
    """Draws in the backward, once from a tangent's shape and once from a saved tensor's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return tangent * torch.rand_like(tangent) + torch.rand_like(ctx.saved_tensors[0])


class DrawsTheGradient(DrawsInBackward):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return torch.rand(8, 8)


def dropped_block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.tanh(F.dropout(x.sin(), 0.5)) @ w, 0.3)


def in_checkpoint(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(dropped_block, x, w, use_reentrant=False).exp()


def in_two_checkpoints(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first = checkpoint(dropped_block, x, w, use_reentrant=False)
    return F.dropout(checkpoint(dropped_block, first, w, use_reentrant=False), 0.5)


def around(function: Any) -> Any:
    return lambda x: F.dropout(function.apply(F.dropout(x.cos(), 0.5)), 0.5).exp()


CASES: dict[str, Case] = {
    "dropout": lambda: (lambda x: F.dropout(x.sin(), 0.5).exp(), [leaf(8, 8)]),
    "two dropouts": lambda: (lambda x: F.dropout(F.dropout(x.sin(), 0.5).exp(), 0.3).sin(), [leaf(8, 8)]),
    "dropout that does nothing": lambda: (lambda x: F.dropout(x.sin(), 0.0).exp(), [leaf(8, 8)]),
    "dropout that nobody reads": lambda: (
        lambda x: (F.dropout(x.sin(), 0.5) * 0).detach().sum() + x.exp(),
        [leaf(8, 8)],
    ),
    "two steps": lambda: (lambda x: F.dropout(x.sin(), 0.5).exp(), [leaf(8, 8)], {"calls": 2}),
    "a mask by hand": lambda: (
        lambda x: (x.sin() * (torch.rand_like(x) > 0.5)).exp() * torch.randn_like(x).cos(),
        [leaf(8, 8)],
    ),
    "bernoulli": lambda: (lambda x: (x.sin() * torch.bernoulli(x.sigmoid().detach())).exp(), [leaf(8, 8)]),
    "in-place draws": lambda: (
        lambda x: (x.sin() * torch.empty_like(x).bernoulli_(0.4)).exp() * torch.empty_like(x).uniform_().sin(),
        [leaf(8, 8)],
    ),
    "integers": lambda: (lambda x: x.sin()[torch.randperm(8)].exp() * torch.randint(0, 5, (8, 8)), [leaf(8, 8)]),
    "multinomial": lambda: (
        lambda x: (x.softmax(1) * torch.multinomial(x.detach().softmax(1), 8)).exp(),
        [leaf(8, 8)],
    ),
    "attention with dropout": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q.sin(), k, v, dropout_p=0.4).sin(),
        [leaf(2, 2, 8, 4), leaf(2, 2, 8, 4), leaf(2, 2, 8, 4)],
    ),
    "rrelu": lambda: (lambda x: F.rrelu(x.sin(), training=True).exp(), [leaf(8, 8)]),
    "gumbel_softmax": lambda: (lambda x: F.gumbel_softmax(x.sin(), hard=True).exp(), [leaf(8, 8)]),
    "channels dropped": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout2d(0.5), nn.PReLU()), [leaf(1, 2, 4, 4)]),
    "in a checkpoint": lambda: (in_checkpoint, [leaf(8, 8), leaf(8, 8)]),
    "in two checkpoints": lambda: (in_two_checkpoints, [leaf(8, 8), leaf(8, 8)]),
    "drawn in the backward": lambda: (around(DrawsInBackward), [leaf(8, 8)]),
    "drawn in the backward, no tangent": lambda: (around(DrawsTheGradient), [leaf(8, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


@pytest.mark.parametrize("plan", PLANS)
def test_the_mask_is_the_forwards(plan: str) -> None:
    """Without eager as a yardstick: the gradient is zero exactly where the output is."""
    x = (torch.rand(32, 32) + 0.5).requires_grad_()
    run = torch.compile(lambda x: F.dropout(x * 2, 0.5).square(), backend=tp.aot_eager_backend(planned(PLANS[plan])))
    out = run(x)
    out.sum().backward()
    assert torch.equal(x.grad != 0, out != 0)
    assert 0 < out.count_nonzero() < out.numel()


def test_a_random_op_that_runs_many_times_draws_the_same_numbers() -> None:
    seen: list[Any] = []
    backend = tp.aot_eager_backend(planned(repeats(5), seen))
    step(lambda x: F.dropout(F.dropout(x.sin(), 0.5).exp(), 0.3).sin(), [leaf(8, 8)], backend)
    ((captured, plan),) = seen
    runs = {captured.graph.ops[o].target: n for o, n in plan.counts.items()}
    assert runs["aten.native_dropout.default"] >= 2
