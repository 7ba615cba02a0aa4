"""What each lever of the peak search is worth: the same limit on the peak, solved with all of them and without each.

The limit is a fraction of the range from the smallest peak that the search finds to the peak with nothing
recomputed, in bytes, and the same for every row of a model.  ``without`` names the lever that is off ("": none).
Seconds depend on the machine; branch-and-bound nodes and what is proven do not, unless the clock ran out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from experiments.common import as_text, load, percent, problem_of, solved
from experiments.registry import Experiment, Row, Table, TextRow, number
from optpart.formulation.levers import ALL, LEVERS
from optpart.peak_search import PeakSearch
from optpart.problem import Problem
from optpart.solver.base import Limits
from optpart.strategy import solve

MODELS = (("gpt", "layers=12"), ("llama", "layers=12"), ("lstm", ""), ("moe", ""))
FRACTIONS = (0.25, 0.1)
LIMITS = Limits(time_limit=30.0)
NONE = ""  # all levers are on


@functools.lru_cache(maxsize=1)
def searched(model: str, preset: str, config: str) -> tuple[Problem, int, int]:
    """The model's problem, the smallest peak that the search finds, and the peak with nothing recomputed, in bytes."""
    _, problem = problem_of(*load({"model": model, "preset": preset, "config": config}))
    search = PeakSearch(problem, LIMITS)
    search.find_smallest(LIMITS.time_limit)
    return problem, search.smallest, search.nothing.live.peak_bytes


def run(case: Row) -> Row:
    problem, low, high = searched(str(case["model"]), str(case["preset"]), str(case["config"]))
    limit = low + int(float(case["fraction"] or 0.0) * (high - low))
    without = str(case["without"])
    result = solve(problem, limit, LIMITS, ALL if without == NONE else ALL.without(without))
    return {
        "budget_bytes": limit,
        "nodes": result.nodes,
        **solved(result),
    }


def table(rows: Sequence[TextRow]) -> Table:
    """For each lever, over the rows that have one with all levers beside them: what its absence does."""
    full = {_problem(r): r for r in rows if r["without"] == NONE}
    lines = []
    for without in (NONE, *LEVERS):
        pairs = [(full[_problem(r)], r) for r in rows if r["without"] == without and _problem(r) in full]
        if pairs:
            mine = [r for _, r in pairs]
            worse = max((number(r, "overhead") or 0.0) - (number(f, "overhead") or 0.0) for f, r in pairs)
            gaps = [number(r, "gap") for r in mine]
            cells = [
                str(len(mine)),
                str(sum(r["status"] == "optimal" for r in mine)),
                percent(math.fsum(g for g in gaps if g is not None) / len(gaps)),
                percent(worse),
                f"{_mean_ratio(pairs, 'seconds'):.2f}",
                f"{_mean_ratio(pairs, 'nodes'):.2f}",
            ]
            lines.append((without or "(none)", *cells))
    header = "without rows proven mean_gap_% most_overhead_added_% seconds_x nodes_x"
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return as_text(table(rows))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    return {
        "Levers": str(len({r["without"] for r in rows if r["without"] != NONE})),
        "Questions": str(len({_problem(r) for r in rows})),
    }


def _problem(row: TextRow) -> tuple[str, ...]:
    return tuple(row[k] for k in ("model", "preset", "config", "fraction"))


def _mean_ratio(pairs: Sequence[tuple[TextRow, TextRow]], column: str) -> float:
    """The geometric mean of without / with, one added to both: a search may take no node at all."""
    logs = [math.log((1 + (number(r, column) or 0.0)) / (1 + (number(f, column) or 0.0))) for f, r in pairs]
    return math.exp(math.fsum(logs) / len(logs))


def cases(models: Sequence[tuple[str, str, str]], fractions: Sequence[float]) -> tuple[Row, ...]:
    return tuple(
        {"model": m, "preset": preset, "config": config, "fraction": f, "without": lever}
        for m, preset, config in models
        for f in fractions
        for lever in (NONE, *LEVERS)
    )


SPEC = Experiment(
    name="ablation",
    label="Table 6",
    title="What each lever of the search is worth",
    cases=cases([(m, "default", config) for m, config in MODELS], FRACTIONS),
    smoke=cases([("gpt", "tiny", "layers=1")], (0.25,)),
    results=("budget_bytes", "status", "overhead", "bound", "gap", "nodes", "seconds", "deterministic"),
    run=run,
    summary=summary,
    minutes=60,
    table=table,
    numbers=numbers,
)
