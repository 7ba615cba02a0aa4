"""What every solver takes and gives back: limits in, a result out, progress on the way.

A result is a plan with its proof: the plan's overhead, a lower bound on the overhead of every plan of
a *named* class, and the gap between the two.  ``objective`` and ``objective_bound`` are the same two
numbers in the units that the solver worked in.  The status is a sentence for a person; JSON has its name.

    Time | Nodes | BestBound | BestSol | Gap          one row per event, at level INFO of this module's logger
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from optpart.plans import Plan, plan_to_json
from optpart.problem import Problem
from optpart.units import format_bytes

logger = logging.getLogger(__name__)


class Status(Enum):
    """How a search ended."""

    OPTIMAL = "The plan is proven to be the best of its class."
    FEASIBLE = "The plan fits; a better one of its class is not ruled out."
    INFEASIBLE = "It is proven that no plan of the class fits."
    NO_PLAN = "The limits ran out before any plan was found; it is not ruled out that one fits."

    @property
    def has_plan(self) -> bool:
        return self in (Status.OPTIMAL, Status.FEASIBLE)


class InfeasibleBudget(ValueError):
    """No plan's peak fits the budget.  ``budget`` and ``smallest`` (the smallest peak that was reached) in bytes."""

    def __init__(self, budget: int, smallest: int) -> None:
        super().__init__(
            f"no plan fits a memory budget of {format_bytes(budget)} ({budget} bytes); "
            f"the smallest peak that can be reached is {format_bytes(smallest)} ({smallest} bytes)"
        )
        self.budget = budget
        self.smallest = smallest

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[int, int]]:
        return type(self), (self.budget, self.smallest)  # by default the message would be pickled as the budget


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a solve.  ``bound`` is what it had proven by then, as in its outcome."""

    def __init__(self, bound: float | None = None) -> None:
        super().__init__()
        self.bound = bound


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search has to stop.  Only ``work`` and ``seed`` make it repeatable to the last bit.

    ``time_limit`` in seconds (inf = none); ``work`` counts what the solver counts, the same on every
    machine (nodes of a branch and bound, moves of a local search; None = no limit).  ``keep_on_interrupt``:
    Ctrl-C ends the search with the best plan so far, where there is one, instead of raising KeyboardInterrupt.
    """

    time_limit: float = math.inf
    work: int | None = None
    threads: int = 1
    seed: int = 0
    keep_on_interrupt: bool = False

    def __post_init__(self) -> None:
        if not self.time_limit >= 0 or (self.work is not None and self.work < 0) or self.threads < 1 or self.seed < 0:
            raise ValueError(f"limits must not be negative, and threads at least 1: {self}")


NO_LIMITS = Limits()
INTERRUPTED = "interrupted"  # the note of a result that Ctrl-C cut short


@dataclass(frozen=True, slots=True)
class Progress:
    """One row of the log.  ``best_bound`` and ``best_solution`` in the solver's units, None while there is none."""

    seconds: float
    nodes: int
    best_bound: float | None
    best_solution: float | None

    @property
    def gap(self) -> float | None:
        if self.best_bound is None or self.best_solution is None:
            return None
        return gap(self.best_solution, min(self.best_bound, self.best_solution))  # a log's numbers are rounded


