"""Annealing of sequences: against exhaustive search, against the checker, and twice the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from cases import JOINT, bare_skip
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import bare_problems, problems, seeds, some_plans

from optpart.liveness import simulate
from optpart.plans import Plan, baseline
from optpart.problem import MemoryRule, Problem
from optpart.random_graphs import PLAIN, Mix, random_joint, random_layered
from optpart.solver import anneal as annealing
from optpart.solver.anneal import anneal
from optpart.solver.base import Limits, Status
from optpart.solver.exhaustive_sequences import FREE, least_peak_plan, least_recompute_plan
from optpart.units import Bytes
from optpart.validate import validate


def budgets(lowest: int, highest: int) -> list[int]:
    return sorted({lowest, (2 * lowest + highest) // 3, (lowest + 2 * highest) // 3})


def test_the_optimum_of_small_bare_graphs() -> None:
    """Never below the exhaustive search, and equal to it on all of these."""
    for n, seed in product((5, 7, 9), range(6)):
        problem = random_layered(n, seed)
        lowest = least_peak_plan(problem, FREE)
        assert lowest is not None
        for budget in budgets(lowest.peak_bytes, simulate(problem, baseline(problem.graph)).peak_bytes):
            best = least_recompute_plan(problem.with_budget(budget), FREE)
            found = anneal(problem, budget, Limits(work=30_000))
            assert best is not None
            assert found.plan is not None, f"{problem.graph.name} at {budget}"
            verdict = validate(problem.with_budget(budget), found.plan)
            assert verdict.ok, verdict.faults
            assert verdict.recompute_time == best.recompute_time, f"{problem.graph.name} at {budget}"
            assert (found.status is Status.OPTIMAL) == (best.recompute_time == 0) == (found.bound == 0)


def test_small_joint_graphs_are_never_below_the_optimum() -> None:
    """The forward is given here and free in the search, so equality is not owed; most of these have it."""
    equal = all_of_them = 0
    for seed in range(24):
        problem = random_joint(seed, 5 + seed % 4, Mix(unboxed=0.0) if seed % 2 else PLAIN)
        start = baseline(problem.graph)
        lowest = least_peak_plan(problem, FREE)
        if lowest is None or not validate(problem, start).ok:
            continue
        for budget in budgets(lowest.peak_bytes, simulate(problem, start).peak_bytes):
            best = least_recompute_plan(problem.with_budget(budget), FREE)
            found = anneal(problem, budget, Limits(work=30_000), [start])
            assert best is not None
            all_of_them += 1
            if found.plan is not None:
                verdict = validate(problem.with_budget(budget), found.plan)
                assert verdict.ok, verdict.faults
                assert verdict.recompute_time >= best.recompute_time
                equal += verdict.recompute_time == best.recompute_time
    assert equal >= 0.8 * all_of_them


@settings(max_examples=60)
@given(problems(), seeds, st.sampled_from([0, 8, 40, 1 << 20]))
def test_every_sequence_is_a_plan_and_is_counted_to_the_byte(problem: Problem, seed: int, below: int) -> None:
    """From plans with useless runs and odd orders, with generator states, forced saves and order constraints."""
    problem = replace(problem, rule=replace(problem.rule, boxed=True))
    for plan in some_plans(problem, seed, 3):
        budget = max(0, simulate(problem, plan).peak_bytes - below)
        search = annealing._Annealing(problem, budget, Limits(work=400, seed=seed % 97), plan)
        search.run()
        for sequence in (search._now(), search._best()):
            found = search.layout.plan(sequence)
            verdict = validate(problem, found)
            assert verdict.ok, verdict.faults
        now = simulate(problem, search.layout.plan(search._now()))
        total = search.state.total
        assert total[search.kernel.EXCESS] == sum(max(0, b - budget) for b in now.timeline)
        assert total[search.kernel.COST] * search.layout.unit == pytest.approx(now.recompute_time)


@given(bare_problems(), seeds, st.booleans(), st.sampled_from([Bytes(1), Bytes(16)]))
def test_bare_graphs_whose_outputs_are_held(problem: Problem, seed: int, hold: bool, rounding: Bytes) -> None:
    graph = replace(problem.graph, forward_outputs=(0, len(problem.graph.values) - 1))
    problem = replace(problem, graph=graph, rule=MemoryRule(rounding, count_resident=False, hold_outputs=hold))
    budget = simulate(problem, baseline(graph)).peak_bytes * 9 // 10
    found = anneal(problem, budget, Limits(work=2000, seed=seed))
    if found.plan is not None:
        assert validate(problem.with_budget(budget), found.plan).ok


def test_a_value_is_dropped_and_computed_again() -> None:
    problem = bare_skip()
    found = anneal(problem, 20)
    assert found.plan is not None
    assert found.plan.recomputes() == {0: 1}
    assert found.status is Status.FEASIBLE
    assert found.bound is None
    assert found.deterministic


def test_re_ordering_alone_is_proof() -> None:
    problem = random_layered(100, 2)
    budget = simulate(problem, baseline(problem.graph)).peak_bytes * 8 // 10
    found = anneal(problem, budget)
    assert found.status is Status.OPTIMAL
    assert found.overhead == found.bound == 0
    assert found.deterministic


def test_no_plan_says_how_close_it_came() -> None:
    found = anneal(bare_skip(), 5)
    assert found.status is Status.NO_PLAN
    assert found.plan is None
    assert "20 B" in found.notes[0]


@pytest.mark.parametrize("case", JOINT)
def test_the_plan_that_was_given_is_never_made_worse(case: object) -> None:
    problem: Problem = case()  # type: ignore[operator]
    start = baseline(problem.graph)
    live = simulate(problem, start)
    found = anneal(problem, live.peak_bytes, Limits(work=1000), [start])
    assert found.overhead == live.overhead
    assert found.plan_class == annealing.ANY_BACKWARD


def test_a_fixed_amount_of_work_is_repeatable() -> None:
    problem = random_layered(60, 1)
    budget = simulate(problem, baseline(problem.graph)).peak_bytes * 6 // 10
    first, second, other = (anneal(problem, budget, Limits(work=20_000, seed=s)) for s in (1, 1, 2))
    assert first.deterministic
    assert first.plan == second.plan != other.plan


def test_a_clock_that_stops_it_is_owned_up_to() -> None:
    problem = random_layered(60, 1)
    budget = simulate(problem, baseline(problem.graph)).peak_bytes * 6 // 10
    assert not anneal(problem, budget, Limits(time_limit=0.0)).deterministic


def test_ctrl_c_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_layered(60, 1)
    budget = simulate(problem, baseline(problem.graph)).peak_bytes * 7 // 10
    load = annealing._Annealing._load

    def interrupted(self: annealing._Annealing, sequence: annealing.Ints) -> None:
        if self.excess == 0:
            raise KeyboardInterrupt
        load(self, sequence)

    monkeypatch.setattr(annealing._Annealing, "_load", interrupted)
    found = anneal(problem, budget, Limits(keep_on_interrupt=True))
    assert found.interrupted
    assert not found.deterministic
    assert found.plan is not None
    assert validate(problem.with_budget(budget), found.plan).ok
    with pytest.raises(KeyboardInterrupt):
        anneal(problem, budget)


def test_what_is_refused() -> None:
    problem = JOINT[0]()
    unboxed = replace(problem, rule=MemoryRule(boxed=False))
    with pytest.raises(ValueError, match="freed at their last read"):
        anneal(unboxed, 1000)
    with pytest.raises(ValueError, match="more than 15 times"):
        anneal(bare_skip(), 20, start=[Plan((0,) * 20 + (1, 2, 3))])
