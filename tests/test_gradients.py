"""Gradients of whole models and of random programs, and the check that compares them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import PLANS, compare, leaf, planned, run_case, step
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import optpart
import optpart_models as zoo
from optpart import torch_private as tp
from optpart.partitioner import Partitioner

every_model = pytest.mark.parametrize("name", zoo.names())


@every_model
def test_models(name: str) -> None:
    """The default plan, bit for bit PyTorch's default partition."""
    loaded = zoo.load(name, "tiny")
    expected = step(loaded.model, loaded.batch, tp.aot_eager_backend(tp.default_partition))
    ours = Partitioner(on_failure="raise")
    compare(step(loaded.model, loaded.batch, tp.aot_eager_backend(ours)), expected, name)


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("plan", ["all again", "repeats 1", "walk 1"])
def test_models_by_plans_that_no_solver_would_make(name: str, plan: str) -> None:
    loaded = zoo.load(name, "tiny")
    expected = step(loaded.model, loaded.batch, tp.aot_eager_backend(tp.default_partition))
    compare(step(loaded.model, loaded.batch, tp.aot_eager_backend(planned(PLANS[plan]))), expected, name)


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("budget", [None, 1.0, 0.5, 0.2, 0.0])
def test_models_at_budgets(name: str, budget: float | None) -> None:
    loaded = zoo.load(name, "tiny")
    partitioner = Partitioner(memory_budget=budget, on_failure="raise")
    check = optpart.check_gradients(loaded.model, loaded.batch, partitioner=partitioner)
    assert check.equal_bitwise, check
    assert check.agree, check
    assert check.fallbacks == 0
    assert check.compared > 2


# ----------------------------------------------------------------------------------- random programs


def program(seed: int, length: int = 12) -> Callable[..., Any]:
    """A function of two 8x8 tensors: ``length`` random steps on what there is, and one to three results."""

    def step_of(draw: random.Random) -> Callable[..., torch.Tensor]:
        scale = draw.uniform(0.5, 1.5)
        return draw.choice(
            [
                lambda a, b: (a @ b) * 0.2,
                lambda a, b: a + b * scale,
                lambda a, b: a.sin() * b.cos(),
                lambda a, b: torch.tanh(a),
                lambda a, b: a.t() * scale,
                lambda a, b: torch.cat([a[:4], b[4:]]),
                lambda a, b: torch.cat(a.chunk(2, 1)[::-1], 1),
                lambda a, b: F.layer_norm(a, (8,)),
                lambda a, b: a.softmax(-1) * b,
                lambda a, b: F.dropout(a, 0.3),
                lambda a, b: a * b.detach().exp().clamp(max=2),
                lambda a, b: a.reshape(4, 16).cumsum(1).view(8, 8) * 0.1,
                lambda a, b: torch.where(a > 0, a, b * scale),
                lambda a, b: a.expand(2, 8, 8).mean(0) + b.amax(0),
                lambda a, b: a.clone().mul_(2).sub_(b),
                lambda a, b: checkpoint(lambda a, b: F.dropout(a @ b, 0.2).sin(), a, b, use_reentrant=False),
                lambda a, b: a.topk(3, 1)[0].sum(1, keepdim=True) + b,
            ]
        )

    draw = random.Random(seed)
    steps = [(step_of(draw), draw.random(), draw.random()) for _ in range(length)]
    results = [draw.random() for _ in range(draw.randint(1, 3))]

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        there = [x, w]
        for run, first, second in steps:
            there.append(run(there[int(first * len(there))], there[int(second * len(there))]))
        return (*(there[2 + int(r * length)] for r in results), sum(there))  # all is read: PyTorch drops dead draws

    return fn


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    run_case(f"program {seed}", lambda: (program(seed), [leaf(8, 8), leaf(8, 8)]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 66))
def test_more_random_programs(seed: int) -> None:
    run_case(f"program {seed}", lambda: (program(seed, 24), [leaf(8, 8), leaf(8, 8)]), tuple(PLANS))


# ------------------------------------------------------------------------------------------ the check


class Tampered(Partitioner):
    """The first sine becomes a cosine."""

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        forward, backward = super().__call__(gm, joint_inputs, **kwargs)
        nodes = [*forward.graph.nodes, *backward.graph.nodes]
        next(n for n in nodes if n.target is torch.ops.aten.sin.default).target = torch.ops.aten.cos.default
        forward.recompile()
        backward.recompile()
        return forward, backward


def test_the_check_sees_a_wrong_gradient() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cos().sum()

    good = optpart.check_gradients(fn, [leaf(4, 4)])
    assert (good.equal_bitwise, good.agree, good.fallbacks) == (True, True, 0)
    bad = optpart.check_gradients(fn, [leaf(4, 4)], partitioner=Tampered(on_failure="raise"))
    assert not bad.equal_bitwise
    assert not bad.agree
    assert bad.max_abs_error > 0.01


class ReadsThenUpdates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("b", torch.randn(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.w * self.b.cos()).sin()
        self.b.mul_(0.5)
        return y.exp()


def test_where_min_cut_differs_min_cut_is_reported() -> None:
    """PyTorch 2.13's min-cut reads the updated buffer in the backward."""
    check = optpart.check_gradients(ReadsThenUpdates(), [leaf(64, 64)])
    assert check.equal_bitwise
    assert check.agree
    assert check.min_cut_agrees is False


def test_the_check_leaves_everything_as_it_was() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), leaf(8, 4)
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), x)]
    check = optpart.check_gradients(model, [x], loss=lambda y: y.square().sum())
    assert check.equal_bitwise
    assert all(torch.equal(a, b) for a, b in zip((*model.parameters(), *model.buffers(), x), before))
    assert x.grad is None
    assert all(p.grad is None for p in model.parameters())


def test_nothing_to_check() -> None:
    with pytest.raises(ValueError, match="no tensor that needs a gradient"):
        optpart.check_gradients(lambda x: x.detach(), [leaf(2, 2)])
