"""What searches over plans of a bare graph have in common: the best plan, what is proven, the log, the end.

Classes of plans are nested, so a bound holds for every class inside its own:

    STAGED_CLASS (Checkmate's stages)  <  FIXED_CLASS (the given order)  <  ANY_ORDER

Costs and bounds are whole units of run time (``Problem.integer_costs``); an infinite bound says that nothing fits.
Every plan is measured by ``liveness.simulate`` before it counts.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.moments import ANY_ORDER, MomentModel
from optpart.formulation.sequence_stages import FIXED_CLASS, STAGED_CLASS, SequenceModel
from optpart.liveness import Liveness, simulate
from optpart.plans import Plan, baseline
from optpart.problem import Problem
from optpart.solver.anneal import anneal
from optpart.solver.base import (
    INTERRUPTED,
    Interrupted,
    Limits,
    Progress,
    ProgressLog,
    Result,
    Status,
    conclude,
)
from optpart.solver.mathopt import Outcome

NESTED = (STAGED_CLASS, FIXED_CLASS, ANY_ORDER)  # each inside the next
CLOSED = 1e-6  # relative: what a solver's bound may miss by rounding where costs are no small whole numbers
MOVES = 10_000  # of one annealing, for each op: a second for 150 ops
HALVINGS = 8  # of the range in which the smallest peak is sought


class BareSearch(ABC):
    """One search under a limit on the peak in bytes, and perhaps from other plans than the given order.

    ``best`` is the cheapest plan so far that fits, ``cost`` its cost; ``smallest`` is the smallest peak met, in bytes;
    ``bounds`` by class.  ``solver`` says where the best plan, or the proof that there is none, comes from.
    """

    classes: tuple[str, ...] = NESTED  # those of the plans that are sought
    formulation = ""

    def __init__(self, problem: Problem, limit: int, limits: Limits, starts: Iterable[Plan] = ()) -> None:
        self.problem, self.limit, self.limits = problem, limit, limits
        self.begin = time.perf_counter()
        self.costs, self.unit = problem.integer_costs()
        self.best: Plan | None = None
        self.cost = math.inf
        self.bounds = dict.fromkeys(NESTED, 0.0)
        self.nodes, self.deterministic = 0, True
        self.notes: list[str] = []
        self.solver = "the given order"
        self.log = ProgressLog(f"overhead in percent, peak of at most {limit} bytes; plans: {self.classes[-1]}")
        self.given = baseline(problem.graph)
        self.smallest: int = simulate(problem, self.given).peak_bytes
        for plan in (self.given, *starts):
            self.measured(plan)

    # --------------------------------------------------------------------------------------- what is known

    @property
    def place(self) -> int:
        """In ``NESTED`` the smallest class that is sought and that the best plan is in."""
        found = NESTED[0] if self.best is None else class_of(self.best)
        return max(NESTED.index(found), NESTED.index(self.classes[0]))

    @property
    def bound(self) -> float:
        """Of the class that the best plan is in."""
        return self.bounds[NESTED[self.place]]

    def rules_out(self, plan_class: str) -> bool:
        """Is it proven that no plan of a class is cheaper than the best?"""
        return self.bounds[plan_class] >= self.cost * (1 - CLOSED)

    @property
    def proven(self) -> bool:
        """Of the smallest class that is sought."""
        return self.rules_out(self.classes[0])

    @property
    def deadline(self) -> float:
        """When all has to be over; this and every ``stop`` are readings of ``time.perf_counter``."""
        return self.begin + self.limits.time_limit

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def measured(self, plan: Plan, solver: str = "") -> Liveness:
        """Keep a plan if it fits and is cheaper than the best."""
        live = simulate(self.problem, plan)
        self.smallest = min(self.smallest, live.peak_bytes)
        cost = sum(self.costs[o] * n for o, n in plan.recomputes().items())
        if live.peak_bytes <= self.limit and cost < self.cost:
            self.best, self.cost, self.solver = plan, float(cost), solver or self.solver
            self.row(self.nodes, self.bound)
        return live

    def prove(self, bound: float, plan_class: str) -> None:
        """Note a bound.  One of plans cheaper than the best holds for all up to the best's cost."""
        bound = min(bound, self.cost)
        before = self.bound
        for inner in NESTED[: NESTED.index(plan_class) + 1]:
            self.bounds[inner] = max(self.bounds[inner], bound)
        if self.bound > before:
            self.row(self.nodes, self.bound)

    def solved(
        self, model: SequenceModel | MomentModel, limits: Limits, plan_class: str, watch: Callable[[Progress], None]
    ) -> tuple[Outcome, Sequence[float]]:
        """Solve a model of plans cheaper than the best, or of all, and note the bound that it proves."""
        try:
            outcome, values = model.model.minimize("highs", limits, whole=model.whole, watch=watch)
        except Interrupted as e:
            self.prove((e.bound or 0.0) * model.scale, plan_class)
            raise
        self.nodes += outcome.nodes
        self.deterministic &= outcome.deterministic
        none = outcome.status is Status.INFEASIBLE  # nothing is cheaper than the best plan, or nothing fits at all
        self.prove(math.inf if none else (outcome.bound or 0.0) * model.scale, plan_class)
        return outcome, values

    def row(self, nodes: int, bound: float) -> None:
        """A row of the log."""
        percent = 100.0 / (sum(self.costs) or 1)
        if (least := min(bound, self.cost)) < math.inf:
            self.log.add(nodes, percent * least, None if self.best is None else percent * self.cost)

    # ----------------------------------------------------------------------------------------- the search

    def run(self) -> Result:
        """The best plan with its bound.

        Raises:
            KeyboardInterrupt: Ctrl-C, unless the limits keep what was found.
        """
        if self.limit < smallest_peak_bound(self.problem):
            self.solver = "bound on the peak"
            self.prove(math.inf, ANY_ORDER)
        try:
            if not self.proven:
                self.deterministic &= self.seconds_left > 0
                self.search()
        except KeyboardInterrupt:
            if not self.limits.keep_on_interrupt:
                raise
            self.deterministic = False
            self.notes.append(INTERRUPTED)
        return self._conclude()

    @abstractmethod
    def search(self) -> None:
        """Look for plans and bounds, until ``proven`` or until no time is left."""

    def annealed(self, problem: Problem, budget: int, seconds: float, starts: Sequence[Plan]) -> Plan | None:
        """A plan within ``budget`` bytes by local search; ``problem`` is this one, perhaps with its order fixed."""
        from optpart.solver.sequences_numba import RUNS

        if seconds <= 0:
            self.deterministic = False
            return None
        limits = replace(self.limits, time_limit=seconds, work=MOVES * len(problem.graph.ops))
        result = anneal(problem, budget, limits, [p for p in starts if max(p.counts.values(), default=0) <= RUNS])
        self.deterministic &= result.deterministic or result.interrupted
        if result.plan is not None:
            for plan in (in_stages(result.plan), result.plan):
                self.measured(plan, result.solver)
        if result.interrupted:
            raise KeyboardInterrupt
        return result.plan

    def find_smallest(self, seconds: float) -> None:
        """Look for a plan of as small a peak as there is, whatever it costs."""
        stop = time.perf_counter() + seconds
        problem = self.problem if self.classes[-1] == ANY_ORDER else self.problem.in_given_order()
        low: int = smallest_peak_bound(self.problem)
        start = self.given
        for _ in range(HALVINGS):
            budget, left = (low + self.smallest) // 2, stop - time.perf_counter()
            if low >= self.smallest or left <= 0:
                return
            plan = self.annealed(problem, budget, left, [start])
            low, start = (budget + 1, start) if plan is None else (low, plan)

    # -------------------------------------------------------------------------------------------- the end

    def _conclude(self) -> Result:
        bound = self.bound
        plan_class = [c for c in NESTED[self.place :] if self.bounds[c] >= bound][-1]  # the largest of them says most
        if self.best is None:
            status = Status.INFEASIBLE if bound == math.inf else Status.NO_PLAN
        else:
            status = Status.OPTIMAL if self.rules_out(plan_class) else Status.FEASIBLE
        return conclude(
            self.problem,
            status,
            self.best,
            unit=self.unit,
            objective=None if self.best is None else self.cost,
            objective_bound=None if bound == math.inf else bound,
            plan_class=plan_class,
            formulation=self.formulation,
            solver=self.solver,
            seconds=time.perf_counter() - self.begin,
            deterministic=self.deterministic,
            progress=self.log.events,
            notes=self.notes,
            budget_bytes=self.limit,
        )


def in_stages(plan: Plan) -> Plan:
    """The plan of Checkmate's class that makes the same runs ahead of each first run, each once, in program order."""
    first: set[int] = set()
    waiting: set[int] = set()
    sequence: list[int] = []
    for o in plan.sequence:
        if o in first:
            waiting.add(o)
            continue
        first.add(o)
        sequence += [*sorted(waiting), o]
        waiting = set()
    return Plan((*sequence, *sorted(waiting)))


def class_of(plan: Plan) -> str:
    """The smallest class that a plan is in."""
    firsts = list(dict.fromkeys(plan.sequence))
    if firsts != sorted(firsts):
        return ANY_ORDER
    return STAGED_CLASS if in_stages(plan) == plan else FIXED_CLASS
