"""What became of a model: plans, what they cost, PyTorch's answers beside them, and the check of gradients.

Data, and the text that ``print(report)`` shows; the JSON form is in ``report_json``.  Nothing here runs a model
or a solver, and no torch is loaded.  A model is one joint graph, or several where Dynamo breaks it; numbers of a report are those of
its graph, and of several graphs

* ``overhead`` and ``bound``: of all their time together (each graph is partitioned on its own, so the
  bound of the sum is the sum of the bounds);
* ``saved_bytes``: the sum, since all of it waits for the backward at the same time;
* ``peak_bytes``: the largest of the graphs' own peaks, each without what the other graphs hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optpart.liveness import Liveness
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.settings import Budget, Settings
from optpart.solver.base import Result, Status, gap
from optpart.summary import fixed_rows, recomputed_rows, saved_rows
from optpart.units import Bytes, format_bytes, format_time

if TYPE_CHECKING:  # both import torch; a report only carries them
    from optpart.gradients import GradientCheck
    from optpart.measuring import Measurement
    from optpart.pytorch_plans import PytorchAnswer

WORST_LAST = (Status.OPTIMAL, Status.FEASIBLE, Status.NO_PLAN, Status.INFEASIBLE)


@dataclass(frozen=True)
class GraphReport:
    """One joint graph and its plan.  ``kept_all`` is the simulation of the plan that recomputes nothing.

    ``memory_budget`` is as it was set, ``budget_bytes`` the limit on the peak that it comes to (None: no limit,
    or the solver does not tell).  ``fallback``: None, or why the plan is PyTorch's min-cut.  ``seconds``: wall time from the joint graph to the checked plan.
    """

    problem: Problem
    result: Result
    plan: Plan
    liveness: Liveness
    kept_all: Liveness
    memory_budget: Budget
    budget_bytes: Bytes | None
    fallback: str | None
    pytorch: tuple[PytorchAnswer, ...]
    seconds: float

    @property
    def name(self) -> str:
        return self.problem.graph.name


@dataclass(frozen=True)
class Report:
    """A model's plans.  ``gradients`` is None if they were not checked, ``measurement`` if no step was measured
    (with ``compiler``); ``config`` is how the model was made."""

    model: str
    graphs: tuple[GraphReport, ...]
    settings: Settings
    gradients: GradientCheck | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    seconds_compare: float = 0.0
    seconds_check: float = 0.0
    measurement: Measurement | None = None
    compiler: str = "aot_eager"

    @property
    def status(self) -> Status:
        """The worst of the graphs'."""
        return max((g.result.status for g in self.graphs), key=WORST_LAST.index)

    @property
    def overhead(self) -> float:
        return share(self.graphs, [g.liveness.overhead for g in self.graphs])

    @property
    def bound(self) -> float | None:
        bounds = [g.result.bound for g in self.graphs]
        return None if any(b is None for b in bounds) else share(self.graphs, [b for b in bounds if b is not None])

    @property
    def gap(self) -> float | None:
        return gap(self.overhead, self.bound)

    @property
    def peak_bytes(self) -> Bytes:
        return Bytes(max(g.liveness.peak_bytes for g in self.graphs))

    @property
    def saved_bytes(self) -> Bytes:
        return Bytes(sum(g.liveness.saved_bytes for g in self.graphs))

    @property
    def interrupted(self) -> bool:
        """Did Ctrl-C end a search?  The plans are the best until then."""
        return any(g.result.interrupted for g in self.graphs)

    @property
    def recomputed_ops(self) -> int:
        """Ops that run more than once."""
        return sum(len(g.plan.recomputes()) for g in self.graphs)

    @property
    def fallback(self) -> str | None:
        return "; ".join(g.fallback for g in self.graphs if g.fallback is not None) or None

    @property
    def seconds(self) -> float:
        """Wall time of the partitions: no tracing, no comparison, no check of gradients."""
        return math.fsum(g.seconds for g in self.graphs)

    def __str__(self) -> str:
        return report_text(self)


def share(graphs: Sequence[GraphReport], fractions: Sequence[float]) -> float:
    """Fractions of each graph's time as a fraction of all their time."""
    if len(graphs) == 1:
        return fractions[0]
    total = math.fsum(g.problem.total_time for g in graphs)
    return math.fsum(f * g.problem.total_time for f, g in zip(fractions, graphs)) / total if total else 0.0


# ------------------------------------------------------------------------------------------------ text


def report_text(report: Report) -> str:
    """The report for a person: one block a graph, the check of gradients at the end; lines as wide as they need."""
    measured = report.measurement if len(report.graphs) == 1 else None
    blocks = [_graph_text(g, measured) for g in report.graphs]
    if len(report.graphs) > 1:
        blocks.insert(0, _total_text(report))
    if report.measurement is not None:
        blocks.append(_measured_text(report.measurement, report.compiler))
    if report.gradients is not None:
        blocks.append(_gradients_text(report.gradients))
    return "\n\n".join(blocks) + "\n"


def _total_text(report: Report) -> str:
    lines = [
        f"{report.model}: {len(report.graphs)} joint graphs, each partitioned on its own",
        f"  overhead    {fractions_text(report.overhead, report.bound, report.gap)}",
        f"  saved       {format_bytes(report.saved_bytes)}",
        f"  peak        {format_bytes(report.peak_bytes)} in the graph with the largest",
    ]
    return "\n".join(lines)


def time_text(problem: Problem) -> str:
    """What forward and backward take, each op run once."""
    time = problem.total_time
    return format_time(time) if problem.cost_model != "unit" else f"{time:g} units of time"


