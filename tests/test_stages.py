"""The stage formulation against exhaustive search: plans, exact rows, and bounds from every window."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optpart.formulation.blocks import find_blocks
from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.stage_graph import build_stages
from optpart.formulation.stages import Side, stage_model
from optpart.graph import Region
from optpart.liveness import simulate
from optpart.peak_search import PeakSearch
from optpart.plans import baseline
from optpart.problem import Problem
from optpart.random_graphs import PLAIN, Mix, random_joint
from optpart.solver.base import InfeasibleBudget, Limits, Status
from optpart.solver.exhaustive_sequences import STAGED, least_peak_plan, least_recompute_plan
from optpart.solver.mathopt import Outcome
from optpart.solver.polish import leave_out
from optpart.strategy import solve
from optpart.validate import validate
from tests.strategies import seeds

NO_STAGE_ROWS: frozenset[int] = frozenset()
ODD = Mix(unboxed=0.0)


def solved(
    problem: Problem, limit: int, side: Side, width: int | None, inside: frozenset[int] | None, every: bool = True
) -> Outcome:
    """The outcome of one model; every plan from above has to be valid, fit, and cost what the model says."""
    stages = build_stages(problem, every=every)
    model = stage_model(stages, limit, side=side, width=width, blocks=find_blocks(stages), inside=inside)
    outcome, values = model.model.minimize("highs", Limits(time_limit=60))
    if values and side == "above" and inside is None:
        verdict = validate(problem.with_budget(limit), model.plan(values))
        assert verdict.ok, verdict.faults
        assert 100 * verdict.overhead == pytest.approx(outcome.objective, rel=1e-4, abs=1e-4)
    return outcome


def limits_of(problem: Problem, lowest: int) -> list[int]:
    high = max(lowest, simulate(problem, baseline(problem.graph)).peak_bytes)
    return sorted({lowest, lowest + 8, (lowest + high) // 2})


@given(seeds, st.integers(4, 8))
def test_whole_model_equals_exhaustive_search_over_its_class(seed: int, ops: int) -> None:
    problem = random_joint(seed, ops, PLAIN)
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    assert smallest_peak_bound(problem) <= lowest.peak_bytes
    for limit in limits_of(problem, lowest.peak_bytes):
        best = least_recompute_plan(problem.with_budget(limit), STAGED)
        assert best is not None
        percent = 100 * best.recompute_time / problem.total_time if problem.total_time else 0.0
        outcome = solved(problem, limit, "above", None, None)
        assert outcome.objective == pytest.approx(percent, rel=1e-4, abs=1e-4)


@given(seeds, st.integers(4, 8), st.sampled_from([0, 1, None]), st.booleans())
def test_windows_enclose_the_optimum(seed: int, ops: int, width: int | None, every: bool) -> None:
    problem = random_joint(seed, ops, ODD)
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    for limit in limits_of(problem, lowest.peak_bytes):
        whole = solved(problem, limit, "above", None, None, every)
        above = solved(problem, limit, "above", width, None, every)
        for inside in (None, NO_STAGE_ROWS):
            below = solved(problem, limit, "below", width, inside, every)
            if whole.objective is not None:
                assert below.bound is not None
                assert below.bound <= whole.objective + 1e-4 * (1 + whole.objective)
        if above.objective is not None:
            assert whole.objective is not None
            assert above.objective >= whole.objective - 1e-4 * (1 + whole.objective)


@given(seeds, st.integers(4, 9))
def test_no_plan_of_any_order_inside_stages_beats_the_class(seed: int, ops: int) -> None:
    """Where there are no free ops, the class at every backward op is Checkmate's: nothing in it is cheaper."""
    problem = random_joint(seed, ops, Mix(either=0.0, unboxed=0.0, effect=0.0, after=0.0))
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    best = least_recompute_plan(problem.with_budget(lowest.peak_bytes), STAGED)
    outcome = solved(problem, lowest.peak_bytes, "below", 0, NO_STAGE_ROWS)
    assert best is not None
    assert outcome.bound is not None
    percent = 100 * best.recompute_time / problem.total_time if problem.total_time else 0.0
    assert outcome.bound <= percent + 1e-4 * (1 + percent)


