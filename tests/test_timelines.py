"""The memory timeline: bands add up to the simulator's timeline, and a value is in the band that its name says."""

from __future__ import annotations

import cases
from hypothesis import given
from strategies import bare_problems, problems, rules, seeds, some_plans

from optpart.graph import ValueKind
from optpart.liveness import resident_bytes, simulate
from optpart.plans import Plan, baseline, just_in_time
from optpart.problem import Problem
from optpart.timelines import Band, timeline


@given(problems(), seeds)
def test_bands_add_up_to_the_simulation(problem: Problem, seed: int) -> None:
    for plan in some_plans(problem, seed):
        live = simulate(problem, plan)
        found = timeline(problem, plan)
        assert found.total == live.timeline
        assert (found.peak_bytes, found.peak_step) == (live.peak_bytes, live.peak_step)
        assert resident_bytes(problem) + sum(h.nbytes for h in found.alive) == live.peak_bytes
        assert list(found.alive) == sorted(found.alive, key=lambda h: -h.nbytes)
        assert all(min(row, default=0) >= 0 for row in found.bands.values())
        assert set(found.bands) == set(Band)


@given(bare_problems(), seeds, rules)
def test_bare_graphs_too(problem: Problem, seed: int, rule: object) -> None:
    for plan in some_plans(problem, seed, 6):
        assert timeline(problem, plan).total == simulate(problem, plan).timeline


@given(problems(), seeds)
def test_at_the_border_the_saved_values_are_there(problem: Problem, seed: int) -> None:
    """All of them; what is resident or handed to the caller is in another band."""
    values = problem.graph.values
    for plan in some_plans(problem, seed, 6):
        found = timeline(problem, plan)
        if plan.forward and plan.backward:
            saved = simulate(problem, plan).saved_bytes
            saved -= sum(problem.sizes[v] for v in plan.saved(problem.graph) if values[v].kind is ValueKind.INPUT)
            assert found.bands[Band.SAVED][found.split - 1] == saved
        if not plan.recomputes():
            assert not any(found.bands[Band.RECOMPUTED])


def test_the_running_example() -> None:
    """Four inputs of 32 bytes; the sum is saved or made again."""
    problem = cases.four_inputs()
    saving = timeline(problem, just_in_time(problem.graph, cases.ids(problem, "add_2 cos")))
    again = timeline(problem, just_in_time(problem.graph, cases.ids(problem, "add_2")))
    assert set(saving.bands[Band.RECOMPUTED]) == {0}
    assert max(again.bands[Band.RECOMPUTED]) == 32
    assert saving.bands[Band.SAVED][saving.split] - again.bands[Band.SAVED][again.split] == 32
    assert set(saving.bands[Band.INPUTS]) == {4 * 32}
    assert saving.ops[: saving.split] == tuple(problem.graph.ops[o].name for o in baseline(problem.graph).forward)
    assert {h.name for h in saving.alive} <= {v.name for v in problem.graph.values}


def test_nothing_runs() -> None:
    problem = cases.four_inputs()
    found = timeline(problem, Plan((), ()))
    assert (found.total, found.alive, found.ops) == ((), (), ())