def _graph_text(g: GraphReport, found: Measurement | None) -> str:
    problem, result = g.problem, g.result
    lines = [
        f"{g.name}: {len(problem.graph.ops)} ops, {len(problem.graph.values)} values",
        f"  run time    {time_text(problem)} for forward + backward, by {problem.cost_model or 'given costs'}",
        f"  plan        {result.status.name.lower()}: {result.status.value}",
        f"  its class   {result.plan_class}",
        f"  found by    {result.solver} on {result.formulation}, {g.seconds:.2f} s",
        f"  objective   {_number(result.objective)}, bound {_number(result.objective_bound)}",
        f"  overhead    {fractions_text(g.liveness.overhead, result.bound, result.gap)}",
        f"  budget      {_budget_text(g)}",
        f"  peak        {_peak_text(g)}",
    ]
    lines += [f"  note        {note}" for note in result.notes]
    lines += [f"  fallback    {g.fallback}"] if g.fallback else []
    return "\n\n".join(["\n".join(lines), *_tables(g, found)])


def _tables(g: GraphReport, found: Measurement | None) -> Iterable[str]:
    """Memory beside PyTorch's; what is saved; what is recomputed; what may not be."""
    rows = [
        ("this plan", g.liveness.peak_bytes, g.liveness.saved_bytes, g.liveness.overhead, len(g.plan.recomputes())),
        ("nothing recomputed", g.kept_all.peak_bytes, g.kept_all.saved_bytes, 0.0, 0),
    ]
    troubles: list[str] = []
    measured = {} if found is None else {"this plan": format_bytes(found.measured_peak_bytes)}
    for a in g.pytorch:
        name = f"PyTorch {a.method}" + ("" if a.budget is None else f" {a.budget:g}")
        measured |= {} if a.measured_peak_bytes is None else {name: format_bytes(a.measured_peak_bytes)}
        if a.plan is not None and a.peak_bytes is not None and a.saved_bytes is not None and a.overhead is not None:
            rows.append((name, a.peak_bytes, a.saved_bytes, a.overhead, len(a.plan.recomputes())))
        troubles += [f"  {name}: {a.problem}"] if a.problem else []
    header = ["", "peak", "saved", "overhead", "recomputed ops"] + (["measured peak"] if measured else [])
    cells = [[n, format_bytes(p), format_bytes(s), f"{o:.2%}", str(r)] for n, p, s, o, r in rows]
    cells = [[*row, measured.get(row[0], "")] for row in cells] if measured else cells
    yield "\n".join([table(header, cells), *troubles])
    time = format_time if g.problem.cost_model != "unit" else "{:g}".format
    saved = [(_op(r.kind), str(r.count), format_bytes(r.nbytes), time(r.time)) for r in saved_rows(g.problem, g.plan)]
    again = [(_op(r.kind), str(r.count), format_bytes(r.nbytes), time(r.time)) for r in recomputed_rows(g.problem, g.plan)]
    yield table(("saved, made by", "values", "bytes", "time to redo"), saved or [("nothing", "", "", "")])
    yield table(("recomputed", "runs", "bytes", "time"), again or [("nothing", "", "", "")])
    fixed = [(r.reason, str(r.ops), format_bytes(r.nbytes), format_bytes(r.saved_bytes)) for r in fixed_rows(g.problem, g.plan)]
    if fixed:
        yield table(("not recomputable", "ops", "bytes", "of these saved"), fixed)


def _budget_text(g: GraphReport) -> str:
    size = "" if g.budget_bytes is None else format_bytes(g.budget_bytes)
    if g.memory_budget is None or isinstance(g.memory_budget, int):
        return size or "none"
    return f"{g.memory_budget}" + (f", which is {size}" if size else "")


def _peak_text(g: GraphReport) -> str:
    step, forward = g.liveness.peak_step, len(g.plan.forward)
    if not g.plan.sequence:
        return format_bytes(g.liveness.peak_bytes)
    side = "forward" if step < forward else "backward"
    op = g.problem.graph.ops[g.plan.sequence[step]]
    return f"{format_bytes(g.liveness.peak_bytes)}, while {op.name} runs in the {side}"


def _gradients_text(check: GradientCheck) -> str:
    if check.equal_bitwise:
        bits = "equal bit for bit to those of PyTorch's default partition"
    else:
        bits = "within tolerance, not equal bit for bit" if check.agree else "WRONG"
    lines = [f"gradients: {bits}; at most {check.max_abs_error:.2g} from eager, in {check.compared} tensors"]
    if check.min_cut_agrees is not True:
        what = "fails" if check.min_cut_agrees is None else "gives other gradients than eager"
        lines.append(f"PyTorch's min-cut {what} here.")
    return "\n".join(lines)


def _measured_text(found: Measurement, compiler: str) -> str:
    if found.difference_bytes is None:
        beside = "nothing predicted"
    else:
        beside = f"{found.difference_bytes:+d} bytes from the prediction" if found.difference_bytes else "as predicted, to the byte"
    peak = f"{format_bytes(found.measured_peak_bytes)} ({found.measured_peak_bytes} bytes)"
    return f"measured: peak {peak} under {compiler}, {beside}; {format_time(found.seconds * 1e6)} a step"


def fractions_text(overhead: float, bound: float | None, the_gap: float | None) -> str:
    """An overhead with its proof."""
    if bound is None or the_gap is None:
        return f"{overhead:.2%}, no bound"
    return f"{overhead:.2%}, bound {bound:.2%}, gap {the_gap:.2%}"


def _number(x: float | None) -> str:
    return "none" if x is None else f"{x:.7g}"


def _op(target: str) -> str:
    return target.replace(".default", "")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = []
    for cells in (header, *rows):
        first, *others = (f"{c:{'<' if i == 0 else '>'}{w}}" for i, (c, w) in enumerate(zip(cells, widths)))
        lines.append("   ".join([f"  {first}", *others]).rstrip())
    return "\n".join(lines)
