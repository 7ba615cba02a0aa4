"""Buffers and inputs that the step overwrites: what the backward reads is what the forward read.

Eager itself refuses most of such programs (a saved tensor was modified), so the old contents are read by
ops that save their result (sin, exp) or a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from steps import PLANS, Case, close, fresh, leaf, only_our_warnings, planned, run_case, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp


class Holds(nn.Module):
    """A weight, buffers, and a function of (module, *inputs)."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.randn(4, 4))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def moving_average(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = (x @ m.w * m.b.cos()).sin()
    m.b.mul_(0.9).add_(y.detach().mean(0) * 0.1)
    return y.exp()


def read_before_and_after(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = ((x * m.b.clone()) @ m.w).sin()
    m.b.copy_(y.detach().mean(0))
    return y.exp() * m.b.sin()


def chain_of_reads(m: Any, x: torch.Tensor) -> torch.Tensor:
    a = m.b.sin().cos().exp()
    y = x * a
    m.b.add_(1)
    return (y * a).exp() @ m.w


def counter(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = (x * (m.n + 1)).sin() @ m.w
    m.n += 1
    return y / (m.n * 2)


def cache(m: Any, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    keys = x @ m.w
    m.b.index_put_((i,), keys.detach())
    now = m.b.clone()
    mixed = (x @ now.T).softmax(-1) @ now
    m.b.index_put_((i,), mixed.detach())
    return (mixed @ m.b.T.cos()).cos()


def cache_with_gradient(m: Any, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    now = m.b.index_put((i,), x @ m.w)
    m.b.copy_(now.detach())
    return (x @ now.T).softmax(-1) @ now


def views(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.b[0].sin() + m.b.t().cos()
    m.b[0].mul_(2)
    m.b[1:].add_(y.detach().sum())
    return y.sin().exp() * m.b[1]


def small_buffer_large_readers(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.b[0].expand(64, 4) * 2
    z = (x @ m.w)[None] * y.exp()[:, None]
    m.b.mul_(1.5)
    return z.sin()


def swapped(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.b.clone() + m.c
    m.b.copy_(m.c)
    m.c.copy_(y.detach())
    return (y * m.b.exp()).sin() * m.c.cos()


def zeroed(m: Any, x: torch.Tensor) -> torch.Tensor:
    total = m.b.sum()
    m.b.zero_()
    return (x @ m.w).sin() * total


def input_overwritten(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    z = (x.sigmoid() * y).sin()
    x.add_(1)
    return z * x.cos()


def input_overwritten_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x.t().clone()
    z = (before * y).sin()
    x[0].zero_()
    return z.exp() * before


def overwritten_and_returned(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = (x.exp() * y).sin()
    x.add_(z.detach())
    return z, x, x[0], x.t()


class Behind(nn.Module):
    """Hands compiled code what eager code made: a tensor with a history, or two that share memory."""

    def __init__(self, function: Callable[..., Any], first: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.first = function, torch._dynamo.disable(first)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(*self.first(x), y)


def with_history(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = (x.exp() * y).sin()
    x[0].mul_(y[0])
    return z * x.t().cos()


def aliased(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = (a.exp() * y).sin()
    b.mul_(2)
    return z * a.cos()


def doubled(x: torch.Tensor) -> Any:
    return (x * 2,)


def doubled_and_row(x: torch.Tensor) -> Any:
    a = x * 2
    return a, a[0]


class UpdatesInBackward(torch.autograd.Function):
    """A statistic of the tangents (low-precision training scales by it), read and updated in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.b = b
        return x.sin()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gradient = tangent * x.cos() * ctx.b.exp().sin()
        ctx.b.add_(tangent.detach().mean() + ctx.b.exp())
        return gradient * ctx.b, None


class ReadsAndUpdatesInBackward(UpdatesInBackward):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return UpdatesInBackward.forward(ctx, x, b) * b.exp()


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


twice = {"calls": 2}
rows = torch.tensor([3, 1, 0, 2])
CASES: dict[str, Case] = {
    "moving average": lambda: (Holds(moving_average, b=numbers(4)), [leaf(4, 4)], twice),
    "read before and after": lambda: (Holds(read_before_and_after, b=numbers(4)), [leaf(4, 4)], twice),
    "a chain that reads": lambda: (Holds(chain_of_reads, b=numbers(4, 4)), [leaf(4, 4)], twice),
    "counter": lambda: (Holds(counter, n=torch.ones((), dtype=torch.int64)), [leaf(4, 4)], twice),
    "running statistics": lambda: (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), [leaf(8, 4)], twice),
    "fixed statistics": lambda: (nn.BatchNorm1d(4).eval(), [leaf(8, 4)]),
    "cache": lambda: (Holds(cache, b=numbers(6, 4)), [leaf(4, 4), rows], twice),
    "cache with a gradient": lambda: (Holds(cache_with_gradient, b=numbers(6, 4)), [leaf(4, 4), rows], twice),
    "views": lambda: (Holds(views, b=numbers(4, 4)), [leaf(4, 4)], twice),
    "a copy that pays": lambda: (Holds(small_buffer_large_readers, b=numbers(1, 4)), [leaf(4, 4)], twice),
    "two buffers swapped": lambda: (Holds(swapped, b=numbers(4, 4), c=numbers(4, 4)), [leaf(4, 4)], twice),
    "zeroed": lambda: (Holds(zeroed, b=numbers(4)), [leaf(4, 4)], twice),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), [leaf(3, 4)], twice),
    "an input": lambda: (input_overwritten, [numbers(4, 4), leaf(4, 4)]),
    "an input through a view": lambda: (input_overwritten_through_a_view, [numbers(4, 4), leaf(4, 4)]),
    "an input that is returned": lambda: (overwritten_and_returned, [numbers(4, 4), leaf(4, 4)]),
    "an input with a history": lambda: (Behind(with_history, doubled), [leaf(4, 4), leaf(4, 4)], {"fullgraph": False}),
    "two inputs that share memory": lambda: (
        Behind(aliased, doubled_and_row),
        [leaf(4, 4), leaf(4, 4)],
        {"fullgraph": False},
    ),
    "in the backward": lambda: (
        Holds(lambda m, x: UpdatesInBackward.apply(x @ m.w, m.b).exp(), b=torch.zeros(())),
        [leaf(4, 4)],
        twice,
    ),
    "read in the forward, updated in the backward": lambda: (
        Holds(lambda m, x: ReadsAndUpdatesInBackward.apply(x @ m.w, m.b).exp(), b=torch.zeros(())),
        [leaf(4, 4)],
        twice,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


@only_our_warnings()
@pytest.mark.parametrize("plan", PLANS)
def test_two_forwards_before_two_backwards(plan: str) -> None:
    """What the backward updates, the next backward sees, whenever its forward ran."""
    model, x = Holds(lambda m, x: UpdatesInBackward.apply(x @ m.w, m.b).exp(), b=torch.zeros(())), leaf(4, 4)

    def run(backend: Any) -> list[Any]:
        model.b.zero_()
        model.w.grad = None
        given = fresh(x)
        function = model if backend is None else torch.compile(model, backend=backend)
        first, second = function(given), function(given)
        first.sum().backward()
        second.square().sum().backward()
        return [given.grad, model.w.grad, model.b.clone()]

    close(run(tp.aot_eager_backend(planned(PLANS[plan]))), run(None), plan)


def test_a_checkpoint_reads_a_buffer_that_is_overwritten_behind_it() -> None:
    """The gradient of what the forward computed (eager's own recompute reads the new contents)."""

    def plain(m: Any, x: torch.Tensor) -> torch.Tensor:
        return ((x @ m.w) * m.b.sin()).sin().exp()

    def overwritten(inner: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(m: Any, x: torch.Tensor) -> torch.Tensor:
            y = inner(m, x)
            m.b.add_(1)
            return y.cos()

        return run

    def checkpointed(m: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(plain, m, x, use_reentrant=False)

    model, x = Holds(overwritten(checkpointed), b=torch.ones(4)), leaf(4, 4)
    found = {name: step(model, [x], tp.aot_eager_backend(planned(PLANS[name]))) for name in PLANS}
    model.function = overwritten(plain)
    truth = step(model, [x])
    for name, results in found.items():
        close(results, truth, name)
