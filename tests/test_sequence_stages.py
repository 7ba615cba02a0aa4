"""Bare graphs in their given order, against exhaustive search: plans, exact rows, and bounds whatever is watched."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optpart.fixed_order import FixedOrderSearch
from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.moments import ANY_ORDER, Relations, moment_model
from optpart.formulation.sequence_stages import STAGED_CLASS, Order, Watched, sequence_model, stages_over
from optpart.free_order import FreeOrderSearch
from optpart.graph import ValueKind
from optpart.liveness import simulate
from optpart.plans import baseline
from optpart.problem import MemoryRule, Problem, load_problem
from optpart.random_graphs import random_joint, random_layered
from optpart.solver.base import InfeasibleBudget, Interrupted, Limits, Result, Status
from optpart.solver.exhaustive_sequences import FIXED, FREE, STAGED, Found, least_peak_plan, least_recompute_plan
from optpart.solver.mathopt import Outcome
from optpart.solver.sparse import NotBuilt, Room, SparseModel
from optpart.strategy import solve
from optpart.units import Microseconds
from optpart.validate import validate
from tests.cases import bare_skip
from tests.strategies import seeds

few = settings(max_examples=30)


def bare(seed: int, ops: int) -> Problem:
    """A random bare problem: layered, or a joint graph's ops as one list, with all their oddities."""
    if seed % 2:
        return random_layered(ops + 1, seed)
    problem = random_joint(seed, ops)
    kinds = {ValueKind.TANGENT: ValueKind.INPUT}
    values = tuple(replace(v, kind=kinds.get(v.kind, v.kind)) for v in problem.graph.values)
    rule = MemoryRule(count_resident=seed % 4 == 0, hold_outputs=seed % 3 == 0)
    return replace(problem, graph=replace(problem.graph, values=values, joint=False), rule=rule)


