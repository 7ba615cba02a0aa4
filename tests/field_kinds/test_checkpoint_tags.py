"""Activation checkpointing: gradients are right, and the user's tags decide what is saved and what runs again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import PLANS, Case, leaf, planned, run_case, step
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.partitioner import Partitioner
from optpart.plans import Plan

aten = torch.ops.aten
MUST_SAVE, PREFER_SAVE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
MUST_RECOMPUTE, PREFER_RECOMPUTE = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE


def again(body: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(body, *args, use_reentrant=False)


def tagged(body: Callable[..., Any], *args: Any, of: Any, others: Any, ops: tuple[Any, ...] = (aten.mm.default,)) -> Any:
    """A checkpoint whose ``ops`` are tagged ``of``, and all others ``others``."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return of if op in ops else others

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(body, *args, use_reentrant=False, context_fn=contexts)


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() @ w).cos() * x.exp()


def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x @ w, 0.5).sin() @ w, 0.3)


def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x @ w, (8,)).sin() * x.topk(2, 1)[0].sum()


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).sin()


def parts(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.sin().chunk(2, 1), x @ w


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return again(lambda x, w: again(block, x.sin(), w).cos() * x, x, w).sin()


class SameBlockTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return again(self.block, x).sin() + again(self.block, x.cos())


class WithStatistics(nn.Module):
    """Eager runs the statistics' update once more in the recompute, so the default partition is the yardstick."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return again(self.block, again(self.block, x)).sin()


def retained(out: torch.Tensor, generator: torch.Generator) -> None:
    out.sum().backward(retain_graph=True)
    out.square().sum().backward()


def two() -> list[torch.Tensor]:
    return [leaf(8, 8), leaf(8, 8)]


CASES: dict[str, Case] = {
    "one": lambda: (lambda x, w: again(block, x, w).sin(), two()),
    "nested": lambda: (nested, two()),
    "consecutive": lambda: (lambda x, w: again(block, again(block, again(block, x, w), w), w), two()),
    "the same block twice": lambda: (SameBlockTwice(), [leaf(4, 8)]),
    "one op alone": lambda: (lambda x: again(torch.sin, x) * 1.0, [leaf(4, 4)]),
    "output returned and read": lambda: (lambda x, w: (lambda y: (y, y @ w))(again(block, x, w)), two()),
    "several outputs": lambda: (lambda x, w: again(parts, x, w), two()),
    "dropout, two steps": lambda: (lambda x, w: again(dropped, x, w).sin(), two(), {"calls": 2}),
    "attention with dropout": lambda: (
        lambda q, k, v: again(attention, q, k, v) * q,
        [leaf(2, 2, 8, 4), leaf(2, 2, 8, 4), leaf(2, 2, 8, 4)],
    ),
    "batch norm": lambda: (WithStatistics(), [leaf(2, 2, 4, 4)], {"yardsticks": ("default",)}),
    "backward twice": lambda: (lambda x, w: again(dropped, x, w), two(), {"loss": retained, "yardsticks": ("default",)}),
    "tags: the other way round": lambda: (
        lambda x, w: tagged(block, x, w, of=MUST_RECOMPUTE, others=MUST_SAVE).sin(),
        two(),
    ),
    "tags: results of multi-output ops": lambda: (
        lambda x, w: tagged(
            normalized, x, w, of=MUST_SAVE, others=MUST_RECOMPUTE, ops=(aten.native_layer_norm.default, aten.topk.default)
        ),
        two(),
    ),
}
for keep in (MUST_SAVE, PREFER_SAVE):
    for redo in (MUST_RECOMPUTE, PREFER_RECOMPUTE):
        CASES[f"tags: {keep.name} and {redo.name}"] = lambda keep=keep, redo=redo: (
            lambda x, w: tagged(block, x, w, of=keep, others=redo).sin(),
            two(),
        )


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


def runs(captured: Capture, plan: Plan, target: str) -> list[int]:
    return [plan.counts[op.id] for op in captured.graph.ops if op.target == target and plan.counts.get(op.id)]


def seen_by(fn: Callable[..., Any], args: list[torch.Tensor], plan: str) -> tuple[Capture, Plan]:
    seen: list[tuple[Capture, Plan]] = []
    step(fn, args, tp.aot_eager_backend(planned(PLANS[plan], seen)))
    (one,) = seen
    return one


@pytest.mark.parametrize("plan", PLANS)
def test_tags_decide(plan: str) -> None:
    """What must be saved runs once, what must be recomputed is not saved, in every plan that passes the checker."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return tagged(block, x, w, of=MUST_SAVE, others=MUST_RECOMPUTE).sin()

    captured, made = seen_by(fn, two(), plan)
    graph = captured.graph
    producers = {p for v in made.saved(graph) if (p := graph.values[v].producer) is not None}
    saved = {graph.ops[p].target for p in producers if captured.cores[p].meta.get("recompute") is MUST_RECOMPUTE}
    assert not saved
    assert set(runs(captured, made, "aten.mm.default")) == {1}
    assert all(n > 1 for n in runs(captured, made, "aten.exp.default"))


@pytest.mark.parametrize("settings", [{}, {"memory_budget": 0.0}, {"memory_budget": 1.0}])
def test_our_partition_obeys_tags(settings: dict[str, Any]) -> None:
    """At every budget, also where PyTorch's ignores them (budget 0)."""
    partitioner = Partitioner(on_failure="raise", **settings)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return tagged(block, x, w, of=MUST_SAVE, others=PREFER_RECOMPUTE).sin()

    step(fn, two(), tp.aot_eager_backend(partitioner))
    (found,) = partitioner.partitions
    graph, plan = found.problem.graph, found.result.plan
    again_ = {graph.ops[o].target for o in plan.recomputes()}
    assert "aten.mm.default" not in again_
    assert "aten.exp.default" in again_
