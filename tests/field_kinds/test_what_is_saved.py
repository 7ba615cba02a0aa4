"""What the default plan keeps, where others keep too much or redo too much."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import leaf, step
from torch import nn

from optpart import torch_private as tp
from optpart.graph import Graph
from optpart.partitioner import Partition, Partitioner


def partition_of(fn: Any, args: list[Any], **settings: Any) -> Partition:
    partitioner = Partitioner(on_failure="raise", **settings)
    step(fn, args, tp.aot_eager_backend(partitioner))
    (found,) = partitioner.partitions
    assert found.fallback is None
    return found


def parts(found: Partition) -> tuple[Graph, Any]:
    assert found.problem is not None
    assert found.result is not None
    assert found.result.plan is not None
    return found.problem.graph, found.result.plan


def saved_names(found: Partition) -> list[str]:
    graph, plan = parts(found)
    return [graph.values[v].name for v in plan.saved(graph)]


def saved_bytes(found: Partition) -> int:
    graph, plan = parts(found)
    return sum(graph.values[v].nbytes for v in plan.saved(graph) if graph.values[v].producer is not None)


class BigInBackward(torch.autograd.Function):
    """Only the backward needs the large outer product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (tangent[:, :, None] * (x[:, :, None] @ x[:, None, :])).sum(-1)


def test_what_only_the_backward_needs_runs_there() -> None:
    found = partition_of(lambda x, w: BigInBackward.apply(x @ w).exp(), [leaf(4, 32), leaf(32, 32)])
    graph, plan = parts(found)
    (product,) = [op.id for op in graph.ops if op.target == "aten.bmm.default"]
    assert product not in plan.forward
    assert saved_bytes(found) <= 3 * 4 * 32 * 4


def test_views_and_factories_are_made_again() -> None:
    """Zeros and transposes are no values to keep."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(64, 64)
        return (x.t() @ w + zeros).sin() * zeros.t()

    names = saved_names(partition_of(fn, [leaf(64, 64), leaf(64, 64)]))
    assert not [n for n in names if "zeros" in n or n in ("t", "permute", "transpose")]


def test_a_view_and_its_base_are_counted_once() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y.sin().sum() + y.view(-1).cos().sum() + y.t().exp().sum()

    assert saved_bytes(partition_of(fn, [leaf(8, 8), leaf(8, 8)])) == 8 * 8 * 4


def test_one_mask_not_two_products() -> None:
    """Of a dropout the mask is kept, one byte an element, not the product."""
    found = partition_of(lambda x: F.dropout(x @ x.T, 0.5).sum(), [leaf(32, 32)])
    graph, plan = parts(found)
    kept = [graph.values[v] for v in plan.saved(graph) if graph.values[v].producer is not None]
    assert [v.nbytes for v in kept] == [32 * 32]


def test_a_size_is_saved_as_a_size() -> None:
    """Of a tensor whose shape alone the backward reads, the shape is kept."""
    seen: list[Any] = []
    ours = Partitioner(on_failure="raise")

    def partition(*args: Any, **kw: Any) -> Any:
        seen.append(ours(*args, **kw))
        return seen[-1]

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (w.sum(0).expand(x.sin().shape[0], -1) * 2).sum(0)

    step(fn, [leaf(6, 8), leaf(8, 8)], tp.aot_eager_backend(partition), dynamic=True)
    ((_, backward),) = seen
    given = [n for n in backward.graph.find_nodes(op="placeholder") if not tp.is_tangent(n)]
    assert given
    assert all(tp.is_sym_node(n) for n in given)


def test_a_costly_chain_on_a_parameter_is_not_run_again() -> None:
    """A parameter is there anyway, but a long chain that hangs off it costs time: its small end is kept."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scale = w
        for _ in range(60):
            scale = (scale @ w).tanh()
        return (x * scale[0]).sin()

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(64, 64) / 8, requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fn(x, self.w)

    graph, plan = parts(partition_of(Chain(), [leaf(4, 64)]))
    again = [graph.ops[o].target for o in plan.recomputes()]
    assert "aten.mm.default" not in again


@pytest.mark.parametrize("pair", [(1.0, 0.5), (0.5, 0.0)])
def test_a_smaller_budget_is_no_larger_peak(pair: tuple[float, float]) -> None:
    """Parameters outweigh activations here: fractions of everything change nothing, fractions of the range do."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
    peaks = [_peak(partition_of(net, [leaf(64, 64)], memory_budget=budget)) for budget in pair]
    assert peaks[1] < peaks[0]


def _peak(found: Partition) -> int:
    from optpart.liveness import simulate

    assert found.problem is not None
    return simulate(found.problem, parts(found)[1]).peak_bytes


def test_one_graph_one_plan() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    first, second = (partition_of(net, [leaf(4, 8)], memory_budget=0.0) for _ in range(2))
    assert parts(first) == parts(second)
