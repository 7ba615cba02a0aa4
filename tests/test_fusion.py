"""Merged problems: their plans expand to valid plans of the whole problem, and nothing but inlined values is lost."""

from __future__ import annotations

import random

from cases import BACKWARD, EITHER, FORWARD, Builder
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems, some_plans

from optpart.fusion import Fused, fuse
from optpart.graph import ValueKind
from optpart.liveness import simulate
from optpart.problem import Problem
from optpart.solver.base import Limits
from optpart.strategy import solve
from optpart.validate import validate


def some_fusion(problem: Problem, seed: int) -> Fused:
    rng = random.Random(seed)
    fusible = [rng.random() < 0.8 for _ in problem.graph.ops]
    return fuse(problem, [f and rng.random() < 0.8 for f in fusible], fusible)


@given(problems(most=14), st.integers(0, 1000))
def test_plans_of_the_merged_problem_expand_to_valid_plans(problem: Problem, seed: int) -> None:
    fused = some_fusion(problem, seed)
    for plan in some_plans(fused.problem, seed, moves=6):
        if list(plan.forward) != sorted(plan.forward):
            continue  # an expansion runs the forward in program order
        whole, steps = fused.expand(plan)
        verdict = validate(problem, whole)
        assert verdict.ok, verdict.faults
        finals = [fused.members[o][-1] for o in plan.sequence]
        assert [whole.sequence[at[-1]] for at in steps] == finals
        for o, at in zip(plan.sequence, steps):
            assert tuple(whole.sequence[j] for j in at) == fused.members[o]


@given(problems(most=14))
def test_nothing_inlined_changes_nothing(problem: Problem) -> None:
    no = [False] * len(problem.graph.ops)
    assert fuse(problem, no, no).problem == problem


@given(problems(most=14), st.integers(0, 1000))
def test_only_inlined_values_are_gone(problem: Problem, seed: int) -> None:
    fused = some_fusion(problem, seed)
    merged, whole = fused.problem.graph, problem.graph
    assert {m for inside in fused.members for m in inside} == set(range(len(whole.ops)))
    inlined = set(range(len(whole.ops))) - {inside[-1] for inside in fused.members}
    left = [v for v in whole.values if v.producer not in inlined]
    assert [(v.name, v.nbytes, v.kind, v.savable) for v in merged.values] == [
        (v.name, v.nbytes, v.kind, v.savable) for v in left
    ]
    for before, after in (
        (whole.forward_outputs, merged.forward_outputs),
        (whole.backward_outputs, merged.backward_outputs),
    ):
        assert [whole.values[v].name for v in before] == [merged.values[v].name for v in after]


def gelu() -> Problem:
    """A matmul, a decomposed activation, a matmul; the derivative's pieces depend on no tangent.

    x ─ mm ─ (h 100) ┬ scale (100) ─ erf (100) ┬ y (100) ─ mm_2 ─ loss
                     └────────────────────────┴ slope (100) ┄ read by dh        t ─ dy ─ dh
    """
    b = Builder("gelu").given(10, "x").given(10, "t", kind=ValueKind.TANGENT)
    b.op("h", "x", FORWARD, 100, time=50, cheap=False)
    b.op("scale", "h", FORWARD, 100, time=20).op("erf", "scale", FORWARD, 100, time=20)
    b.op("y", "h erf", FORWARD, 100, time=30).op("loss", "y", FORWARD, 10, time=50, cheap=False)
    b.op("slope", "h erf", EITHER, 100, time=30)
    b.op("dy", "t", BACKWARD, 100, time=50, cheap=False).op("dw", "y t", BACKWARD, 10, time=50, cheap=False)
    b.op("dh", "dy slope", BACKWARD, 100, time=30).op("dx", "dh", BACKWARD, 10, time=50, cheap=False)
    return b.problem("loss", "dw dx")


def test_an_activation_is_one_kernel() -> None:
    problem = gelu()
    pointwise = [op.name in ("scale", "erf", "y", "slope", "dh") for op in problem.graph.ops]
    fused = fuse(problem, pointwise, pointwise)
    names = [[problem.graph.ops[m].name for m in inside] for inside in fused.members]
    assert names == [["h"], ["scale", "erf", "y"], ["loss"], ["scale", "erf", "slope"], ["dy"], ["dw"], ["dh"], ["dx"]]
    time = dict(zip((n[-1] for n in names), fused.problem.runtime))
    assert time["h"] == 50
    # scale reads h: half of its 20; erf stays inside; y writes, and has read h already: a third of 30
    assert time["y"] == 10 + 0 + 10
    merged = fused.problem.graph
    assert [merged.values[v].name for v in merged.ops[1].reads] == ["h"]


def test_the_solver_answers_on_the_merged_problem() -> None:
    problem = gelu()
    pointwise = [op.name in ("scale", "erf", "y", "slope", "dh") for op in problem.graph.ops]
    fused = fuse(problem, pointwise, pointwise)
    result = solve(fused.problem, 0.0, Limits(time_limit=10))
    assert result.plan is not None
    assert simulate(fused.problem, result.plan).peak_bytes <= (result.budget_bytes or 0)
    assert validate(problem, fused.expand(result.plan)[0]).ok
