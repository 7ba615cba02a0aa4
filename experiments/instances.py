"""Public rematerialization instances, and random layered graphs of their family: ours beside what was published.

The instances are those of MOCCASIN's repository; its license keeps them out of this one, so their rows are skipped
unless ``--instances DIR`` (or OPTPART_INSTANCES) says where they are.  A budget is a percentage of the given order's
peak, rounded up to a whole unit; the memory rule is that of the published numbers (``optpart.problem.BARE_RULE``).

Published figures: Checkmate's model with Gurobi, and MOCCASIN with CP-SAT on 16 cores, from Bartan et al.,
"Moccasin: efficient tensor rematerialization for neural networks", ICML 2023; FastSA on one core, in any order, from
Imanishi et al., "A fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.common import as_text, percent, solved
from experiments.registry import Cell, Experiment, Row, Skipped, Table, TextRow, number
from optpart.fixed_order import FixedOrderSearch
from optpart.liveness import simulate
from optpart.plans import baseline
from optpart.problem import Problem, load_problem
from optpart.random_graphs import random_layered
from optpart.solver.base import Limits
from optpart.validate import validate

TIME_LIMIT = 300.0  # seconds for one solve
CHECKMATE, MOCCASIN, FASTSA = "checkmate", "moccasin", "fastsa"
# (instance, percent) -> method -> (overhead in percent, peak in percent, seconds)
PUBLISHED: dict[tuple[str, int], dict[str, tuple[float, float, float]]] = {
    ("rlg1", 90): {CHECKMATE: (0.8, 89.2, 18.5), MOCCASIN: (0.8, 88.1, 9.3), FASTSA: (0.0, 79.4, 11.7)},
    ("rlg1", 80): {CHECKMATE: (2.3, 79.5, 22.7), MOCCASIN: (2.3, 79.5, 9.5), FASTSA: (0.3, 79.4, 11.5)},
    ("rlg1", 70): {},  # FastSA reaches 77.3 % only
    ("rlg2", 90): {CHECKMATE: (0.9, 90.0, 685.0), MOCCASIN: (0.9, 89.8, 55.0), FASTSA: (0.0, 77.3, 15.0)},
    ("rlg2", 80): {MOCCASIN: (4.9, 80.0, 640.0), FASTSA: (0.0, 72.2, 15.0)},
    ("rlg4", 90): {MOCCASIN: (0.7, 90.0, 3613.0), FASTSA: (0.4, 87.5, 36.0)},
    ("rlg4", 80): {MOCCASIN: (3.4, 80.0, 3612.0), FASTSA: (2.5, 78.4, 36.0)},
    ("cm1_fcn8", 90): {CHECKMATE: (0.0, 88.4, 6.3), MOCCASIN: (0.0, 88.4, 3.1), FASTSA: (0.1, 75.3, 9.4)},
    ("cm1_fcn8", 80): {CHECKMATE: (0.1, 76.9, 5.6), MOCCASIN: (0.1, 78.9, 3.1), FASTSA: (0.1, 75.1, 9.7)},
    ("cm1_fcn8", 70): {FASTSA: (3.0, 62.3, 9.7)},
    ("vgg16", 90): {},
    ("vgg16", 80): {},
    ("unet", 90): {},
    ("unet", 80): {},
    ("unet", 70): {},
}
LAYERED = (50, 100, 150)  # nodes
SEEDS = (1, 2, 3)


def _case(instance: str, percent_of_peak: int, formulation: str = "sequence-stages") -> Row:
    return {"instance": instance, "percent": percent_of_peak, "formulation": formulation}


CASES = (
    *(_case(name, p) for name, p in PUBLISHED),
    *(_case(name, p, "checkmate") for name, p in PUBLISHED if name not in ("rlg2", "rlg4")),
    *(_case(f"layered {n} seed {s}", 90, f) for n in LAYERED for s in SEEDS for f in ("sequence-stages", "checkmate")),
)


def problem_of(instance: str) -> Problem:
    """A public instance, or the layered graph of a name such as "layered 50 seed 1".

    Raises:
        Skipped: the public instances are absent.
    """
    if instance.startswith("layered"):
        _, n, _, seed = instance.split()
        return random_layered(int(n), int(seed))
    folder = os.environ.get("OPTPART_INSTANCES", "")
    file = Path(folder) / f"{instance}.json"
    if not folder or not file.exists():
        raise Skipped("instances absent (see --instances)")
    return load_problem(file)


def run(case: Row) -> Row:
    problem = problem_of(str(case["instance"]))
    given_peak = simulate(problem, baseline(problem.graph)).peak_bytes
    budget = math.ceil(int(case["percent"] or 0) * given_peak / 100)
    limits = Limits(TIME_LIMIT)
    result = FixedOrderSearch(problem, budget, limits, formulation=str(case["formulation"])).run()
    found: dict[str, Cell] = {
        "ops": len(problem.graph.ops),
        "budget_bytes": budget,
        **solved(result),
        "plan_class": result.plan_class,
    }
    if result.plan is not None:
        verdict = validate(problem.with_budget(budget), result.plan)
        if not verdict.ok:
            raise RuntimeError(f"the plan is not valid: {verdict.faults[0]}")
        found |= {"peak_bytes": verdict.peak_bytes, "peak_of_given": verdict.peak_bytes / given_peak}
    published = PUBLISHED.get((str(case["instance"]), int(case["percent"] or 0)), {})
    for method, (overhead, peak, seconds) in published.items():
        found |= {
            f"{method}_overhead": overhead / 100,
            f"{method}_peak_of_given": peak / 100,
            f"{method}_seconds": seconds,
        }
    return found


def table(rows: Sequence[TextRow]) -> Table:
    header = (
        "instance percent formulation status overhead_% bound_% peak_% seconds Checkmate MOCCASIN FastSA_(any_order)"
    )
    lines = (
        (
            *(r[k] for k in ("instance", "percent", "formulation", "status")),
            *(percent(number(r, k)) for k in ("overhead", "bound", "peak_of_given")),
            f"{float(r['seconds']):.1f}",
            *(_published(r, method) for method in (CHECKMATE, MOCCASIN, FASTSA)),
        )
        for r in rows
    )
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return f"{as_text(table(rows))}\n  proven: {_proven(rows)} of {len(rows)}; published: overhead % / peak % / seconds"


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    ours = [r for r in rows if r["formulation"] == "sequence-stages"]
    return {"Solved": str(len(ours)), "Proven": str(_proven(ours)), "LimitSeconds": f"{TIME_LIMIT:g}"}


def _proven(rows: Sequence[TextRow]) -> int:
    return sum(r["status"] in ("optimal", "infeasible") for r in rows)


def _published(row: TextRow, method: str) -> str:
    if not row[f"{method}_overhead"]:
        return "-"
    overhead, peak = (100 * float(row[f"{method}_{k}"]) for k in ("overhead", "peak_of_given"))
    return f"{overhead:.1f} / {peak:.1f} / {float(row[f'{method}_seconds']):g}"


SPEC = Experiment(
    name="instances",
    label="Table 5",
    title="Public instances and random layered graphs in their given order, with proofs",
    cases=CASES,
    smoke=(_case("vgg16", 90), _case("layered 12 seed 1", 90), _case("layered 12 seed 1", 90, "checkmate")),
    results=(
        *("ops", "budget_bytes", "status", "overhead", "bound", "gap", "peak_bytes", "peak_of_given", "seconds"),
        *("deterministic", "plan_class"),
        *(f"{m}_{k}" for m in (CHECKMATE, MOCCASIN, FASTSA) for k in ("overhead", "peak_of_given", "seconds")),
    ),
    run=run,
    summary=summary,
    minutes=60,
    table=table,
    numbers=numbers,
)
