"""What solvers give back, and the one way to call MathOpt."""

from __future__ import annotations

import json
import logging
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import four_inputs
from ortools.math_opt.python import mathopt

from optpart.plans import Plan, baseline, plan_from_json
from optpart.solver.base import (
    InfeasibleBudget,
    Limits,
    Progress,
    ProgressLog,
    Result,
    Status,
    conclude,
    gap,
    result_to_json,
)
from optpart.solver.mathopt import Outcome, SolverError, SolverName, parse_row, solve

ROOT = Path(__file__).resolve().parent.parent
RECOMPUTES_COS = Plan((0, 1, 2, 3, 4), (3, 5, 6, 7, 8, 9, 10))


def result(status: Status, plan: Plan | None, **changes: Any) -> Result:
    settings = {"unit": 1.0, "objective": 1, "objective_bound": 1, "plan_class": "c", "formulation": "f", "solver": "s"}
    return conclude(four_inputs(), status, plan, **{**settings, "seconds": 0.5, **changes})


# --------------------------------------------------------------------------------------------- results


def test_gap_is_the_share_that_is_not_proven_necessary() -> None:
    assert gap(0.2, 0.15) == pytest.approx(0.25)
    assert gap(0.2, 0.0) == 1
    assert gap(0.0, 0.0) == 0
    assert gap(0.2, 0.2 + 1e-9) == 0
    assert gap(None, 0.1) is None
    assert gap(0.1, None) is None
    with pytest.raises(ValueError, match="one of the two is wrong"):
        gap(0.1, 0.2)


def test_fractions_follow_from_the_plan_and_the_unit() -> None:
    """Eleven ops of one unit each; cos runs twice."""
    optimal = result(Status.OPTIMAL, RECOMPUTES_COS)
    assert optimal.overhead == optimal.bound == pytest.approx(1 / 11)
    assert optimal.gap == 0
    feasible = result(Status.FEASIBLE, RECOMPUTES_COS, objective=4, objective_bound=1, unit=0.25)
    assert feasible.bound == pytest.approx(1 / 44)
    assert feasible.gap == pytest.approx(0.75)
    nothing = result(Status.OPTIMAL, baseline(four_inputs().graph), objective=0, objective_bound=0)
    assert (nothing.overhead, nothing.bound, nothing.gap) == (0, 0, 0)
    unknown = result(Status.NO_PLAN, None, objective=None, objective_bound=-math.inf)
    assert (unknown.overhead, unknown.bound, unknown.gap) == (None, None, None)


def test_a_bound_that_rounding_cannot_explain_is_refused() -> None:
    """Eleven run times rounded to 0.001 each: 0.01 too much may be rounding, 4 too much is not."""
    rounded = result(Status.FEASIBLE, RECOMPUTES_COS, objective=1010, objective_bound=1010, unit=0.001)
    assert rounded.bound == rounded.overhead
    with pytest.raises(ValueError, match="one of the two is wrong"):
        result(Status.FEASIBLE, RECOMPUTES_COS, objective=5000, objective_bound=5000, unit=0.001)


def test_a_status_and_its_plan_belong_together() -> None:
    with pytest.raises(ValueError, match="OPTIMAL"):
        result(Status.OPTIMAL, None)
    with pytest.raises(ValueError, match="NO_PLAN"):
        result(Status.NO_PLAN, RECOMPUTES_COS)


def test_json_has_the_status_by_name_and_as_a_sentence() -> None:
    rows = [Progress(0.1, 3, 0.5, 1.0)]
    data = json.loads(
        json.dumps(result_to_json(result(Status.FEASIBLE, RECOMPUTES_COS, objective_bound=0.5, progress=rows)))
    )
    assert data["status"] == "feasible"
    assert data["message"] == Status.FEASIBLE.value
    assert data["gap"] == pytest.approx(0.5)
    assert data["seconds"] == 0.5
    assert data["deterministic"] is True
    assert data["progress"] == [{"seconds": 0.1, "nodes": 3, "best_bound": 0.5, "best_solution": 1.0, "gap": 0.5}]
    assert plan_from_json(data["plan"]) == RECOMPUTES_COS
    assert result_to_json(result(Status.INFEASIBLE, None, objective=None, objective_bound=None))["plan"] is None