class ProgressLog:
    """Collects the rows of one search, and prints them as they come: rows that say nothing new are dropped.

    ``watch`` gets the rows instead of the logger, where this is a part of a larger search.
    """

    def __init__(self, title: str, watch: Callable[[Progress], None] | None = None) -> None:
        self.events: list[Progress] = []
        self._title = title
        self._watch = watch
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Since the log was opened."""
        return time.perf_counter() - self._start

    def add(self, nodes: int, best_bound: float | None, best_solution: float | None) -> None:
        if self.events and (self.events[-1].best_bound, self.events[-1].best_solution) == (best_bound, best_solution):
            return
        event = Progress(self.seconds(), nodes, best_bound, best_solution)
        self.events.append(event)
        if self._watch is not None:
            self._watch(event)
            return
        if len(self.events) == 1:
            logger.info(
                "%s\n%8s | %8s | %12s | %12s | %7s", self._title, "Time", "Nodes", "BestBound", "BestSol", "Gap"
            )
        bound, solution = ("-" if x is None else f"{x:.7g}" for x in (best_bound, best_solution))
        shown = "-" if event.gap is None else f"{event.gap:.2%}"
        logger.info("%7.1fs | %8d | %12s | %12s | %7s", event.seconds, nodes, bound, solution, shown)


@dataclass(frozen=True)
class Result:
    """What a solver found and proved.

    ``budget_bytes``: the limit on the peak that was solved for, None if there was none.
    ``overhead``: time of the plan's recomputes as a fraction of forward + backward with every op once.
    ``bound``: no plan of ``plan_class`` has a lower overhead.  ``deterministic`` is False when a wall
    clock stopped the search.  The plan is None exactly when the status has none, and then so are
    ``objective``, ``overhead`` and ``gap``.  ``nodes`` of all branch and bound that it took.
    """

    status: Status
    plan: Plan | None
    objective: float | None
    objective_bound: float | None
    overhead: float | None
    bound: float | None
    plan_class: str
    formulation: str
    solver: str
    seconds: float
    deterministic: bool = True
    progress: tuple[Progress, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    budget_bytes: int | None = None
    nodes: int = 0

    def __post_init__(self) -> None:
        if (self.plan is None) == self.status.has_plan:
            raise ValueError(f"status {self.status.name} with plan {self.plan}")

    @property
    def gap(self) -> float | None:
        """(overhead - bound) / overhead; None without a plan or without a bound."""
        return gap(self.overhead, self.bound)

    @property
    def interrupted(self) -> bool:
        """Did Ctrl-C end the search?"""
        return INTERRUPTED in self.notes


def gap(value: float | None, bound: float | None) -> float | None:
    """(value - bound) / value: the share of ``value`` that is not proven necessary; 0 when both are 0.

    None when one of the two is missing.

    Raises:
        ValueError: the bound lies above the value by more than rounding, so one of the two is wrong.
    """
    if value is None or bound is None:
        return None
    if bound > value + 1e-6 * max(1e-3, abs(value)):
        raise ValueError(f"bound {bound} above value {value}: one of the two is wrong")
    return max(0.0, (value - bound) / value) if value > 0 else 0.0


def conclude(
    problem: Problem,
    status: Status,
    plan: Plan | None,
    *,
    unit: float,
    objective: float | None,
    objective_bound: float | None,
    plan_class: str,
    formulation: str,
    solver: str,
    seconds: float,
    deterministic: bool = True,
    progress: Iterable[Progress] = (),
    notes: Iterable[str] = (),
    budget_bytes: int | None = None,
    nodes: int = 0,
) -> Result:
    """A Result whose fractions follow from the plan and from the objective's ``unit`` (in the unit of run times).

    The bound holds for run times rounded to that unit; it is cut off at 0 and at the plan's own
    overhead, and equals it when the plan is optimal.
    """
    scale = unit / problem.total_time if problem.total_time else 0.0
    overhead = bound = None
    if plan is not None:
        again = math.fsum(n * problem.runtime[o] for o, n in plan.recomputes().items())
        overhead = again / problem.total_time if problem.total_time else 0.0
    if objective_bound is not None and math.isfinite(objective_bound):
        bound = max(0.0, objective_bound * scale)
    if overhead is not None and bound is not None:
        gap(overhead, bound - scale * len(problem.runtime))  # raises when rounding cannot explain a bound above
        bound = overhead if status is Status.OPTIMAL else min(bound, overhead)
    return Result(
        status=status,
        plan=plan,
        objective=objective,
        objective_bound=objective_bound,
        overhead=overhead,
        bound=bound,
        plan_class=plan_class,
        formulation=formulation,
        solver=solver,
        seconds=seconds,
        deterministic=deterministic,
        progress=tuple(progress),
        notes=tuple(notes),
        budget_bytes=budget_bytes,
        nodes=nodes,
    )


def result_to_json(result: Result) -> dict[str, Any]:
    """A JSON object: the status by name and as its sentence, seconds, fractions, the plan, the progress."""
    return {
        "format": "optpart-result-1",
        "status": result.status.name.lower(),
        "message": result.status.value,
        "overhead": result.overhead,
        "bound": result.bound,
        "gap": result.gap,
        "plan_class": result.plan_class,
        "objective": result.objective,
        "objective_bound": result.objective_bound,
        "formulation": result.formulation,
        "solver": result.solver,
        "seconds": result.seconds,
        "deterministic": result.deterministic,
        "notes": list(result.notes),
        "budget_bytes": result.budget_bytes,
        "nodes": result.nodes,
        "progress": [
            {
                "seconds": p.seconds,
                "nodes": p.nodes,
                "best_bound": p.best_bound,
                "best_solution": p.best_solution,
                "gap": p.gap,
            }
            for p in result.progress
        ],
        "plan": None if result.plan is None else plan_to_json(result.plan),
    }
