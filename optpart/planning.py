"""``plan``: look before you compile.  A model in, a report out.

The model runs only if gradients are checked or memory is measured.  Single calls run if their costs are measured: their times
under ``cost_model="profiled"``, and their workspaces under a memory budget (see ``Settings.workspace``).

    model ──trace──> joint graphs ──capture, cost──> problems ──strategy──> results ──validate──> report
                                                        └── PyTorch's partitions of the same graphs ──┘
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from optpart import measuring
from optpart import torch_private as tp
from optpart.capture import Capture, capture
from optpart.cost.model import build_problem
from optpart.gradients import check_gradients
from optpart.liveness import simulate
from optpart.partitioner import FallbackWarning, Modules, Partition, Partitioner, emit
from optpart.plans import Plan, baseline
from optpart.problem import Problem
from optpart.pytorch_plans import PytorchAnswer, measured_answer, pytorch_answer, pytorch_plan
from optpart.report import GraphReport, Report
from optpart.settings import Settings
from optpart.solver.base import InfeasibleBudget, Result, Status, conclude
from optpart.strategy import solve
from optpart.units import Bytes
from optpart.validate import validate

# PyTorch's budgets that are tried for the one whose peak is nearest; 1.0 is its min-cut.  Its peak is no
# monotone function of its budget, so there is nothing to bisect.
PYTORCH_BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)


class GraphBreakWarning(UserWarning):
    """The model has several joint graphs, and a memory budget is for each of them; the message names them."""


def plan(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    compare: bool = True,
    check: bool = False,
    measure: bool = False,
    compiler: str = "aot_eager",
    name: str = "",
    keep_on_interrupt: bool = False,
    **settings: Any,
) -> Report:
    """Plan a model's partition and report it: what a compile with these settings would do under aot_eager.

    Args:
        model: module or function; it is not changed.
        example_args: its arguments, whose shapes are planned for.
        compare: report PyTorch's partitions of the same graphs too.
        check: run a step and compare gradients with eager and with PyTorch's partitions.
        measure: run a step and ask the allocator for its peak, PyTorch's partitions too if they are reported.
        compiler: what the measured step is compiled with.  Inductor decomposes the graph first, and what runs is
            a plan of the decomposed graph, made with the same settings.
        name: of the model, in the report; by default the name of its class.
        keep_on_interrupt: Ctrl-C during a search ends it with the best plan so far, and nothing is compared,
            checked or measured then (``Report.interrupted``).
        **settings: those of :class:`~optpart.settings.Settings`: memory_budget, cost_model, time_limit, ...

    Raises:
        ValueError: a setting is wrong, or nothing that the model returns needs a gradient.
        InfeasibleBudget: no plan fits the memory budget.
        RuntimeError: no valid plan was found, and ``on_failure="raise"``.
        KeyboardInterrupt: Ctrl-C, where nothing is kept or nothing was found.
    """
    chosen = Settings.of(settings)
    name = name or (type(model).__name__ if hasattr(model, "named_parameters") else getattr(model, "__name__", "model"))
    found = []
    for joint, graph_name in trace(model, example_args, name):
        found.append(_plan_graph(joint, graph_name, chosen, workspaces=measure, keep_on_interrupt=keep_on_interrupt))
    graphs = [g for _, g in found]
    if any(g.result.interrupted for g in graphs):
        compare = check = measure = False
    planned = time.perf_counter()
    if compare:
        graphs = [replace(g, pytorch=_compare(captured, g)) for captured, g in found]
    compared = time.perf_counter()
    plans = [(captured, Partition(g.problem, g.result, g.fallback, g.seconds)) for captured, g in found]
    checked = check_gradients(model, example_args, partitioner=Planned(plans, **settings)) if check else None
    checked_at = time.perf_counter()
    measurement = None
    if measure:
        how: dict[str, Any] = {"compiler": compiler, "seed": chosen.seed}
        measurement = measuring.measure(model, example_args, partitioner=Planned(plans, **settings), **how)
        if len(graphs) == 1:  # a step of several graphs says nothing of one of them
            answers = (measured_answer(a, model, example_args, **how) for a in graphs[0].pytorch)
            graphs = [replace(graphs[0], pytorch=tuple(answers))]
    return Report(
        model=name,
        graphs=tuple(graphs),
        settings=chosen,
        gradients=checked,
        measurement=measurement,
        compiler=compiler,
        seconds_compare=compared - planned,
        seconds_check=checked_at - compared,
    )


def trace(model: Callable[..., Any], example_args: Sequence[Any], name: str) -> list[tuple[tp.Joint, str]]:
    """The model's joint graphs with a name for each; several come with a warning that names them.

    Raises:
        ValueError: nothing that the model returns needs a gradient.
    """
    joints = tp.trace_joint(model, example_args)
    n = len(joints)
    names = [name] if n == 1 else [f"{name} (graph {i} of {n})" for i in range(1, n + 1)]
    if n > 1:
        text = f"{name} breaks into {n} joint graphs, and a memory budget is for each of them: {', '.join(names)}"
        warnings.warn(GraphBreakWarning(text), stacklevel=3)
    return list(zip(joints, names))


def capture_joint(joint: tp.Joint, name: str = "") -> Capture:
    """The captured graph of a traced one."""
    return capture(
        joint.module,
        num_fwd_outputs=joint.num_fwd_outputs,
        static_lifetime_input_indices=joint.static_lifetime_input_indices,
        name=name,
    )


def _plan_graph(
    joint: tp.Joint, name: str, settings: Settings, *, workspaces: bool = False, keep_on_interrupt: bool = False
) -> tuple[Capture, GraphReport]:
    """``workspaces``: count them in the report's peaks also if there is no budget that they would decide about."""
    start = time.perf_counter()
    captured = capture_joint(joint, name)
    problem = build_problem(captured.graph, settings.cost_model, measure_memory=settings.measure_memory)
    result, chosen, fallback = _solve(captured, problem, settings, keep_on_interrupt)
    seconds = time.perf_counter() - start
    if workspaces and settings.workspace == "measured" and not settings.measure_memory:
        problem = build_problem(captured.graph, settings.cost_model, measure_memory=True)
    return captured, GraphReport(
        problem=problem,
        result=result,
        plan=chosen,
        liveness=simulate(problem, chosen),
        kept_all=simulate(problem, baseline(problem.graph)),
        memory_budget=settings.memory_budget,
        budget_bytes=_budget_bytes(settings, result),
        fallback=fallback,
        pytorch=(),
        seconds=seconds,
    )


