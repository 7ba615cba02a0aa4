"""Waits: whatever order respects them and the data flow, the peak stays under the limit."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from cases import BACKWARD, FORWARD, Builder
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems, some_plans

from optpart.graph import ValueKind
from optpart.liveness import resident_bytes, simulate, workspaces
from optpart.order import waits
from optpart.plans import Plan
from optpart.problem import Problem


def peak_of_order(problem: Problem, plan: Plan, order: list[int]) -> int:
    """The peak when the plan's steps run in another order; each read keeps the instance that it has in the plan."""
    graph, split, last = problem.graph, len(plan.forward), len(plan.sequence) - 1
    readers = reads_by_instance(problem, plan)
    left = {i: set(r) for i, r in readers.items()}
    instances = [i for i in simulate(problem, plan).instances if i.start <= last]
    born = {(i.value, i.start): i for i in instances if graph.values[i.value].kind is ValueKind.COMPUTED}
    tangents = sum(problem.sizes[i.value] for i in instances if (i.value, i.start) not in born)
    spaces = workspaces(problem, plan)
    alive: set[tuple[int, int]] = set()
    peak = level = resident_bytes(problem)
    for position, j in enumerate(order):
        alive |= {k for k in born if k[1] == j}
        level = resident_bytes(problem) + sum(problem.sizes[v] for v, _ in alive)
        level += spaces[j] + (tangents if position >= split else 0)
        peak = max(peak, level)
        for k in list(alive):
            left.setdefault(k, set()).discard(j)
            if not left[k] and born[k].end < last:
                alive.remove(k)
    return peak


def reads_by_instance(problem: Problem, plan: Plan) -> dict[tuple[int, int], set[int]]:
    found: dict[tuple[int, int], set[int]] = {}
    newest: dict[int, int] = {}
    in_forward = set(plan.forward)
    for j, o in enumerate(plan.sequence):
        op = problem.graph.ops[o]
        for v in op.reads_again if j >= len(plan.forward) and o in in_forward else op.reads:
            if v in newest:
                found.setdefault((v, newest[v]), set()).add(j)
        newest.update((v, j) for v in op.creates)
    return found


def any_order(problem: Problem, plan: Plan, waiting: Mapping[int, tuple[int, ...]], rng: random.Random) -> list[int]:
    """A random order of the steps, each pass on its own, that keeps data flow and waits; hungry for early recomputes."""
    after: dict[int, set[int]] = {j: set(waiting.get(j, ())) for j in range(len(plan.sequence))}
    for (_, start), readers in reads_by_instance(problem, plan).items():
        for j in readers:
            after[j].add(start)
    order: list[int] = []
    for side in (range(len(plan.forward)), range(len(plan.forward), len(plan.sequence))):
        todo = list(side)
        while todo:
            ready = [j for j in todo if after[j] <= set(order)]
            order.append(rng.choice(ready) if rng.random() < 0.5 else ready[-1])
            todo.remove(order[-1])
    return order


@given(problems(most=10), st.integers(0, 1000), st.floats(0, 0.3))
def test_no_order_that_waits_exceeds_the_limit(problem: Problem, seed: int, slack: float) -> None:
    fusible = [False] * len(problem.graph.ops)
    for plan in some_plans(problem, seed, moves=4):
        limit = int(simulate(problem, plan).peak_bytes * (1 + slack))
        waiting = waits(problem, plan, fusible, limit, small=0.0)
        rng = random.Random(seed)
        for _ in range(5):
            assert peak_of_order(problem, plan, any_order(problem, plan, waiting, rng)) <= limit


def test_the_measure_of_these_tests_is_the_simulators() -> None:
    problem = twice()
    plan = redo(problem)
    assert peak_of_order(problem, plan, list(range(len(plan.sequence)))) == simulate(problem, plan).peak_bytes


def twice() -> Problem:
    """Two chains whose large middles are recomputed one after the other.

    x ─ a ─ (big_a 100) ┐        | again big_a ─ da
    x ─ b ─ (big_b 100) ┴─ loss  | again big_b ─ db
    """
    b = Builder("twice").given(1, "x").given(1, "t", kind=ValueKind.TANGENT)
    b.op("big_a", "x", FORWARD, 100).op("small_a", "big_a", FORWARD, 1)
    b.op("big_b", "x", FORWARD, 100).op("small_b", "big_b", FORWARD, 1)
    b.op("loss", "small_a small_b", FORWARD, 1)
    b.op("da", "big_a t", BACKWARD, 1).op("db", "big_b t", BACKWARD, 1)
    return b.problem("loss", "da db")


def redo(problem: Problem) -> Plan:
    ids = {op.name: op.id for op in problem.graph.ops}
    forward = [ids[n] for n in ("big_a", "small_a", "big_b", "small_b", "loss")]
    return Plan(tuple(forward), tuple(ids[n] for n in ("big_a", "da", "big_b", "db")))


def test_the_second_recompute_waits_for_the_first_to_be_read() -> None:
    problem = twice()
    plan = redo(problem)
    limit = simulate(problem, plan).peak_bytes
    found = waits(problem, plan, [False] * 7, limit)
    again_b, da = 7, 6
    assert found[again_b] == (da,)
    assert found[2] == (1,), "in the forward, the second large value waits for the reader of the first"


def test_nothing_waits_where_everything_fits_at_once() -> None:
    problem = twice()
    assert waits(problem, redo(problem), [False] * 7, 10_000) == {}


def test_values_inside_fused_kernels_have_no_storage() -> None:
    problem = twice()
    plan = redo(problem)
    fusible = [op.name != "loss" for op in problem.graph.ops]
    assert waits(problem, plan, fusible, simulate(problem, plan).peak_bytes) == {}


@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_below_the_plans_own_peak_is_taken_as_that(limit: int) -> None:
    problem = twice()
    plan = redo(problem)
    peak = simulate(problem, plan).peak_bytes
    assert waits(problem, plan, [False] * 7, limit) == waits(problem, plan, [False] * 7, peak)
