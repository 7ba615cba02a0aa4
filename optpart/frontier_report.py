"""A frontier as text for a person, as CSV and as one JSON object.  Nothing here runs a model or a solver.

CSV and JSON have both halves of each point: what is on the frontier, and in ``raw_...`` (JSON: ``raw``) the
solver's own answer to that budget alone.  ``plan_of_budget_bytes`` is the budget that the plan was found
for: the point's own, or another one where the answer to that one fits and has less overhead.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optpart.report import fractions_text, table, time_text
from optpart.report_json import answer_to_json, versions
from optpart.units import format_bytes

if TYPE_CHECKING:  # both import torch; their data is only read
    from optpart.frontiers import Frontier
    from optpart.pytorch_plans import PytorchAnswer

COLUMNS = (
    *("method", "memory_budget", "budget_bytes", "peak_bytes", "measured_peak_bytes", "saved_bytes", "overhead"),
    *("bound", "gap", "recomputed_ops", "plan_of_budget_bytes", "seconds", "step_seconds", "deterministic"),
    *("raw_status", "raw_peak_bytes", "raw_overhead", "raw_bound", "problem"),
)


def point_rows(frontier: Frontier) -> list[dict[str, Any]]:
    """One flat object for each of our points, by rising budget."""
    rows = []
    for i, p in enumerate(frontier.points):
        run = frontier.measured[i] if frontier.measured else None
        result, live = p.answer.result, p.answer.live
        rows.append(
            {
                "memory_budget": p.answer.memory_budget,
                "budget_bytes": p.budget_bytes,
                "peak_bytes": p.peak_bytes,
                "measured_peak_bytes": run and run.peak_bytes,
                "saved_bytes": p.live.saved_bytes,
                "overhead": p.overhead,
                "bound": p.bound,
                "gap": p.gap,
                "recomputed_ops": len(p.plan.recomputes()),
                "plan_of_budget_bytes": p.best.budget_bytes,
                "seconds": result.seconds,
                "step_seconds": run and run.step_seconds,
                "deterministic": result.deterministic,
                "raw_status": result.status.name.lower(),
                "raw_peak_bytes": live and live.peak_bytes,
                "raw_overhead": result.overhead,
                "raw_bound": result.bound,
            }
        )
    return rows


def frontier_to_csv(frontier: Frontier) -> str:
    """One row for each point of ours (method "optpart"), then PyTorch's.  Sizes in bytes, overheads as fractions."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"method": "optpart", **row} for row in point_rows(frontier))
    for answer in frontier.pytorch:
        row: Mapping[str, Any] = answer_to_json(answer)
        writer.writerow({"memory_budget": answer.budget} | {k: v for k, v in row.items() if k in COLUMNS})
    return out.getvalue()


def frontier_to_json(frontier: Frontier) -> dict[str, Any]:
    """One JSON object: ``points`` by rising budget, ``pytorch`` beside them, and what it takes to run it again."""
    points = []
    for row in point_rows(frontier):
        raw = {name.removeprefix("raw_"): row.pop(name) for name in list(row) if name.startswith("raw_")}
        points.append(row | {"raw": raw})
    settings = frontier.settings
    return {
        "format": "optpart-frontier-1",
        "model": frontier.model,
        "config": dict(frontier.config),
        "points": points,
        "pytorch": [answer_to_json(a) for a in frontier.pytorch],
        "plan_class": frontier.points[0].answer.result.plan_class,
        "cost_model": frontier.problem.cost_model,
        "seconds": frontier.seconds,
        "deterministic": all(p.answer.result.deterministic for p in frontier.points),
        "seed": settings.seed,
        "time_limit": settings.time_limit,
        "workspace": settings.workspace,
        "versions": versions(),
    }


def frontier_text(frontier: Frontier) -> str:
    """Two tables: our points, and PyTorch's partitions with our overhead at no higher peak beside theirs."""
    problem, points = frontier.problem, frontier.points
    lines = [
        f"{frontier.model}: {len(problem.graph.ops)} ops, {len(problem.graph.values)} values; {time_text(problem)} by {problem.cost_model}",
        f"  budgets     {len(points)}, from {format_bytes(points[0].budget_bytes)} to {format_bytes(points[-1].budget_bytes)}",
        f"  bounds      for the class {points[0].answer.result.plan_class}",
    ]
    measured = len(frontier.measured) > 0
    header = ["budget", "peak", *(["measured"] if measured else []), "overhead, bound, gap", "recomputed ops", "solved in"]
    rows = []
    for i, p in enumerate(points):
        run = [_measured(p.peak_bytes, frontier.measured[i].peak_bytes)] if measured else []
        star = " *" if p.best is not p.answer else ""
        rows.append(
            [
                format_bytes(p.budget_bytes) + star,
                format_bytes(p.peak_bytes),
                *run,
                fractions_text(p.overhead, p.bound, p.gap),
                str(len(p.plan.recomputes())),
                f"{p.answer.result.seconds:.1f} s",
            ]
        )
    blocks = ["\n".join(lines), table(header, rows)]
    if any(p.best is not p.answer for p in points):
        blocks[-1] += "\n  * the plan found for another of these budgets: it fits this one, and is better than this one's own"
    if frontier.pytorch:
        blocks.append(_pytorch_table(frontier, measured))
    return "\n\n".join(blocks) + "\n"


def _pytorch_table(frontier: Frontier, measured: bool) -> str:
    header = ["PyTorch", "peak", *(["measured"] if measured else []), "overhead", "ours at no higher peak"]
    rows, troubles = [], []
    for a in frontier.pytorch:
        name = a.method if a.budget is None else f"{a.method} {a.budget:g}"
        if a.peak_bytes is not None and a.overhead is not None:
            run = [_measured(a.peak_bytes, a.measured_peak_bytes)] if measured else []
            ours = overhead_at(frontier, a)
            rows.append([name, format_bytes(a.peak_bytes), *run, f"{a.overhead:.2%}", "-" if ours is None else f"{ours:.2%}"])
        if a.problem:
            troubles.append(f"  {name}: {a.problem}")
    budgets = [p.budget_bytes for p in frontier.points]
    if any(budgets[0] < (a.peak_bytes or 0) < budgets[-1] and a.peak_bytes not in budgets for a in frontier.pytorch):
        troubles.append("  no budget of ours is at these peaks; with --at-pytorch (at_pytorch=True) they are solved too")
    return "\n".join([table(header, rows), *troubles])


def overhead_at(frontier: Frontier, answer: PytorchAnswer) -> float | None:
    """The least overhead of our points whose peak is no higher than PyTorch's; None if there is none."""
    fits = [p.overhead for p in frontier.points if answer.peak_bytes is not None and p.peak_bytes <= answer.peak_bytes]
    return min(fits, default=None)


def _measured(predicted: int, found: int | None) -> str:
    if found is None:
        return "fails"
    return "the same" if found == predicted else f"{found - predicted:+d} B"