def test_infeasible_budget_names_the_smallest_peak_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(InfeasibleBudget(1 << 20, 3 << 20)))
    assert (error.budget, error.smallest) == (1 << 20, 3 << 20)
    assert "3.00 MiB (3145728 bytes)" in str(error)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    "wrong", [{"time_limit": -1.0}, {"time_limit": math.nan}, {"work": -1}, {"threads": 0}, {"seed": -1}]
)
def test_limits_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="limits"):
        Limits(**wrong)


def test_progress_is_a_table_without_repetitions(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="optpart.solver.base"):
        log = ProgressLog("least recompute")
        log.add(0, None, None)
        log.add(1, 0.5, None)
        log.add(2, 0.5, None)
        log.add(7, 0.5, 1.0)
    assert [(e.nodes, e.gap) for e in log.events] == [(0, None), (1, None), (7, 0.5)]
    lines = caplog.text.splitlines()
    assert lines[0].endswith("least recompute")
    assert [cell.strip() for cell in lines[1].split("|")] == ["Time", "Nodes", "BestBound", "BestSol", "Gap"]
    assert [cell.strip() for cell in lines[-1].split("|")[1:]] == ["7", "0.5", "1", "50.00%"]


# --------------------------------------------------------------------------------------------- MathOpt

SOLVERS: tuple[SolverName, ...] = ("scip", "highs", "cp-sat")


def cover(n: int = 12) -> tuple[mathopt.Model, list[mathopt.Variable]]:
    """Least cost of a cover with two rows: small, and not integral as an LP."""
    model = mathopt.Model(name="cover")
    x = [model.add_binary_variable() for _ in range(n)]
    for k in (5, 7):
        model.add_linear_constraint(mathopt.fast_sum((1 + k * i % 11) * v for i, v in enumerate(x)) >= 3.5 * n)
    model.minimize(mathopt.fast_sum((3 + 4 * i % 13) * v for i, v in enumerate(x)))
    return model, x


def brute_force_cover(n: int = 12) -> int:
    rows = [[1 + k * i % 11 for i in range(n)] for k in (5, 7)]
    best = math.inf
    for mask in range(1 << n):
        chosen = [i for i in range(n) if mask >> i & 1]
        if all(sum(row[i] for i in chosen) >= 3.5 * n for row in rows):
            best = min(best, sum(3 + 4 * i % 13 for i in chosen))
    return int(best)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_proves_the_optimum(solver: SolverName) -> None:
    model, x = cover()
    hint = dict.fromkeys(x, 1.0)
    outcome = solve(model, solver, Limits(time_limit=60, threads=2, seed=1), hint=hint, whole=True)
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == outcome.bound == brute_force_cover()
    assert sum(3 + 4 * i % 13 for i, v in enumerate(x) if outcome.chosen(v)) == outcome.objective
    assert outcome.deterministic
    assert outcome.progress[-1].best_solution == outcome.objective


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_proves_that_there_is_no_solution(solver: SolverName) -> None:
    model, x = cover()
    model.add_linear_constraint(mathopt.fast_sum(x) <= 1.0)
    outcome = solve(model, solver)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.objective is None
    assert outcome.values == {}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_clock_that_ran_out_is_reported_as_not_deterministic(solver: SolverName) -> None:
    outcome = solve(cover(200)[0], solver, Limits(time_limit=0.0), whole=True)
    assert not outcome.deterministic
    assert outcome.status in (Status.NO_PLAN, Status.FEASIBLE)


