"""What a search has after 1, 2, 5, ... seconds: the best plan's overhead and the bound, by time limit.

A row is one solve, from nothing, with its own limit: what a user gets who sets it.  The budget in bytes is the peak of
PyTorch's partition at a memory budget of its own, so that it does not depend on the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.common import answer_of, as_text, mib, name_of, percent, problem_for, solved
from experiments.registry import Experiment, Row, Table, TextRow, number
from optpart.solver.base import Limits
from optpart.strategy import solve

MODELS = (("gpt", "layers=12", 0.2), ("llama", "", 0.3))
SECONDS = (1, 2, 5, 10, 20, 40, 80, 160)


def run(case: Row) -> Row:
    captured, problem = problem_for(case)
    answer = answer_of(captured, problem, float(case["pytorch_budget"] or 0))
    if answer.peak_bytes is None:
        raise RuntimeError(f"PyTorch: {answer.problem}")
    result = solve(problem, int(answer.peak_bytes), Limits(float(case["limit_seconds"] or 0)))
    return {
        "budget_bytes": answer.peak_bytes,
        "pytorch_overhead": answer.overhead,
        **solved(result),
    }


def summary(rows: Sequence[TextRow]) -> str:
    lines = (
        (
            name_of(r),
            mib(number(r, "budget_bytes")),
            r["limit_seconds"],
            f"{float(r['seconds']):.1f}",
            percent(number(r, "overhead")),
            percent(number(r, "bound")),
        )
        for r in rows
    )
    return as_text(Table(("model", "budget_MiB", "limit_s", "took_s", "overhead_%", "bound_%"), tuple(lines)))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    shortest = min(rows, key=lambda r: float(r["limit_seconds"]))
    return {"Shortest": shortest["limit_seconds"], "Longest": max((r["limit_seconds"] for r in rows), key=float)}


def _cases(models: Sequence[tuple[str, str, float]], preset: str, seconds: Sequence[int]) -> tuple[Row, ...]:
    return tuple(
        {"model": m, "preset": preset, "config": c, "pytorch_budget": b, "limit_seconds": s}
        for m, c, b in models
        for s in seconds
    )


SPEC = Experiment(
    name="time_limit",
    label="Figure 3",
    title="The best plan and the bound, by time limit",
    cases=_cases(MODELS, "default", SECONDS),
    smoke=_cases((("gpt", "", 0.2),), "tiny", (1, 2)),
    results=("budget_bytes", "pytorch_overhead", "status", "overhead", "bound", "gap", "seconds", "deterministic"),
    run=run,
    summary=summary,
    minutes=12,
    numbers=numbers,
)
