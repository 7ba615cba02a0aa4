"""``frontier``: peak memory against recompute time of one model, ours beside PyTorch's, as planned and as measured.

    model ──trace──> joint graph ──capture, cost──> problem ──sweep──> raw answers ──> points ──run──> measured
                                                       └── PyTorch's default, min-cut and budgets ──run──> measured

Every finished piece (a solve, a measured step) is written to a journal in the cache folder at once.  The
same command finds it there and goes on; the key of the journal holds everything that a piece depends on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.cost.cache import cache_folder
from optpart.cost.model import build_problem
from optpart.journal import Journal
from optpart.measuring import measure
from optpart.partitioner import Partition, Partitioner
from optpart.planning import PYTORCH_BUDGETS, Planned, capture_joint
from optpart.plans import plan_from_json, plan_to_json
from optpart.problem import Problem, problem_to_json
from optpart.pytorch_plans import PytorchAnswer, measured_answer, pytorch_answer
from optpart.settings import Settings
from optpart.sweep import Point, Watch, frontier_points, sweep
from optpart.units import Bytes, format_bytes
from optpart.validate import validate


@dataclass(frozen=True)
class Measured:
    """A point as it ran, under aot_eager: the allocator's peak, everything resident included, and the median time of a step."""

    peak_bytes: Bytes
    step_seconds: float


@dataclass(frozen=True)
class Frontier:
    """Points by rising budget, and PyTorch's partitions of the same graph: "default", "min-cut", and "budget" from 1.0 to 0.0.

    ``measured[i]`` belongs to ``points[i]``; it is empty if nothing was run.  ``settings`` are those of each
    solve.  ``seconds``: wall time of this run, without what an earlier one had finished.
    """

    model: str
    problem: Problem
    points: tuple[Point, ...]
    measured: tuple[Measured, ...]
    pytorch: tuple[PytorchAnswer, ...]
    settings: Settings
    seconds: float
    config: Mapping[str, Any] = field(default_factory=dict)


def frontier(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    points: int = 12,
    measured: bool = True,
    compare: bool = True,
    at_pytorch: bool = False,
    name: str = "",
    fresh: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> Frontier:
    """The frontier of a model, from the smallest peak that is found to the peak with nothing recomputed.

    Args:
        model: module or function; it is not changed.
        example_args: its arguments, whose shapes are planned for.
        points: how many budgets, evenly spread.
        measured: run a step with each plan, and ask the allocator for its peak.
        compare: PyTorch's default partition, its min-cut and its memory budgets from 1.0 to 0.0 too.
        at_pytorch: solve at the peaks of these too, so that each is compared at its own peak.
        name: of the model; by default the name of its class.
        fresh: do everything anew that an earlier run has finished.
        watch: is told how far the run is.
        **settings: those of :class:`~optpart.settings.Settings` but ``memory_budget``; ``time_limit`` is for
            each budget.

    Raises:
        ValueError: a setting is wrong, or the model has not exactly one joint graph.
        RuntimeError: a plan is not valid.
    """
    start = time.perf_counter()
    if "memory_budget" in settings:
        raise ValueError("memory_budget: a frontier has all of them; leave it out")
    chosen = Settings.of(settings)
    name = name or (type(model).__name__ if hasattr(model, "named_parameters") else getattr(model, "__name__", "model"))
    captured, problem = _problem(model, example_args, name, chosen)
    journal = Journal(cache_folder() / "frontiers", _key(problem, settings))
    if fresh:
        journal.clear()
    watch = watch or Watch()
    partitions = [("default", None), ("min-cut", None), *(("budget", b) for b in PYTORCH_BUDGETS)] if compare else []
    watch.total(points * (1 + measured) + len(partitions))
    runs = _Runs(model, example_args, captured, problem, chosen.seed, journal, watch)
    pytorch = [runs.pytorch(method, budget, measured) for method, budget in partitions]
    peaks = {a.measured_peak_bytes or a.peak_bytes or 0 for a in pytorch} if at_pytorch else set()
    watch.total((points + len(peaks)) * (1 + measured) + len(partitions))
    found = frontier_points(sweep(problem, points, chosen.limits, more=peaks, journal=journal, watch=watch))
    for point in found:
        verdict = validate(problem.with_budget(point.budget_bytes), point.plan)
        if not verdict.ok:
            raise RuntimeError(f"the plan for {point.budget_bytes} bytes is not valid: {'; '.join(verdict.faults[:3])}")
    measurements = tuple(runs.point(p) for p in found) if measured else ()
    if compare:
        pytorch.insert(2, replace(pytorch[1], method="budget", budget=1.0))  # what its min-cut is
    return Frontier(
        model=name,
        problem=problem,
        points=found,
        measured=measurements,
        pytorch=tuple(pytorch),
        settings=chosen,
        seconds=time.perf_counter() - start,
    )


def _problem(model: Callable[..., Any], args: Sequence[Any], name: str, settings: Settings) -> tuple[Capture, Problem]:
    joints = tp.trace_joint(model, args)
    if len(joints) != 1:
        raise ValueError(f"{name} breaks into {len(joints)} joint graphs; a frontier is of one, and has one budget")
    captured = capture_joint(joints[0], name)
    return captured, build_problem(captured.graph, settings.cost_model, measure_memory=settings.workspace == "measured")


def _key(problem: Problem, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that a solve and a measured step depend on; with a budget, the table of workspaces is part of it."""
    return {"problem": problem_to_json(problem), "partitioner": Partitioner(memory_budget=0.0, **settings).uuid().hex()}


@dataclass
class _Runs:
    """Measured steps, each one once."""

    model: Callable[..., Any]
    args: Sequence[Any]
    captured: Capture
    problem: Problem
    seed: int
    journal: Journal
    watch: Watch

    def point(self, point: Point) -> Measured:
        """A step with the plan of a point."""
        self.watch.begin(f"measuring the plan for {format_bytes(point.budget_bytes)}")
        key = f"measure {plan_to_json(point.plan)}"
        known = key in self.journal
        if not known:
            partition = Partition(self.problem, point.best.result, None, 0.0)
            planned = Planned([(self.captured, partition)], on_failure="raise")
            run = measure(self.model, self.args, partitioner=planned, seed=self.seed)
            self.journal.put(key, [run.measured_peak_bytes, run.seconds])
        peak, seconds = self.journal.get(key)
        self.watch.end(again=known)
        return Measured(Bytes(peak), seconds)

    def pytorch(self, method: str, budget: float | None, measured: bool) -> PytorchAnswer:
        """One of PyTorch's partitions, as it is simulated and, if that is wanted, as it runs."""
        name = method if budget is None else f"{method} {budget:g}"
        self.watch.begin(f"PyTorch's {name}")
        key = f"pytorch {name}{', measured' if measured else ''}"
        known = key in self.journal
        if not known:
            answer = pytorch_answer(self.captured, self.problem, method, budget)
            if measured:
                answer = measured_answer(answer, self.model, self.args, seed=self.seed)
            data = {f: getattr(answer, f) for f in answer.__dataclass_fields__}
            self.journal.put(key, data | {"plan": None if answer.plan is None else plan_to_json(answer.plan)})
        data = self.journal.get(key)
        self.watch.end(again=known)
        return PytorchAnswer(**{**data, "plan": None if data["plan"] is None else plan_from_json(data["plan"])})
