"""Budgets from the smallest peak to the peak of least time, each solved: the raw material of a frontier.

* **Raw answers.**  Every budget is solved on its own, by :func:`optpart.strategy.solve` and under the same
  limits, so ``optpart plan --memory-budget B`` alone gives the same plan.
* **Points.**  The plan of a point is the best of *all* raw answers whose peak fits its budget.  A plan that
  fits a budget fits every higher one, so along the points a lower budget never has a higher peak, nor a
  higher budget more overhead; no point is left out for it.
* **Bounds.**  Every plan that fits a budget fits the higher ones, so a bound that is proven at a budget
  holds at every lower one: a point's bound is the largest that is proven at its budget or above.

Where all raw answers are optimal, points and raw answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optpart import strategy
from optpart.journal import Journal
from optpart.liveness import Liveness, simulate
from optpart.plans import Plan, plan_from_json
from optpart.problem import Problem
from optpart.settings import Budget
from optpart.solver.base import InfeasibleBudget, Limits, Result, Status, conclude, gap, result_to_json
from optpart.units import format_bytes

ROUNDING = 1e-12  # sums in another order: a bound so near to an overhead is equal to it

Solve = Callable[[Problem, Budget, Limits], Result]


@dataclass(frozen=True)
class Answer:
    """What the solver says to one budget.  ``memory_budget`` is what it was asked, ``budget_bytes`` what that is.

    ``result.plan`` and ``live`` are None if it found no plan that fits.
    """

    memory_budget: int | float
    budget_bytes: int
    result: Result
    live: Liveness | None


@dataclass(frozen=True)
class Point:
    """A budget of the frontier: the raw ``answer`` to it, and the ``best`` answer that fits it, whose ``plan`` it has."""

    answer: Answer
    best: Answer
    plan: Plan
    live: Liveness
    bound: float | None

    @property
    def budget_bytes(self) -> int:
        return self.answer.budget_bytes

    @property
    def peak_bytes(self) -> int:
        return self.live.peak_bytes

    @property
    def overhead(self) -> float:
        return self.live.overhead

    @property
    def gap(self) -> float | None:
        """The share of the overhead that is not proven necessary."""
        return gap(self.overhead, self.bound)


class Watch:
    """Somebody who is told how far a long run is; this one does not care."""

    def total(self, pieces: int) -> None:
        """So many pieces there are."""

    def begin(self, what: str) -> None:
        """A piece is begun."""

    def end(self, line: str = "", again: bool = False) -> None:
        """It is finished, with a line about what came of it; ``again``: it had been finished before."""


def sweep(
    problem: Problem,
    points: int,
    limits: Limits,
    *,
    more: Iterable[int] = (),
    journal: Journal | None = None,
    watch: Watch | None = None,
    solve: Solve | None = None,
) -> tuple[Answer, ...]:
    """Raw answers to ``points`` budgets, evenly spread from the lowest to the highest one, by rising budget.

    The lowest one is the smallest peak that is found (the fraction 0.0), the highest one the peak of the
    plan of least time (1.0).  Fewer come back where the range has fewer bytes.

    Args:
        problem: a joint problem.
        points: how many, 2 or more.
        limits: of each of the solves.
        more: other budgets in bytes, of which those between the two ends are solved too.
        journal: answers in it are taken from it, and new ones written to it.
        watch: is told about each piece.
        solve: another solver than :func:`optpart.strategy.solve`.

    Raises:
        ValueError: fewer than 2 points.
        InfeasibleBudget: the smallest peak cannot be reached again within the limits.
    """
    if points < 2:
        raise ValueError(f"points={points}: expected an int, 2 or more")
    journal = Journal() if journal is None else journal  # an empty one is false
    watch = watch or Watch()

    def ask(budget: int | float, name: str) -> Answer:
        watch.begin(f"solving {name}")
        key = f"solve {budget!r}"
        known = key in journal
        if not known:
            journal.put(key, _result_data(_solved(problem, budget, limits, solve or strategy.solve)))
        result = _result_of(journal.get(key))
        live = None if result.plan is None else simulate(problem, result.plan)
        answer = Answer(budget, result.budget_bytes or 0, result, live)
        watch.end(describe(answer), again=known)
        return answer

    low = ask(0.0, "for the smallest peak")
    high = ask(1.0, "for the least time")
    if low.live is None or high.live is None:
        raise InfeasibleBudget(low.budget_bytes, high.budget_bytes)
    width = high.budget_bytes - low.budget_bytes
    between = {low.budget_bytes + width * i // (points - 1) for i in range(1, points - 1)}
    between |= {b for b in more if low.budget_bytes < b < high.budget_bytes}
    between -= {low.budget_bytes, high.budget_bytes}
    # from the top: what was solved when a run is interrupted is then one piece of the frontier
    answers = [low, high] + [ask(b, f"within {format_bytes(b)}") for b in sorted(between, reverse=True)]
    return tuple(sorted(answers[: 1 if width <= 0 else None], key=lambda a: a.budget_bytes))


def describe(answer: Answer) -> str:
    """One line about a raw answer."""
    result = answer.result
    if result.overhead is None:
        return f"{format_bytes(answer.budget_bytes):>11}  no plan"
    proven = "no bound" if result.bound is None else f"bound {result.bound:.2%}"
    return f"{format_bytes(answer.budget_bytes):>11}  overhead {result.overhead:.2%}, {proven}, {result.seconds:.1f} s"


def frontier_points(answers: Sequence[Answer]) -> tuple[Point, ...]:
    """The points of raw answers, by rising budget; see the module's docstring.

    Raises:
        ValueError: nothing fits the lowest budget.
    """
    found = [(a, a.result.plan, a.live) for a in answers if a.result.plan is not None and a.live is not None]
    points: list[Point] = []
    proven: float | None = None
    for answer in sorted(answers, key=lambda a: -a.budget_bytes):
        fits = [f for f in found if f[2].peak_bytes <= answer.budget_bytes]
        if not fits:
            raise ValueError(f"no plan among the answers fits {answer.budget_bytes} bytes")
        # of equal plans its own; otherwise the order of the answers decides
        best, plan, live = min(fits, key=lambda f: (f[2].overhead, f[2].peak_bytes, f[0] is not answer))
        bounds = [b for b in (proven, answer.result.bound) if b is not None]
        proven = max(bounds, default=None)
        bound = proven
        if proven is not None and proven > live.overhead * (1 - ROUNDING):
            bound = live.overhead
        points.append(Point(answer, best, plan, live, bound))
    return tuple(reversed(points))


def _solved(problem: Problem, budget: int | float, limits: Limits, solve: Solve) -> Result:
    try:
        return solve(problem, budget, limits)
    except InfeasibleBudget as e:
        return conclude(
            problem,
            Status.NO_PLAN,
            None,
            unit=1.0,
            objective=None,
            objective_bound=None,
            plan_class="",
            formulation="",
            solver="",
            seconds=limits.time_limit,
            notes=(str(e),),
            budget_bytes=e.budget,
        )


def _result_data(result: Result) -> dict[str, Any]:
    return {**result_to_json(result), "progress": []}


def _result_of(data: Mapping[str, Any]) -> Result:
    """The inverse of :func:`_result_data`."""
    same = ("objective", "objective_bound", "overhead", "bound", "plan_class", "formulation", "solver", "seconds")
    return Result(
        status=Status[data["status"].upper()],
        plan=None if data["plan"] is None else plan_from_json(data["plan"]),
        **{name: data[name] for name in same},
        deterministic=data["deterministic"],
        notes=tuple(data["notes"]),
        budget_bytes=data["budget_bytes"],
    )
