"""The plans of the experiment on cost models, and its figures.  What the clock says is no test."""

from __future__ import annotations

import math

import pytest

from experiments.common import load, problem_of
from experiments.cost_models import DISTANCE, ceiling, correlation, errors, plan_at, predicted
from optpart.plans import baseline
from optpart.problem import Problem
from optpart.validate import validate


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(*load({"model": "gpt", "preset": "tiny"}))[1]


@pytest.mark.parametrize("number", [0, 1, 5, 12])
def test_plans_are_near_what_is_asked_for(problem: Problem, number: int) -> None:
    plan = plan_at(problem, number * DISTANCE, number)
    verdict = validate(problem, plan)
    assert verdict.ok
    assert abs(verdict.overhead - number * DISTANCE) <= DISTANCE / 2 + 1e-12
    assert predicted(problem, plan) == pytest.approx((1 + verdict.overhead) * problem.total_time)
    assert plan == plan_at(problem, number * DISTANCE, number)


def test_plans_of_one_length_differ(problem: Problem) -> None:
    saved = {frozenset(plan_at(problem, 0.1, seed).saved(problem.graph)) for seed in range(4)}
    assert len(saved) == 4
    assert predicted(problem, baseline(problem.graph)) == pytest.approx(problem.total_time)


def test_figures() -> None:
    assert correlation([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)
    assert correlation([1, 1], [1, 2]) is None
    assert ceiling([1, 2, 3], [1, 2, 3]) == pytest.approx(1.0)
    assert ceiling([1, 2, 3], [10, 20, 15]) == pytest.approx((2 / 3) ** 0.5)
    assert ceiling([1, 2, 3], [3, 2, 1]) == 0.0
    raw, scaled = errors([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (raw, scaled) == (0.5, 0.0)
    assert all(math.isfinite(e) for e in errors([1e-9], [1.0]))
