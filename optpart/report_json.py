"""A report as one JSON object: sizes in bytes, ``seconds`` wall time, overhead, bound and gap fractions."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from optpart.report import GraphReport, Report, share
from optpart.settings import Settings
from optpart.solver.base import InfeasibleBudget, Status
from optpart.summary import Row, fixed_rows, recomputed_rows, saved_rows

if TYPE_CHECKING:  # both import torch
    from optpart.gradients import GradientCheck
    from optpart.measuring import Measurement
    from optpart.pytorch_plans import PytorchAnswer


def report_to_json(report: Report) -> dict[str, Any]:
    """One JSON object.  Sizes in bytes, ``seconds`` wall time, overhead, bound and gap fractions."""
    only = report.graphs[0] if len(report.graphs) == 1 else None
    settings = report.settings
    return {
        "format": "optpart-report-1",
        "model": report.model,
        "config": dict(report.config),
        "status": report.status.name.lower(),
        "overhead": report.overhead,
        "bound": report.bound,
        "gap": report.gap,
        "plan_class": _common(g.result.plan_class for g in report.graphs),
        "objective": only.result.objective if only else None,
        "objective_bound": only.result.objective_bound if only else None,
        "peak_bytes": report.peak_bytes,
        "saved_bytes": report.saved_bytes,
        "recomputed_ops": report.recomputed_ops,
        "memory_budget": settings.memory_budget,
        "budget_bytes": _common(g.budget_bytes for g in report.graphs),
        "seconds": report.seconds,
        "seconds_compare": report.seconds_compare,
        "seconds_check": report.seconds_check,
        "deterministic": all(g.result.deterministic for g in report.graphs),
        "interrupted": report.interrupted,
        "fallback": report.fallback,
        "gradients": None if report.gradients is None else gradients_to_json(report.gradients),
        **measurement_to_json(report.measurement, report.compiler),
        "pytorch": _pytorch_of_all(report.graphs),
        "cost_model": _common(g.problem.cost_model for g in report.graphs),
        "seed": settings.seed,
        "time_limit": settings.time_limit,
        "workspace": settings.workspace,
        "versions": versions(),
        "graphs": [_graph_to_json(g) for g in report.graphs],
    }


def infeasible_to_json(model: str, config: Mapping[str, Any], settings: Settings, error: InfeasibleBudget) -> dict[str, Any]:
    """The object that stands for a report when no plan fits the budget: the same keys, those of a plan null."""
    missing = (
        *("overhead", "bound", "gap", "peak_bytes", "saved_bytes", "recomputed_ops", "seconds", "fallback"),
        *("gradients", "measured_peak_bytes", "measurement"),
    )
    return {
        "format": "optpart-report-1",
        "model": model,
        "config": dict(config),
        "status": Status.INFEASIBLE.name.lower(),
        "message": str(error),
        **dict.fromkeys(missing),
        "pytorch": [],
        "memory_budget": settings.memory_budget,
        "budget_bytes": error.budget,
        "smallest_peak_bytes": error.smallest,
        "seed": settings.seed,
        "time_limit": settings.time_limit,
        "versions": versions(),
    }


def gradients_to_json(check: GradientCheck) -> dict[str, Any]:
    """``max_abs_error`` is None where it is no number that JSON has (infinite: a gradient is missing)."""
    return {
        "equal_bitwise": check.equal_bitwise,
        "max_abs_error": check.max_abs_error if math.isfinite(check.max_abs_error) else None,
        "agree": check.agree,
        "min_cut_agrees": check.min_cut_agrees,
        "fallbacks": check.fallbacks,
        "compared": check.compared,
    }


def measurement_to_json(found: Measurement | None, compiler: str) -> dict[str, Any]:
    """The measured peak, and all that was measured with it; both None if no step was run."""
    if found is None:
        return {"measured_peak_bytes": None, "measurement": None}
    names = ("resident_bytes", "predicted_peak_bytes", "measured_peak_bytes", "difference_bytes", "seconds")
    measured = {"compiler": compiler} | {name: getattr(found, name) for name in names}
    return {"measured_peak_bytes": found.measured_peak_bytes, "measurement": measured}


def versions() -> dict[str, str]:
    """Of Python and of everything that can change a plan; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in ("optpart", "torch", "ortools", "networkx", "numpy", "scipy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _graph_to_json(g: GraphReport) -> dict[str, Any]:
    graph, result = g.problem.graph, g.result
    return {
        "name": g.name,
        "ops": len(graph.ops),
        "values": len(graph.values),
        "status": result.status.name.lower(),
        "message": result.status.value,
        "plan_class": result.plan_class,
        "formulation": result.formulation,
        "solver": result.solver,
        "objective": result.objective,
        "objective_bound": result.objective_bound,
        "overhead": g.liveness.overhead,
        "bound": result.bound,
        "gap": result.gap,
        "budget_bytes": g.budget_bytes,
        "peak_bytes": g.liveness.peak_bytes,
        "saved_bytes": g.liveness.saved_bytes,
        "peak_bytes_without_recompute": g.kept_all.peak_bytes,
        "saved_bytes_without_recompute": g.kept_all.saved_bytes,
        "recomputed_ops": len(g.plan.recomputes()),
        "recomputes": sum(g.plan.recomputes().values()),
        "seconds": g.seconds,
        "deterministic": result.deterministic,
        "notes": list(result.notes),
        "fallback": g.fallback,
        "saved": [_row_to_json(g, r) for r in saved_rows(g.problem, g.plan)],
        "recomputed": [_row_to_json(g, r) for r in recomputed_rows(g.problem, g.plan)],
        "not_recomputable": [
            {"reason": r.reason, "ops": r.ops, "bytes": r.nbytes, "saved_bytes": r.saved_bytes}
            for r in fixed_rows(g.problem, g.plan)
        ],
        "pytorch": [answer_to_json(a) for a in g.pytorch],
    }


def _row_to_json(g: GraphReport, row: Row) -> dict[str, Any]:
    """The time as a fraction of forward + backward, as ``overhead`` is: the unit depends on the cost model."""
    total = g.problem.total_time
    return {"op": row.kind, "count": row.count, "bytes": row.nbytes, "time_fraction": row.time / total if total else 0.0}


def answer_to_json(a: PytorchAnswer) -> dict[str, Any]:
    return {
        "method": a.method,
        "budget": a.budget,
        "peak_bytes": a.peak_bytes,
        "measured_peak_bytes": a.measured_peak_bytes,
        "saved_bytes": a.saved_bytes,
        "overhead": a.overhead,
        "recomputed_ops": None if a.plan is None else len(a.plan.recomputes()),
        "problem": a.problem or None,
        "seconds": a.seconds,
    }


def _pytorch_of_all(graphs: Sequence[GraphReport]) -> list[dict[str, Any]]:
    """PyTorch's answers for all graphs together, by method; None where a graph has none."""
    rows = []
    for method in dict.fromkeys(a.method for g in graphs for a in g.pytorch):
        found = [answer_to_json(a) for g in graphs for a in g.pytorch if a.method == method]

        def total(key: str, combine: Callable[[list[Any]], Any], found: list[dict[str, Any]] = found) -> Any:
            values = [f[key] for f in found]
            return None if len(values) < len(graphs) or None in values else combine(values)

        rows.append(
            {
                "method": method,
                "budget": _common(f["budget"] for f in found),
                "peak_bytes": total("peak_bytes", max),
                "measured_peak_bytes": total("measured_peak_bytes", max),
                "saved_bytes": total("saved_bytes", sum),
                "overhead": total("overhead", lambda fractions: share(graphs, fractions)),
                "recomputed_ops": total("recomputed_ops", sum),
                "problem": "; ".join(f["problem"] for f in found if f["problem"]) or None,
                "seconds": total("seconds", math.fsum),
            }
        )
    return rows


def _common(items: Iterable[Any]) -> Any:
    """What they all are; None if they differ."""
    values = list(items)
    return values[0] if all(v == values[0] for v in values) else None
