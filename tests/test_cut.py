"""The cut against exhaustive search on small graphs, and what is known by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cases import BACKWARD, EITHER, FORWARD, Builder, four_inputs, ids, op_ids
from hypothesis import given, settings
from strategies import seeds

from optpart.formulation.cut import CutResult, charged_bytes, hull, min_saved_bytes
from optpart.formulation.cut_ilp import PLAN_CLASS, min_recompute
from optpart.formulation.network import NoPlan
from optpart.graph import Region, ValueKind
from optpart.liveness import simulate
from optpart.problem import Problem, bare_problem
from optpart.random_graphs import random_joint
from optpart.solver.base import Limits, Status
from optpart.solver.exhaustive import one_copy_options
from optpart.units import Microseconds
from optpart.validate import validate

Point = tuple[float, float]


# ------------------------------------------------------------------------------ against exhaustive search


def small(seed: int) -> tuple[Problem, frozenset[int], bool]:
    """A random problem (some ops take no time), some banned ops, and whether inputs are free."""
    rng = random.Random(seed)
    problem = random_joint(seed, rng.randint(2, 11))
    problem = replace(problem, runtime=tuple(Microseconds(t * (rng.random() > 0.2)) for t in problem.runtime))
    banned = frozenset(op.id for op in problem.graph.ops if rng.random() < 0.15)
    return problem, banned, rng.random() < 0.3


def all_points(problem: Problem, banned: frozenset[int], inputs_free: bool) -> list[Point]:
    """(saved bytes, recompute time) of every plan of the class, by enumeration, sorted."""
    weights = charged_bytes(problem, inputs_free)
    points = set()
    for option in one_copy_options(problem):
        weight = option.weight(weights)
        if weight is not None and not banned & option.forward & option.backward:
            points.add((weight, option.recompute_time))
    return sorted(points)


def assert_honest(problem: Problem, result: CutResult, inputs_free: bool) -> None:
    """The plan is valid, and its numbers are the checker's and the simulator's."""
    verdict, live = validate(problem, result.plan), simulate(problem, result.plan)
    assert verdict.faults == ()
    assert result.saved == set(result.plan.saved(problem.graph))
    assert result.recompute_time == verdict.recompute_time == live.recompute_time
    if not inputs_free:
        assert result.saved_bytes == verdict.saved_bytes == live.saved_bytes


def lower_hull(points: Sequence[Point]) -> list[Point]:
    """Corners of the lower convex hull up to the point of least time: those that some price of time makes best.

    Slow and obvious: a corner is a point that no segment between two others passes below or through.
    """
    front = [p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]

    def below(a: Point, b: Point, p: Point) -> bool:
        return a[0] < p[0] < b[0] and a[1] + (b[1] - a[1]) * (p[0] - a[0]) / (b[0] - a[0]) <= p[1] + 1e-9

    return [p for p in front if not any(below(a, b, p) for a, b in itertools.combinations(front, 2))]


@settings(max_examples=400)
@given(seeds)
def test_least_saved_bytes_is_what_exhaustive_search_finds(seed: int) -> None:
    problem, banned, inputs_free = small(seed)
    points = all_points(problem, banned, inputs_free)
    if not points:
        with pytest.raises(NoPlan):
            min_saved_bytes(problem, banned, inputs_free)
        return
    result = min_saved_bytes(problem, banned, inputs_free)
    assert (result.saved_bytes, result.recompute_time) == points[0]
    assert not any(o in banned for o in result.plan.recomputes())
    again = {o for o in result.plan.backward if problem.graph.ops[o].region is not BACKWARD}
    assert result.cut.rerun == again  # nothing else is on the sink's side
    assert_honest(problem, result, inputs_free)


@settings(max_examples=200)
@given(seeds)
def test_hull_is_the_lower_hull_of_all_plans(seed: int) -> None:
    problem, banned, inputs_free = small(seed)
    points = all_points(problem, banned, inputs_free)
    if points:
        corners = hull(problem, banned, inputs_free)
        assert [(c.saved_bytes, c.recompute_time) for c in corners] == lower_hull(points)
        for corner in corners:
            assert_honest(problem, corner, inputs_free)


@settings(max_examples=120)
@given(seeds)
def test_integer_program_is_optimal_at_every_limit(seed: int) -> None:
    problem, banned, inputs_free = small(seed)
    points = all_points(problem, banned, inputs_free)
    for byte_limit in sorted({int(w) + more for w, _ in points[:40:4] for more in (-1, 0, 3)}):
        result = min_recompute(problem, byte_limit, banned=banned, inputs_free=inputs_free)
        best = min((t for w, t in points if w <= byte_limit), default=None)
        assert result.plan_class == PLAN_CLASS
        if best is None:
            assert result.status is Status.INFEASIBLE
            assert result.plan is None
            continue
        assert result.status is Status.OPTIMAL
        assert result.plan is not None
        verdict = validate(problem, result.plan)
        assert verdict.faults == ()
        assert verdict.recompute_time == best
        assert result.overhead == result.bound == pytest.approx(best / problem.total_time)
        assert result.gap == 0
        saved = sum(charged_bytes(problem, inputs_free)[v] or 0 for v in result.plan.saved(problem.graph))
        assert saved <= byte_limit


def test_solvers_agree_on_the_integer_program() -> None:
    problem = random_joint(5, 60)
    corners = hull(problem)
    byte_limit = (corners[0].saved_bytes + corners[1].saved_bytes) // 2
    results = [min_recompute(problem, byte_limit, solver=s) for s in ("highs", "scip", "cp-sat")]
    assert [r.status for r in results] == [Status.OPTIMAL] * 3
    assert len({r.objective for r in results}) == 1
    assert all(r.progress[-1].gap == 0 for r in results)


def test_at_a_limit_the_best_plan_so_far_comes_back_with_its_bound() -> None:
    problem = random_joint(11, 150)
    corners = hull(problem)
    byte_limit = corners[1].saved_bytes - 8
    result = min_recompute(problem, byte_limit, Limits(time_limit=0.0))
    assert result.status is Status.FEASIBLE
    assert result.plan is not None
    assert not result.deterministic
    assert simulate(problem, result.plan).saved_bytes <= byte_limit
    assert result.bound is not None
    assert result.overhead is not None
    exact = min_recompute(problem, byte_limit)
    assert exact.status is Status.OPTIMAL
    assert exact.overhead is not None
    assert 0 < result.bound <= exact.overhead <= result.overhead
    (w0, t0), (w1, t1) = ((c.saved_bytes, c.recompute_time) for c in corners[:2])
    on_the_hull = t0 - (t0 - t1) * (byte_limit - w0) / (w1 - w0)
    assert result.bound * problem.total_time >= on_the_hull - 1e-6


def test_a_work_limit_repeats_itself() -> None:
    problem = random_joint(11, 150)
    corners = hull(problem)
    first, second = (min_recompute(problem, corners[1].saved_bytes - 8, Limits(work=1)) for _ in range(2))
    assert first.deterministic
    assert first.plan == second.plan
    assert first.objective_bound == second.objective_bound


# -------------------------------------------------------------------------------------- known by hand


def test_running_example_saves_the_sum_of_its_four_inputs() -> None:
    problem = four_inputs()
    result = min_saved_bytes(problem)
    assert (result.saved, result.saved_bytes) == (ids(problem, "add_2"), 32)
    assert tuple(result.plan.recomputes()) == op_ids(problem, "cos")
    inputs_free = min_saved_bytes(problem, inputs_free=True)
    assert (inputs_free.saved, inputs_free.saved_bytes) == (ids(problem, "a b c d"), 0)
    corners = [(c.saved_bytes, c.recompute_time) for c in hull(problem)]
    assert corners == [(32, 1.0), (64, 0.0)]


def test_ops_that_are_not_cheap_are_recomputed_only_when_asked() -> None:
    """x ── mm ── gelu ──> y │ g = back(t, mm, gelu): gelu is cheap, mm is not."""
    b = Builder("mlp").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("mm", "w", FORWARD, 100, cheap=False).op("gelu", "mm", FORWARD, 100).op("y", "gelu", FORWARD, 8)
    problem = b.op("g", "t mm gelu", BACKWARD, 8).problem("y", "g")
    assert min_saved_bytes(problem).saved == ids(problem, "mm")
    assert min_saved_bytes(problem, cheap_only=False).saved == frozenset()
    assert min_saved_bytes(problem, banned=frozenset(op_ids(problem, "gelu"))).saved == ids(problem, "mm gelu")


def test_a_generator_state_is_saved_where_a_random_op_is_recomputed() -> None:
    """The mask (100 bytes) can be drawn again from a state of 10, and not from one of 200."""
    for state, saved in ((10, "drop_state"), (200, "drop")):
        b = Builder("dropout").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
        b.op("drop", "w", FORWARD, 100, state=state).op("y", "drop", FORWARD, 8)
        problem = b.op("g", "t drop", BACKWARD, 8).problem("y", "g")
        result = min_saved_bytes(problem)
        assert result.saved == ids(problem, saved)
        assert_honest(problem, result, False)


def test_an_op_that_only_the_backward_needs_runs_there_and_needs_no_state() -> None:
    """A random EITHER op draws once wherever it runs; saving its big result would be the same draw for more bytes."""
    b = Builder("late").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("y", "w", FORWARD, 8).op("noise", "w", EITHER, 100, recomputable=False, state=16)
    problem = b.op("g", "t noise", BACKWARD, 8).problem("y", "g")
    result = min_saved_bytes(problem)
    assert result.saved == frozenset()
    assert result.plan.backward == op_ids(problem, "noise g")


def test_outputs_of_one_op_are_saved_one_by_one_and_recomputed_together() -> None:
    """norm gives y (100), mean (4) and scale (4); only the last two are read in the backward."""
    b = Builder("norm").given(50, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("norm", "x", FORWARD, {"y": 100, "mean": 4, "scale": 4}).op("z", "y", FORWARD, 8)
    problem = b.op("g", "t mean scale", BACKWARD, 8).problem("z", "g")
    assert min_saved_bytes(problem).saved == ids(problem, "mean scale")
    both = b.op("h", "t x", BACKWARD, 8).problem("z", "g h")  # x is saved anyway, so norm can run again for nothing
    assert min_saved_bytes(both).saved == ids(both, "x")


def test_what_a_forward_op_waits_for_runs_in_the_forward() -> None:
    """draw_2 (FORWARD) comes after draw_1, which only the backward needs: drawing draw_1 later would swap the two."""
    b = Builder("draws").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("draw_1", "w", EITHER, 40, recomputable=False).op("draw_2", "w", FORWARD, 8, after=["draw_1"])
    problem = b.op("g", "t draw_1", BACKWARD, 8).problem("draw_2", "g")
    result = min_saved_bytes(problem)
    assert result.saved == ids(problem, "draw_1")
    assert result.plan.forward == op_ids(problem, "draw_1 draw_2")
    assert_honest(problem, result, False)


def test_what_a_forward_op_waits_for_may_run_again() -> None:
    """Here draw_1 is no draw: it has to run early, and again in the backward rather than be saved."""
    b = Builder("again").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("draw_1", "w", EITHER, 40).op("draw_2", "w", FORWARD, 8, after=["draw_1"])
    problem = b.op("g", "t draw_1", BACKWARD, 8).problem("draw_2", "g")
    result = min_saved_bytes(problem)
    assert (result.saved, result.recompute_time) == (frozenset(), 1)
    assert_honest(problem, result, False)


def test_an_op_that_nobody_needs_runs_nowhere_and_costs_nothing() -> None:
    """In the backward `dead` would need x (64 bytes), from which f could then be had for nothing; in the forward
    it would need u there, which then had to be saved."""
    b = Builder("dead").given(8, "w", kind=ValueKind.STATIC).given(64, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 32).op("y", "f", FORWARD, 8)
    b.op("u", "w", EITHER, 100, recomputable=False).op("dead", "x u", EITHER, 8)
    problem = b.op("g", "t u f", BACKWARD, 8).problem("y", "g")
    result = min_saved_bytes(problem)
    assert result.saved == ids(problem, "f")
    assert_honest(problem, result, False)


def test_hull_has_corners_only() -> None:
    """fa (90 bytes or 9 units of time) and e2 (90 more bytes, or 9 units for e1 in both) have one price, and of
    the two cuts that are extreme at it one is in the middle of their edge; fc is cheaper to save, fd dearer."""
    b = Builder("edge").given(8, "w", kind=ValueKind.STATIC).given(100, "y").given(8, "t", kind=ValueKind.TANGENT)
    b.op("fa", "w", FORWARD, 90, time=9).op("fc", "w", FORWARD, 10, time=10).op("fd", "w", FORWARD, 200, time=11)
    b.op("out", "fa", FORWARD, 8).op("e1", "w", EITHER, 1, time=9, savable=False)
    b.op("e2", "e1 y", EITHER, 10, recomputable=False)
    problem = b.op("g", "t fa fc fd e1 e2", BACKWARD, 8).problem("out", "g")
    corners = [(c.saved_bytes, c.recompute_time) for c in hull(problem)]
    assert corners == [(10, 39), (20, 29), (200, 11), (400, 0)]


def test_an_op_after_a_backward_op_stays_in_the_backward() -> None:
    b = Builder("late write").given(64, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("y", "x", FORWARD, 8).op("g", "t", BACKWARD, 8).op("late", "x", EITHER, 8, after=["g"])
    problem = b.op("h", "g late", BACKWARD, 8).problem("y", "h")
    result = min_saved_bytes(problem)
    assert result.saved == ids(problem, "x")
    assert_honest(problem, result, False)


def test_an_effect_that_may_run_in_the_forward_does_so_to_save_less() -> None:
    b = Builder("effect").given(64, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("y", "x", FORWARD, 8).op("print", "x", EITHER, {}, recomputable=False)
    problem = b.op("g", "t", BACKWARD, 8).problem("y", "g")
    result = min_saved_bytes(problem)
    assert result.saved == frozenset()
    assert result.plan.forward == op_ids(problem, "y print")
    assert_honest(problem, result, False)


def test_forward_outputs_and_static_inputs_cost_nothing() -> None:
    b = Builder("free").given(1000, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("y", "w", FORWARD, 500, recomputable=False)
    problem = b.op("g", "t w y", BACKWARD, 8).problem("y", "g")
    result = min_saved_bytes(problem)
    assert (result.saved, result.saved_bytes) == (ids(problem, "y"), 0)


def test_no_plan_says_what_stands_in_the_way() -> None:
    b = Builder("stuck").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    b.op("rand", "w", FORWARD, 8, recomputable=False, savable=False).op("y", "rand", FORWARD, 8)
    problem = b.op("g", "t rand", BACKWARD, 8).problem("y", "g")
    with pytest.raises(
        NoPlan, match=r"value 'rand' may not be saved \(tagged\); op 'rand' may not run again \(random\)"
    ):
        min_saved_bytes(problem)
    result = min_recompute(problem, 100)
    assert result.status is Status.INFEASIBLE
    assert "'rand'" in result.notes[0]


def test_a_bare_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="no forward and backward"):
        min_saved_bytes(bare_problem(["a", "b"], [1, 1], [1.0, 1.0], [(0, 1)]))


def test_run_times_that_do_not_fit_are_rounded_not_overflown() -> None:
    """Bytes and times whose product passes 2**61: both orders of preference still come out right."""
    b = Builder("big").given(8, "w", kind=ValueKind.STATIC).given(8, "t", kind=ValueKind.TANGENT)
    for i in range(4):
        b.op(f"v{i}", "w", FORWARD, (1 << 40) + i, time=float((1 << 40) + i))
    problem = b.op("y", "v0", FORWARD, 1).op("g", "t v0 v1 v2 v3", BACKWARD, 8).problem("y", "g")
    corners = hull(problem)
    assert corners[0].saved == frozenset()
    assert corners[-1].saved == ids(problem, "v0 v1 v2 v3")
    assert corners[-1].recompute_time == 0


# ------------------------------------------------------------------------------------------ minimum cuts


def test_regions_of_the_random_problems_cover_what_is_tested() -> None:
    """The random problems do have EITHER ops, effects, states, pairs of outputs, order edges and unsavable values."""
    graphs = [small(seed)[0].graph for seed in range(60)]
    ops = [op for graph in graphs for op in graph.ops]
    assert {op.region for op in ops} == set(Region)
    assert any(op.region is EITHER and not op.writes for op in ops)
    assert any(op.region is EITHER and op.rng_state is not None for op in ops)
    assert any(op.region is FORWARD and op.rng_state is not None for op in ops)
    assert any(len(op.writes) == 2 for op in ops)
    assert any(op.after for op in ops)
    assert any(not v.savable for graph in graphs for v in graph.values)