def _solve(
    captured: Capture, problem: Problem, settings: Settings, keep_on_interrupt: bool
) -> tuple[Result, Plan, str | None]:
    """(result, its plan, None), or PyTorch's min-cut with the reason, as the partitioner would do it."""
    limits = replace(settings.limits, keep_on_interrupt=keep_on_interrupt)
    try:
        result = solve(problem, settings.budget_for(problem), limits)
        return result, _checked(problem, result.plan, _budget_bytes(settings, result), result.status.value), None
    except InfeasibleBudget:
        raise
    except Exception as e:  # whatever went wrong, there is a partition all the same
        if settings.on_failure == "raise":
            raise
        reason = f"{type(e).__name__}: {e}"
    warnings.warn(FallbackWarning(f"{problem.graph.name}: PyTorch's min-cut instead, because of {reason}"), stacklevel=4)
    start = time.perf_counter()
    found = _checked(problem, pytorch_plan(captured, "min-cut"), None, "")
    result = conclude(
        problem,
        Status.FEASIBLE,
        found,
        unit=1.0,
        objective=float(sum(n * problem.runtime[o] for o, n in found.recomputes().items())),
        objective_bound=0.0,
        plan_class="every plan (an overhead is never below 0)",
        formulation="PyTorch's min-cut",
        solver="networkx",
        seconds=time.perf_counter() - start,
    )
    return result, found, reason


def _checked(problem: Problem, found: Plan | None, budget: int | None, status: str) -> Plan:
    if found is None:
        raise RuntimeError(f"no plan: {status}")
    verdict = validate(problem.with_budget(budget), found)
    if not verdict.ok:
        raise RuntimeError(f"the plan is not valid: {'; '.join(verdict.faults[:3])}")
    return found


def _budget_bytes(settings: Settings, result: Result) -> Bytes | None:
    """The limit on the peak in bytes: as it was given, or as the solver resolved a fraction."""
    given = settings.memory_budget
    resolved = given if isinstance(given, int) else getattr(result, "budget_bytes", None)
    return None if resolved is None else Bytes(resolved)


# ------------------------------------------------------------------------------------------- comparison


def _compare(captured: Capture, graph: GraphReport) -> tuple[PytorchAnswer, ...]:
    """PyTorch's default partition, its min-cut, and its memory budget at the peak nearest to the plan's."""
    default = pytorch_answer(captured, graph.problem, "default")
    min_cut = pytorch_answer(captured, graph.problem, "min-cut")
    peak = graph.liveness.peak_bytes
    budgets = [replace(min_cut, method="budget", budget=1.0)]
    for b in PYTORCH_BUDGETS:
        if (budgets[-1].peak_bytes, budgets[-1].problem) == (peak, ""):
            break  # nothing is nearer, and smaller budgets recompute more; a run takes seconds on large graphs
        budgets.append(pytorch_answer(captured, graph.problem, "budget", b))
    return default, min_cut, nearest(budgets, peak)


def nearest(answers: Sequence[PytorchAnswer], peak: int) -> PytorchAnswer:
    """The answer whose peak is nearest to ``peak`` bytes, the cheaper one of two; sound ones first."""

    def rank(a: PytorchAnswer) -> tuple[float, ...]:
        if a.peak_bytes is None or a.overhead is None:
            return (2.0, 0.0, 0.0)
        return (float(bool(a.problem)), abs(a.peak_bytes - peak), a.overhead)

    return min(answers, key=rank)


# ------------------------------------------------------------------------------------- the plans as they run


class Planned(Partitioner):
    """Partitions by plans that are there already, so that what is checked or measured is these, and nothing is solved twice."""

    def __init__(self, found: Sequence[tuple[Capture, Partition]], **settings: Any) -> None:
        super().__init__(**settings)
        self._found = found

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Modules:
        captured = capture(
            gm,
            num_fwd_outputs=kwargs["num_fwd_outputs"],
            static_lifetime_input_indices=kwargs.get("static_lifetime_input_indices"),
        )
        for known, partition in self._found:
            if replace(known.graph, name="") == captured.graph and partition.problem and partition.result:
                self.partitions.append(partition)
                return emit(captured, partition.problem, partition.result, check=False)
        return super().__call__(gm, joint_inputs, **kwargs)  # a nested region