@given(seeds, st.integers(4, 10))
def test_leaving_out_keeps_plans_valid_and_within_the_limit(seed: int, ops: int) -> None:
    problem = random_joint(seed, ops, ODD)
    stages = build_stages(problem)
    model = stage_model(stages, None, width=None)
    outcome, values = model.model.minimize("highs", Limits(time_limit=60))
    assert outcome.status is Status.OPTIMAL
    plan = model.plan(values)
    before = simulate(problem, plan)
    after, ended = leave_out(problem, plan, before.peak_bytes)
    assert ended
    assert leave_out(problem, plan, before.peak_bytes, stop=-math.inf)[0] == plan
    verdict = validate(problem.with_budget(before.peak_bytes), after)
    assert verdict.ok, verdict.faults
    assert verdict.recompute_time <= before.recompute_time


@given(seeds, st.integers(4, 9), st.sampled_from([0.6, 0.3]))
def test_no_time_limit_is_no_less_than_a_long_one(seed: int, ops: int, fraction: float) -> None:
    problem = random_joint(seed, ops, Mix(unboxed=0.0, effect=0.0, after=0.0))
    without, long = (solve(problem, fraction, Limits(time_limit=seconds)) for seconds in (math.inf, 60))
    assert (without.overhead, without.bound) == (long.overhead, long.bound)
    assert without.deterministic


@given(seeds, st.integers(4, 9))
def test_a_search_without_time_says_so_and_its_plan_fits(seed: int, ops: int) -> None:
    problem = random_joint(seed, ops, Mix(unboxed=0.0, effect=0.0, after=0.0))
    search = PeakSearch(problem, Limits(time_limit=0.0))
    limit = min(c.live.peak_bytes for c in search.found)
    result = search.within(limit)
    assert result.plan is not None
    assert validate(problem.with_budget(limit), result.plan).ok
    assert result.deterministic == (search.nothing.live.peak_bytes <= limit)


@pytest.mark.parametrize(("seed", "ops", "limit"), [(83, 41, 1312), (142, 47, 1300), (182, 38, 972)])
def test_a_draw_without_a_forward_run_happens_once(seed: int, ops: int, limit: int) -> None:
    problem = random_joint(seed, ops, Mix(unboxed=0.0, effect=0.0, after=0.0))
    search = PeakSearch(problem, Limits(time_limit=20))
    with contextlib.suppress(InfeasibleBudget):  # the two lower limits were met by plans that are none
        search.within(limit)
    for candidate in search.found:
        verdict = validate(problem, candidate.plan)
        assert verdict.ok, verdict.faults


@given(seeds, st.integers(4, 9), st.sampled_from([1.0, 0.6, 0.3, 0.0]))
def test_solve_keeps_its_promise(seed: int, ops: int, fraction: float) -> None:
    """The plan fits, is valid, its bound is none that a plan of the class beats, and f = 0 is never infeasible."""
    problem = random_joint(seed, ops, Mix(unboxed=0.0, effect=0.0, after=0.0))
    result = solve(problem, fraction, Limits(time_limit=20))
    assert result.plan is not None
    assert result.budget_bytes is not None
    verdict = validate(problem.with_budget(result.budget_bytes), result.plan)
    assert verdict.ok, verdict.faults
    assert result.bound is not None
    assert result.overhead is not None
    assert result.bound <= result.overhead + 1e-9
    assert verdict.overhead == pytest.approx(result.overhead)


@given(seeds, st.integers(4, 9))
def test_an_impossible_budget_names_a_peak_that_can_be_reached(seed: int, ops: int) -> None:
    problem = random_joint(seed, ops, Mix(unboxed=0.0, effect=0.0, after=0.0))
    limit = smallest_peak_bound(problem) - 1
    if limit < 0:
        return
    with pytest.raises(InfeasibleBudget, match="smallest peak") as error:
        solve(problem, limit, Limits(time_limit=20))
    plan = solve(problem, error.value.smallest, Limits(time_limit=20)).plan
    assert plan is not None
    assert simulate(problem, plan).peak_bytes <= error.value.smallest


def test_nothing_is_recomputed_when_the_budget_allows_it() -> None:
    for seed in range(20):
        problem = random_joint(seed, 10, ODD)
        peak = simulate(problem, baseline(problem.graph)).peak_bytes
        result = solve(problem, peak, Limits(time_limit=20))
        assert (result.status, result.overhead, result.bound) == (Status.OPTIMAL, 0.0, 0.0)


def test_every_forward_op_stands_in_a_block() -> None:
    for seed in range(20):
        problem = random_joint(seed, 12, ODD)
        blocks = find_blocks(build_stages(problem))
        side = [op.id for op in problem.graph.ops if op.region is not Region.BACKWARD]
        assert sorted(blocks.of) == side
        assert [blocks.of[o] for o in side] == sorted(blocks.of[o] for o in side)
        assert max(blocks.of.values(), default=-1) < blocks.count