@pytest.mark.parametrize("solver", ["scip", "highs"])
def test_a_node_limit_gives_an_incumbent_and_a_bound_and_is_deterministic(solver: SolverName) -> None:
    first, second = (solve(cover(60)[0], solver, Limits(work=1, threads=2), whole=True) for _ in range(2))
    assert first.deterministic
    assert (first.objective, first.bound, first.nodes) == (second.objective, second.bound, second.nodes)
    assert first.objective is not None
    assert first.bound is not None
    assert 0 < first.bound <= first.objective


@pytest.mark.parametrize("solver", SOLVERS)
def test_ctrl_c_is_still_pythons_after_a_solve(solver: SolverName) -> None:
    """CP-SAT leaves the default handler behind, with which the next Ctrl-C would end the process."""
    code = f"""
import signal
from ortools.math_opt.python import mathopt
from optpart.solver.mathopt import solve
model = mathopt.Model()
model.minimize(model.add_binary_variable())
solve(model, {solver!r})
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("caught")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "caught\n", done.stderr


@pytest.mark.parametrize("solver", ["glop", "pdlp"])
def test_relaxations_are_solved_too(solver: SolverName) -> None:
    model = mathopt.Model()
    x = model.add_variable(lb=0, ub=4)
    model.add_linear_constraint(2 * x >= 3)
    model.minimize(x)
    outcome = solve(model, solver)
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == pytest.approx(1.5, rel=1e-4)
    assert outcome.bound == pytest.approx(1.5, rel=1e-4)


def test_what_a_solver_refuses_comes_with_its_own_words() -> None:
    model = mathopt.Model()
    model.add_binary_variable(name="x")
    model.add_binary_variable(name="x")
    with pytest.raises(SolverError, match=r"scip: .*duplicate"):
        solve(model, "scip")
    unbounded = mathopt.Model()
    unbounded.minimize(unbounded.add_variable())
    with pytest.raises(SolverError, match="scip: UNBOUNDED"):
        solve(unbounded, "scip")
    unbounded.maximize(0.0)
    with pytest.raises(ValueError, match="minimises"):
        solve(unbounded, "scip")


def test_binaries_are_rounded_and_anything_else_refused() -> None:
    model = mathopt.Model()
    x, y, z = (model.add_binary_variable() for _ in range(3))
    values = {x: 0.99997, y: -1e-6, z: 0.4}
    outcome = Outcome(Status.FEASIBLE, values, 0.0, None, 0, 0.0, True, False, ())
    assert outcome.chosen(x)
    assert not outcome.chosen(y)
    with pytest.raises(SolverError, match=r"0\.4"):
        outcome.chosen(z)


def test_rows_of_the_logs_are_read() -> None:
    scip = "r 0.0s|    1k|     0 |    31 |     - |rounding|   0 |  60 |   5 |  13 |   8 |  7 |   0 |   0 | 2.787086e+04 | 4.264750e+04 |  53.02%| unknown"
    assert parse_row(scip) == (1000, 27870.86, 42647.5)
    first = "  0.0s|     1 |     0 |     0 |     - |   locks|   0 |  60 |   5 |   5 |   0 |  0 |   0 |   0 |      --      |      --      |    Inf | unknown"
    assert parse_row(first) == (1, None, None)
    header = " time | node  | left  |LP iter|LP it/n|mem/heur|mdpt |vars |cons |rows |cuts |sepa|confs|strbr|  dualbound   | primalbound  |  gap   | compl. "
    assert parse_row(header) is None
    highs = " S      44       3        20  68.75%   28114.343944    28476              1.27%      454      5    520      2325     0.4s"
    assert parse_row(highs) == (44, 28114.343944, 28476)
    start = "         0       0         0   0.00%   -inf            inf                  inf        0      0      0         0     0.0s"
    assert parse_row(start) == (0, None, None)
    assert parse_row("#Bound   0.00s best:inf   next:[7,126098] initial_domain") == (0, 7, None)
    assert parse_row("#2       0.01s best:30436 next:[27961.5,30432.5] main") == (0, 27961.5, 30436)
    assert parse_row("#Done    0.11s main") is None
    assert parse_row("  Gap               0% (tolerance: 0.01%)") is None
