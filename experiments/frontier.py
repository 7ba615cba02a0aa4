"""Peak memory against overhead at many budgets, with bounds, beside PyTorch's memory budgets: the frontier's raw answers.

A row is one solve of ours, at a fraction of the range from the smallest peak to the peak with nothing recomputed, or one
partition of PyTorch's, at a fraction of its own.  Peaks are simulated; that they are what is measured is another table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.common import answer_of, as_text, mib, name_of, percent, problem_for, solved
from experiments.registry import Experiment, Row, Table, TextRow, median, number
from optpart.liveness import simulate
from optpart.solver.base import Limits
from optpart.strategy import solve

MODELS = (("gpt", ""), ("llama", ""), ("vit", ""), ("unet", ""))
OURS, THEIRS = "optpart", "PyTorch"
BUDGETS = {
    OURS: (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0),
    THEIRS: (1.0, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0),
}
TIME_LIMIT = 30.0  # seconds for one solve


def run(case: Row) -> Row:
    captured, problem = problem_for(case)
    budget = float(case["memory_budget"] or 0)
    if case["who"] == THEIRS:
        answer = answer_of(captured, problem, budget)
        if answer.overhead is None:
            raise RuntimeError(f"PyTorch: {answer.problem}")
        return {"peak_bytes": answer.peak_bytes, "overhead": answer.overhead, "problem": answer.problem}
    result = solve(problem, budget, Limits(TIME_LIMIT))
    assert result.plan is not None  # a fraction is never infeasible
    return {
        "budget_bytes": result.budget_bytes,
        "peak_bytes": simulate(problem, result.plan).peak_bytes,
        **solved(result),
    }


def summary(rows: Sequence[TextRow]) -> str:
    lines = (
        (
            name_of(r),
            r["who"],
            r["memory_budget"],
            mib(number(r, "peak_bytes")),
            percent(number(r, "overhead")),
            percent(number(r, "bound")),
        )
        for r in rows
    )
    return as_text(Table(("model", "who", "budget", "peak_MiB", "overhead_%", "bound_%"), tuple(lines)))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    mine = [r for r in rows if r["who"] == OURS]
    gaps = [float(r["gap"]) for r in mine if r["gap"]]
    return {
        "Points": str(len(mine)),
        "Optimal": str(sum(r["status"] == "optimal" for r in mine)),
        "MedianGap": percent(median(gaps) if gaps else None),
        "LargestGap": percent(max(gaps, default=None)),
    }


def _cases(models: Sequence[tuple[str, str]], preset: str, budgets: Mapping[str, Sequence[float]]) -> tuple[Row, ...]:
    return tuple(
        {"model": m, "preset": preset, "config": c, "who": who, "memory_budget": b}
        for m, c in models
        for who, some in budgets.items()
        for b in some
    )


SPEC = Experiment(
    name="frontier",
    label="Figure 1",
    title="Peak memory against overhead, with proven bounds",
    cases=_cases(MODELS, "default", BUDGETS),
    smoke=_cases((("gpt", ""),), "tiny", {OURS: (0.0, 0.5, 1.0), THEIRS: (0.6, 0.1)}),
    results=("budget_bytes", "peak_bytes", "overhead", "bound", "gap", "status", "seconds", "deterministic", "problem"),
    run=run,
    summary=summary,
    minutes=25,
    numbers=numbers,
)