def limits_of(problem: Problem) -> list[int]:
    """The smallest peak of the class, halfway to that of the given order, and one byte too little."""
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    high = simulate(problem, baseline(problem.graph)).peak_bytes
    assert smallest_peak_bound(problem) <= lowest.peak_bytes <= high
    return sorted({lowest.peak_bytes - 1, lowest.peak_bytes, (lowest.peak_bytes + high) // 2})


def found(problem: Problem, limit: int, time_limit: float = 60.0) -> Result:
    """A search's result; a plan has to be valid, fit, and cost what the result says."""
    result = FixedOrderSearch(problem, limit, Limits(time_limit=time_limit)).run()
    if result.plan is not None:
        verdict = validate(problem.with_budget(limit), result.plan)
        assert verdict.ok, verdict.faults
        assert verdict.overhead == pytest.approx(result.overhead)
    return result


@given(seeds, st.integers(3, 7))
@few
def test_search_equals_exhaustive_search_over_its_class(seed: int, ops: int) -> None:
    problem = bare(seed, ops)
    for limit in limits_of(problem):
        best = least_recompute_plan(problem.with_budget(limit), STAGED)
        wider = least_recompute_plan(problem.with_budget(limit), FIXED)
        result = found(problem, limit)
        if result.plan is None:
            assert result.status is Status.INFEASIBLE
            assert (best if result.plan_class == STAGED_CLASS else wider) is None
        elif result.plan_class == STAGED_CLASS:
            assert result.status is Status.OPTIMAL
            check(problem, result, best)
        else:
            check(problem, result, wider)
            assert best is None or cost_of(problem, result) <= best.recompute_time + 1e-6


@given(seeds, st.integers(3, 7))
@few
def test_any_order(seed: int, ops: int) -> None:
    problem = bare(seed, ops)
    lowest = least_peak_plan(problem, FREE)
    assert lowest is not None
    for limit in (lowest.peak_bytes, lowest.peak_bytes + 8, lowest.peak_bytes - 1):
        search = FreeOrderSearch(problem, limit, Limits())
        check(problem, search.run(), least_recompute_plan(problem.with_budget(limit), FREE))
        assert lowest.peak_bytes <= search.smallest


@given(seeds, st.integers(3, 7), st.randoms(use_true_random=False))
@few
def test_moments_are_a_bound_for_any_order(seed: int, ops: int, rng: random.Random) -> None:
    problem = bare(seed, ops)
    relations = Relations(problem)
    lowest = least_peak_plan(problem, FREE)
    assert lowest is not None
    best = least_recompute_plan(problem.with_budget(lowest.peak_bytes), FREE)
    assert best is not None
    chain: list[int] = []
    for op in rng.sample(range(len(problem.graph.ops)), len(problem.graph.ops)):
        if all(relations.comparable(op, other) for other in chain):
            chain = sorted([*chain, op])
            model = moment_model(relations, lowest.peak_bytes, chain)
            outcome, _values = model.model.minimize("highs", whole=model.whole)
            assert outcome.status is Status.OPTIMAL
            assert (outcome.objective or 0.0) * problem.integer_costs()[1] <= best.recompute_time + 1e-6


def test_there_may_be_no_room_for_a_model() -> None:
    problem = bare(1, 8)
    relations, limit = Relations(problem), simulate(problem, baseline(problem.graph)).peak_bytes - 1
    assert moment_model(relations, limit, [3]).model.rows
    with pytest.raises(NotBuilt, match="not built in time"):
        moment_model(relations, limit, [3], Room(stop=-math.inf))
    with pytest.raises(NotBuilt, match="more than 1 entries"):
        moment_model(relations, limit, [3], Room(entries=1))
    search = FreeOrderSearch(problem, limit, Limits())
    search._bound(-math.inf)
    assert not search.deterministic
    assert search.bounds[ANY_ORDER] == 0.0


@pytest.mark.parametrize("search", [FixedOrderSearch, FreeOrderSearch])
def test_a_search_without_time_is_not_repeatable(search: type[FixedOrderSearch] | type[FreeOrderSearch]) -> None:
    result = search(bare_skip(), 20, Limits(time_limit=0.0)).run()
    assert not result.deterministic


def test_moments_prove_what_nobody_can_reorder() -> None:
    """A chain with one long skip has one order: the bound is the optimum."""
    result = FreeOrderSearch(bare_skip(), 20, Limits()).run()
    assert (result.status, result.overhead, result.bound) == (Status.OPTIMAL, 0.5, 0.5)
    assert result.plan_class == ANY_ORDER


def cost_of(problem: Problem, result: Result) -> float:
    assert result.overhead is not None
    return result.overhead * problem.total_time


def check(problem: Problem, result: Result, best: Found | None) -> None:
    """A result of a class against the best plan of that class."""
    if best is None:
        assert result.plan is None
    else:
        assert result.status is not Status.INFEASIBLE
        assert result.bound is not None
        assert result.bound * problem.total_time <= best.recompute_time + 1e-6
        if result.status is Status.OPTIMAL:
            assert cost_of(problem, result) == pytest.approx(best.recompute_time)


@given(seeds, st.integers(3, 7))
@few
def test_everything_watched_is_the_class_itself(seed: int, ops: int) -> None:
    """Every solution is a plan that fits and costs what the model says, and the best one is the best of the class."""
    problem = bare(seed, ops)
    every = frozenset(range(len(problem.graph.ops) + 1))
    for limit in limits_of(problem):
        best = least_recompute_plan(problem.with_budget(limit), STAGED)
        outcome, plan_cost = solved(problem, limit, Watched(every, every))
        assert outcome.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
        if best is not None:
            assert outcome.objective == pytest.approx(best.recompute_time)
            assert plan_cost == pytest.approx(best.recompute_time)


def solved(problem: Problem, limit: int, watched: Watched) -> tuple[Outcome, float | None]:
    """One model's outcome, and the recompute time of its plan if that fits."""
    model = sequence_model(Order(problem), limit, watched)
    outcome, values = model.model.minimize("highs", whole=model.whole)
    assert model.whole
    if not outcome.status.has_plan:
        return outcome, None
    verdict = validate(problem.with_budget(limit), model.plan(values))
    unit = problem.integer_costs()[1]
    return replace(outcome, objective=(outcome.objective or 0) * unit), verdict.recompute_time if verdict.ok else None


@given(seeds, st.integers(3, 7))
@few
def test_whatever_is_watched_gives_a_bound(seed: int, ops: int) -> None:
    problem = bare(seed, ops)
    rng = random.Random(seed)
    some = frozenset(t for t in range(ops + 1) if rng.random() < 0.4)
    watched = Watched(some).more(Watched(inside=frozenset(t for t in some if rng.random() < 0.5)))
    for limit in limits_of(problem):
        for which, sequences in ((watched, STAGED), (Watched(some), FIXED)):
            best = least_recompute_plan(problem.with_budget(limit), sequences)
            outcome, _cost = solved(problem, limit, which)
            if best is not None:
                assert outcome.objective is not None
                assert outcome.objective <= best.recompute_time + 1e-6


@given(seeds, st.integers(3, 7))
@few
def test_smallest_peak_is_reached(seed: int, ops: int) -> None:
    problem = bare(seed, ops)
    staged, lowest = least_peak_plan(problem, STAGED), least_peak_plan(problem, FIXED)
    assert staged is not None
    assert lowest is not None
    search = FixedOrderSearch(problem, 0, Limits())
    search.find_smallest(60.0)
    assert lowest.peak_bytes <= search.smallest <= staged.peak_bytes * 1.001 + 1


def test_large_costs_are_proven_too() -> None:
    """Run times whose whole units a solver cannot tell apart."""
    for seed in range(1, 40, 2):
        problem = bare(seed, 8)
        limit = limits_of(problem)[1]
        scaled = replace(problem, runtime=tuple(Microseconds(t * 1e7 + 1.0) for t in problem.runtime))
        best = least_recompute_plan(scaled.with_budget(limit), STAGED)
        result = found(scaled, limit)
        assert best is not None
        assert result.status is Status.OPTIMAL
        assert result.overhead is not None
        assert result.overhead * scaled.total_time == pytest.approx(best.recompute_time)


def test_solve_takes_bare_graphs() -> None:
    problem, limit = hard()
    result = solve(problem, limit, Limits())
    assert (result.status, result.overhead) == (Status.OPTIMAL, found(problem, limit).overhead)
    with pytest.raises(InfeasibleBudget) as error:
        solve(problem, smallest_peak_bound(problem) - 1, Limits())
    assert solve(problem, error.value.smallest, Limits()).status.has_plan
    with pytest.raises(ValueError, match="bytes"):
        solve(problem, 0.5, Limits())


def test_where_a_plan_is_over_the_limit() -> None:
    """Each step of a plan belongs to the stage of the next first run; of neighbours the fullest stands for all."""
    problem = random_layered(20, 3)
    plan = baseline(problem.graph)
    live = simulate(problem, plan)
    over = stages_over(plan, live, live.peak_bytes - 1, 20)
    assert over == Watched(frozenset({live.timeline.index(live.peak_bytes)}))
    assert stages_over(plan, live, live.peak_bytes, 20) == Watched()
    again = replace(plan, forward=(*plan.forward, 0))
    assert stages_over(again, simulate(problem, again), -1, 20).inside == {20}


# -------------------------------------------------------------------------------------------- cut short


def hard() -> tuple[Problem, int]:
    """A layered problem whose given order is over a limit that it can be brought within."""
    problem = random_layered(30, 1)
    return problem, math.ceil(0.8 * simulate(problem, baseline(problem.graph)).peak_bytes)


def test_no_time_is_no_plan() -> None:
    result = found(*hard(), time_limit=0.0)
    assert (result.status, result.plan, result.bound) == (Status.NO_PLAN, None, 0.0)


def test_interrupt_keeps_plan_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limit = hard()
    whole = found(problem, limit)
    assert whole.status is Status.OPTIMAL
    assert whole.plan is not None

    def interrupted(*_args: object, **_keywords: object) -> None:
        raise Interrupted(1.0)

    monkeypatch.setattr(SparseModel, "minimize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FixedOrderSearch(problem, limit, Limits()).run()
    with pytest.raises(KeyboardInterrupt, match="no plan"):
        solve(problem, limit, Limits(keep_on_interrupt=True))
    worse = replace(whole.plan, forward=(0, *whole.plan.forward))
    result = FixedOrderSearch(problem, limit, Limits(keep_on_interrupt=True), [worse]).run()
    assert result.interrupted
    assert result.status is Status.FEASIBLE
    assert result.plan == worse
    assert result.bound == pytest.approx(1.0 / problem.total_time)
    assert not result.deterministic


# ------------------------------------------------------------------------------------- public instances

# (file, percent of the given order's peak, overhead in percent of Checkmate's solution with Gurobi as published in
# Bartan et al., ICML 2023, table 1, to its one digit)
PUBLISHED = (("rlg1", 90, 0.8), ("rlg1", 80, 2.3), ("cm1_fcn8", 90, 0.0), ("cm1_fcn8", 80, 0.1))


@pytest.mark.parametrize(("name", "percent", "overhead"), PUBLISHED)
def test_published_optima(name: str, percent: int, overhead: float) -> None:
    folder = os.environ.get("OPTPART_INSTANCES")
    if not folder or not (Path(folder) / f"{name}.json").exists():
        pytest.skip("the public instances are absent: OPTPART_INSTANCES names no folder that holds them")
    problem = load_problem(Path(folder) / f"{name}.json")
    result = found(problem, math.ceil(percent * simulate(problem, baseline(problem.graph)).peak_bytes / 100))
    assert result.status is Status.OPTIMAL
    assert result.overhead is not None
    assert round(100 * result.overhead, 1) == overhead
