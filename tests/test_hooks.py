"""PyTorch's memory budget with our costs and our knapsack: asked, obeyed, right gradients, part of its cache keys."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conventions import check_conventions
from hypothesis import given
from hypothesis import strategies as st
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._functorch._aot_autograd.autograd_cache import _get_custom_estimator_solver_uuids

import optpart
import optpart_models
from optpart import hooks
from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.cost.model import build_problem
from optpart.hooks import Estimator, Knapsack, pytorch_hooks
from optpart.planning import capture_joint
from optpart.solver.knapsack import knapsack

# ------------------------------------------------------------------------------------------- the knapsack

items = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=9)


@given(items, st.integers(0, 40))
def test_no_choice_is_better(pairs: list[tuple[int, int]], capacity: int) -> None:
    weights, values = [w for w, _ in pairs], [v for _, v in pairs]
    found = knapsack(weights, values, capacity)
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(pairs)), n) for n in range(len(pairs) + 1))
    best = max(sum(values[i] for i in s) for s in subsets if sum(weights[i] for i in s) <= capacity)
    assert found.proven
    assert found.value == best == sum(values[i] for i in found.taken)
    assert sum(weights[i] for i in found.taken) <= capacity


def test_equal_items_stand_for_each_other() -> None:
    """Of 2,000 equal items the first ones are taken, proven at once; and bytes are large numbers."""
    found = knapsack([3 << 30] * 1000 + [2 << 30] * 1000, [30] * 1000 + [19] * 1000, 10 << 30)
    assert (found.taken, found.proven) == ((0, 1, 1000, 1001), True)


def test_without_work_the_greedy_choice_fits() -> None:
    rng = random.Random(0)
    weights, values = [[rng.randrange(1, 10**6) for _ in range(300)] for _ in range(2)]
    found = knapsack(weights, values, 10**7, work=0.0)
    assert 0 < sum(weights[i] for i in found.taken) <= 10**7
    assert found.value <= knapsack(weights, values, 10**7).value


@pytest.mark.parametrize("wrong", [([1], [], 1), ([-1], [1], 1), ([1], [-1], 1), ([1], [1], -1)])
def test_wrong_numbers(wrong: tuple[list[int], list[int], int]) -> None:
    with pytest.raises(ValueError, match="expected as many, 0 or more"):
        knapsack(*wrong)


# ---------------------------------------------------------------------------------------------- the hooks


@pytest.fixture(scope="module")
def gpt() -> Any:
    return optpart_models.load("gpt", "tiny", {"layers": 3})


@pytest.fixture(scope="module")
def joint(gpt: Any) -> tp.Joint:
    [found] = tp.trace_joint(gpt.model, gpt.batch)
    return found


@pytest.fixture(scope="module")
def captured(joint: tp.Joint) -> Capture:
    return capture_joint(joint)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the knapsack was given, and what it took."""
    seen: list[Any] = []

    def record(*args: Any, **keywords: Any) -> Any:
        seen.append((args, knapsack(*args, **keywords)))
        return seen[-1][1]

    monkeypatch.setattr(hooks, "knapsack", record)
    yield seen
    assert tp.functorch_config.activation_memory_budget_solver == "dp"


def test_estimates_are_the_prices_of_a_captured_graph(captured: Capture) -> None:
    """Every op costs what it costs in a problem of ours; what is no op is a view, and free."""
    estimate, problem = Estimator(), build_problem(captured.graph)
    for node in captured.joint.graph.nodes:
        if node.op == "call_function" and not tp.is_getitem(node):
            o = captured.op_of.get(node)
            assert estimate(node) == (0.0 if o is None else problem.runtime[o]), node


@pytest.mark.parametrize("budget", [0.2, 0.5])  # at 0.8 one of PyTorch's cuts fits already, and nobody is asked
def test_pytorchs_partitioner_runs_with_them(joint: tp.Joint, packed: list[Any], budget: float) -> None:
    static = list(joint.static_lifetime_input_indices)
    with pytorch_hooks(budget):
        assert tp.functorch_config.activation_memory_budget == budget
        forward, backward = tp.min_cut_partition(
            tp.copy_module(joint.module),
            joint.inputs,
            num_fwd_outputs=joint.num_fwd_outputs,
            static_lifetime_input_indices=static,
        )
    check_conventions(joint.module, forward, backward, joint.num_fwd_outputs)
    [((sizes, nanoseconds, capacity), packing)] = packed
    assert packing.proven
    assert 0 < sum(sizes[i] for i in packing.taken) <= capacity < sum(sizes)
    # PyTorch's own knapsack rounds to 1/10,000 of the capacity: with a little more room ours is no worse
    _, theirs, _ = dp_knapsack([s / capacity for s in sizes], list(map(float, nanoseconds)), 1.0)
    taken = sum(sizes[i] for i in theirs)
    assert sum(nanoseconds[i] for i in theirs) <= knapsack(sizes, nanoseconds, max(taken, capacity)).value


@pytest.mark.parametrize("cost_model", ["roofline", "flops"])
def test_gradients(gpt: Any, packed: list[Any], cost_model: str) -> None:
    def gradients(backend: Any) -> list[torch.Tensor]:
        gpt.model.zero_grad(set_to_none=True)
        (gpt.model if backend is None else tp.compile_fresh(gpt.model, backend))(*gpt.batch).backward()
        return [p.grad.clone() for p in gpt.model.parameters()]

    eager = gradients(None)
    with pytorch_hooks(0.4, cost_model=cost_model):
        found = gradients(tp.aot_eager_backend(tp.min_cut_partition))
    assert packed
    assert len(eager) == len(found)
    for a, b in zip(eager, found):
        torch.testing.assert_close(a, b)


def test_cache_keys(packed: list[Any]) -> None:
    def keys(**settings: Any) -> tuple[Any, Any]:
        with pytorch_hooks(0.5, **settings):
            return _get_custom_estimator_solver_uuids(tp.functorch_config)

    assert keys() == keys(cost_model="roofline")
    assert len({keys(), keys(cost_model="flops"), keys(work=1.0)}) == 3
    assert None not in keys()


def test_what_is_wrong_is_said_before_anything_is_compiled() -> None:
    with pytest.raises(ValueError, match="did you mean 'roofline'"), pytorch_hooks(0.5, cost_model="rofline"):
        pass
    with pytest.raises(ValueError, match=r"memory_budget=2: expected PyTorch's, a fraction"), pytorch_hooks(2):
        pass
    assert optpart.pytorch_hooks is pytorch_hooks
    with pytorch_hooks():
        assert isinstance(tp.functorch_config.activation_memory_budget_solver, Knapsack)
        assert tp.functorch_config.activation_memory_budget == 1.0
