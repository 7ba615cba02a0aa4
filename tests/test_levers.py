"""Every lever off by itself: the optimum stays where exhaustive search finds it, and what is proven holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optpart.formulation.levers import ALL, LEVERS, Levers
from optpart.formulation.stage_graph import build_stages
from optpart.formulation.stages import Side, stage_model
from optpart.liveness import simulate
from optpart.plans import baseline
from optpart.problem import Problem
from optpart.random_graphs import PLAIN, Mix, random_joint
from optpart.solver.base import InfeasibleBudget, Limits, Status
from optpart.solver.exhaustive_sequences import STAGED, least_peak_plan, least_recompute_plan
from optpart.strategy import solve
from optpart.validate import validate
from tests.strategies import seeds

# Those that a single model sees; the others are the search's.
OF_MODELS = ("last_uses", "dominated_saves", "carried_or_made", "free_ops_run", "reachable_rows", "shared_sums")
ODD = Mix(unboxed=0.0, effect=0.0, after=0.0)
LIMITS = Limits(time_limit=60)


def near(x: float) -> object:
    return pytest.approx(x, rel=1e-4, abs=1e-4)


def optimum(problem: Problem) -> float:
    """Percent of the step that the best plan of Checkmate's class recomputes; exhaustively."""
    found = least_recompute_plan(problem, STAGED)
    assert found is not None
    return 100 * found.recompute_time / problem.total_time if problem.total_time else 0.0


def limits_of(problem: Problem) -> list[int]:
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    high = max(lowest.peak_bytes, simulate(problem, baseline(problem.graph)).peak_bytes)
    return [lowest.peak_bytes, (lowest.peak_bytes + high) // 2]


@pytest.mark.parametrize("lever", OF_MODELS)
@settings(max_examples=25)
@given(seed=seeds, ops=st.integers(4, 7))
def test_the_optimum_of_a_whole_model_does_not_depend_on_levers(lever: str, seed: int, ops: int) -> None:
    problem = random_joint(seed, ops, PLAIN)
    for limit in limits_of(problem):
        expected = optimum(problem.with_budget(limit))
        model = stage_model(build_stages(problem, every=True), limit, width=None, levers=ALL.without(lever))
        outcome, values = model.model.minimize("highs", LIMITS)
        assert outcome.objective == near(expected)
        verdict = validate(problem.with_budget(limit), model.plan(values))
        assert verdict.ok, verdict.faults
        assert 100 * verdict.overhead == near(expected)


@pytest.mark.parametrize("lever", OF_MODELS)
@settings(max_examples=15)
@given(seed=seeds, ops=st.integers(4, 7), width=st.sampled_from([0, None]))
def test_models_of_odd_graphs_agree(lever: str, seed: int, ops: int, width: int | None) -> None:
    """Free ops, several values, tags, states: with the lever and without it, on both sides of the windows."""
    problem = random_joint(seed, ops, ODD)
    sides: tuple[Side, ...] = ("above", "below")
    for limit in limits_of(problem):
        for side in sides:
            found = []
            for levers in (ALL, ALL.without(lever)):
                model = stage_model(build_stages(problem), limit, side=side, width=width, levers=levers)
                found.append(model.model.minimize("highs", LIMITS)[0])
            if width is None:
                assert [f.status for f in found] == [found[0].status] * 2
                assert found[0].objective is None or found[1].objective == near(found[0].objective)
            elif side == "below" and found[0].objective is not None:  # a relaxation may be weaker, never stronger
                whole = stage_model(build_stages(problem), limit, width=None).model.minimize("highs", LIMITS)[0]
                for f in found:
                    assert whole.objective is None or f.objective <= whole.objective + 1e-4 * (1 + whole.objective)


@pytest.mark.parametrize("lever", LEVERS)
@settings(max_examples=12)
@given(seed=seeds, ops=st.integers(4, 7))
def test_what_a_search_proves_holds(lever: str, seed: int, ops: int) -> None:
    """Against the whole model of its class, which above and in ``test_stages`` is compared with exhaustive search."""
    problem = random_joint(seed, ops, PLAIN)
    for limit in limits_of(problem):
        result = solve(problem, limit, Limits(time_limit=20), ALL.without(lever))
        assert result.plan is not None
        assert validate(problem.with_budget(limit), result.plan).ok
        whole = stage_model(build_stages(problem), limit, width=None).model.minimize("highs", LIMITS)[0]
        assert result.overhead is not None
        assert result.bound is not None
        if whole.objective is not None:  # polish may leave the class
            assert 100 * result.bound <= whole.objective + 1e-4 * (1 + whole.objective)
            if result.status is Status.OPTIMAL:
                assert 100 * result.overhead <= whole.objective + 1e-4 * (1 + whole.objective)


@pytest.mark.parametrize("lever", LEVERS)
def test_what_no_plan_fits_is_refused_without_any_lever(lever: str) -> None:
    problem = random_joint(3, 7, PLAIN)
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    with pytest.raises(InfeasibleBudget) as error:
        solve(problem, lowest.peak_bytes - 1, Limits(time_limit=20), ALL.without(lever))
    assert error.value.smallest >= lowest.peak_bytes


def test_levers_have_names() -> None:
    assert all(getattr(ALL, name) for name in LEVERS)
    assert [name for name in LEVERS if not getattr(Levers(polish=False), name)] == ["polish"]
    assert set(OF_MODELS) < set(LEVERS)
    with pytest.raises(ValueError, match="no lever is called 'polsh'"):
        ALL.without("polsh")
