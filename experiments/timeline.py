"""Live bytes at every step, by kind: nothing recomputed, PyTorch's partition at a memory budget, our plan at its peak.

A row is one plan.  A series is one cell, its numbers with a space between: ``saved_bytes_by_step`` and so on, from the
first step of the forward to the last one of the backward.  They add up to the simulator's live bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.common import TIME_LIMIT, answer_of, as_text, mib, name_of, percent, problem_for
from experiments.registry import Experiment, Row, Table, TextRow, number
from optpart.liveness import simulate
from optpart.plans import baseline
from optpart.solver.base import Limits
from optpart.strategy import solve
from optpart.timelines import Band, timeline

MODELS = (("gpt", ""), ("unet", ""))
NOTHING, THEIRS, OURS = "nothing recomputed", "PyTorch", "optpart"
PYTORCH_BUDGET = 0.2
SERIES = {band: f"{band.name.lower()}_bytes_by_step" for band in Band}


def run(case: Row) -> Row:
    captured, problem = problem_for(case)
    plan = baseline(problem.graph)
    if case["who"] != NOTHING:
        answer = answer_of(captured, problem, PYTORCH_BUDGET)
        if answer.plan is None or answer.peak_bytes is None:
            raise RuntimeError(f"PyTorch: {answer.problem}")
        plan = answer.plan
    if case["who"] == OURS:
        result = solve(problem, int(simulate(problem, plan).peak_bytes), Limits(TIME_LIMIT))
        assert result.plan is not None  # PyTorch's fits
        plan = result.plan
    live = simulate(problem, plan)
    found = timeline(problem, plan, live)
    series = {column: " ".join(map(str, found.bands[band])) for band, column in SERIES.items()}
    return {
        "peak_bytes": found.peak_bytes,
        "saved_bytes": live.saved_bytes,
        "overhead": live.overhead,
        "forward_steps": found.split,
        "steps": len(found.ops),
        **series,
    }


def summary(rows: Sequence[TextRow]) -> str:
    lines = (
        (
            name_of(r),
            r["who"],
            mib(number(r, "peak_bytes")),
            mib(number(r, "saved_bytes")),
            percent(number(r, "overhead")),
            r["steps"],
        )
        for r in rows
    )
    return as_text(Table(("model", "who", "peak_MiB", "saved_MiB", "overhead_%", "steps"), tuple(lines)))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    return {"Budget": f"{PYTORCH_BUDGET:g}", "Models": str(len({name_of(r) for r in rows}))}


def _cases(models: Sequence[tuple[str, str]], preset: str) -> tuple[Row, ...]:
    return tuple(
        {"model": m, "preset": preset, "config": c, "who": who} for m, c in models for who in (NOTHING, THEIRS, OURS)
    )


SPEC = Experiment(
    name="timeline",
    label="Figure 2",
    title="Live bytes at every step",
    cases=_cases(MODELS, "default"),
    smoke=_cases((("gpt", ""),), "tiny"),
    results=("peak_bytes", "saved_bytes", "overhead", "forward_steps", "steps", *SERIES.values()),
    run=run,
    summary=summary,
    minutes=3,
    numbers=numbers,
)
