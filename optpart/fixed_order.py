"""Bare graphs in their given order: least recompute time under a limit on the peak, with its proof.

Rounds of :mod:`optpart.formulation.sequence_stages`.  Each solves the model with the stages that are watched so
far and makes plans of its solution.  If one of them fits, it is the best of its class; otherwise the stages where
they are over the limit are watched too.  The bound of every round holds, so a search that is cut short has one.

    nothing recomputed ──> stages over the limit ──> model ──> bound
                                    ^                  │
                                    └── plans over ────┴─────> a plan that fits: proven

Every plan is measured by ``liveness.simulate`` before it counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace

from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.sequence_stages import (
    ANY_ORDER,
    FIXED_CLASS,
    STAGED_CLASS,
    Order,
    Watched,
    sequence_model,
    stages_over,
)
from optpart.liveness import simulate
from optpart.plans import Plan, baseline
from optpart.problem import Problem
from optpart.solver.base import INTERRUPTED, Interrupted, Limits, Progress, ProgressLog, Result, Status, conclude

PEAK_GAP = 1e-3  # a peak this close to the smallest is not worth another round
# "checkmate": every stage is watched from the start, which is Checkmate's own model.
FORMULATIONS = ("sequence-stages", "checkmate")
CLOSED = 1e-6  # relative: what a solver's bound may miss by rounding where costs are no small whole numbers


class FixedOrderSearch:
    """One search under a limit on the peak in bytes, from the given order and perhaps other plans of the class.

    ``best`` is the cheapest plan so far that fits, ``smallest`` the smallest peak met, in bytes.  ``cost`` is the
    best plan's and ``bound`` that of all plans of ``plan_class`` that fit, in whole units (infinite: there is none).
    """

    def __init__(
        self,
        problem: Problem,
        limit: int,
        limits: Limits,
        starts: Iterable[Plan] = (),
        formulation: str = FORMULATIONS[0],
    ) -> None:
        self.problem, self.limit, self.limits = problem, limit, limits
        self.formulation, self.solver, self.begin = formulation, "highs", time.perf_counter()
        self.costs, self.unit = problem.integer_costs()
        self.best: Plan | None = None
        self.cost, self.bound, self.plan_class = math.inf, 0.0, FIXED_CLASS
        self.nodes, self.deterministic = 0, True
        self.notes: list[str] = []
        self.log = ProgressLog(f"overhead in percent, in the given order, peak of at most {limit} bytes")
        given = baseline(problem.graph)
        self.smallest: int = simulate(problem, given).peak_bytes
        self.watched = Watched().more(self._measured(given))
        if formulation == "checkmate":
            every = frozenset(range(len(problem.graph.ops) + 1))
            self.watched = Watched(every, every)
        for plan in starts:
            self._measured(plan)

    def run(self) -> Result:
        """The best plan with its bound.

        Raises:
            KeyboardInterrupt: Ctrl-C, unless the limits keep what was found.
        """
        if self.limit < smallest_peak_bound(self.problem):
            self.solver = "bound on the peak"
            self._prove(math.inf, ANY_ORDER)
        try:
            while not self.proven and self._seconds_left() > 0 and self._round():
                pass
        except KeyboardInterrupt:
            if not self.limits.keep_on_interrupt:
                raise
            self.deterministic = False
            self.notes.append(INTERRUPTED)
        return self._conclude()

    @property
    def proven(self) -> bool:
        return self.bound >= self.cost * (1 - CLOSED)

    def _seconds_left(self) -> float:
        return self.limits.time_limit - (time.perf_counter() - self.begin)

    def _measured(self, plan: Plan) -> Watched:
        """Keep a plan if it fits and is cheaper than the best; where it is over the limit."""
        live = simulate(self.problem, plan)
        self.smallest = min(self.smallest, live.peak_bytes)
        cost = sum(self.costs[o] * n for o, n in plan.recomputes().items())
        if live.peak_bytes <= self.limit and cost < self.cost:
            self.best, self.cost = plan, float(cost)
            self._row(self.nodes, self.bound)
        return stages_over(plan, live, self.limit, len(self.problem.graph.ops))

    def _round(self) -> bool:
        """Solve with what is watched, and watch more; False if nothing more comes of it."""
        model = sequence_model(Order(self.problem, below=self.cost), self.limit, self.watched)
        plan_class = STAGED_CLASS if self.watched.inside else FIXED_CLASS
        limits = replace(self.limits, time_limit=max(0.1, self._seconds_left()))

        def watch(row: Progress) -> None:
            self._row(self.nodes + row.nodes, max(self.bound, (row.best_bound or 0.0) * model.scale))

        try:
            outcome, values = model.model.minimize("highs", limits, whole=model.whole, watch=watch)
        except Interrupted as e:
            self._prove((e.bound or 0.0) * model.scale, plan_class)
            raise
        self.nodes += outcome.nodes
        self.deterministic &= outcome.deterministic
        none = outcome.status is Status.INFEASIBLE  # nothing is cheaper than the best plan, or nothing fits at all
        self._prove(self.cost if none else (outcome.bound or 0.0) * model.scale, plan_class)
        if not outcome.status.has_plan:
            return False
        more = self.watched
        for late in (True, False):
            more = more.more(self._measured(model.plan(values, late=late)))
        if more == self.watched and not self.proven:
            self.notes.append("stopped where the solver's tolerance let a plan over the limit pass")
        changed = more != self.watched
        self.watched = more
        return changed

    def find_smallest(self, seconds: float) -> None:
        """Look for a plan of as small a peak as there is, whatever it costs: rounds that minimise the peak."""
        stop = time.perf_counter() + seconds
        watched, order = self.watched, Order(self.problem)
        while (left := stop - time.perf_counter()) > 0:
            model = sequence_model(order, None, watched)
            limits = replace(self.limits, time_limit=left)
            outcome, values = model.model.minimize("highs", limits, relative_gap=PEAK_GAP, title="smallest peak")
            if not values or outcome.bound is None:
                return
            least, more = math.ceil(outcome.bound * model.scale * (1 - CLOSED)), watched
            for late in (True, False):
                plan = model.plan(values, late=late)
                live = simulate(self.problem, plan)
                self.smallest = min(self.smallest, live.peak_bytes)
                more = more.more(stages_over(plan, live, least, len(self.problem.graph.ops)))
            if self.smallest <= least * (1 + PEAK_GAP) or more == watched:
                return
            watched = more

    def _prove(self, bound: float, plan_class: str) -> None:
        """Note a bound; that of plans cheaper than the best holds for all up to the best's cost."""
        bound = min(bound, self.cost)
        if bound > self.bound:
            self.bound, self.plan_class = bound, plan_class
            self._row(self.nodes, bound)

    def _row(self, nodes: int, bound: float) -> None:
        percent = 100.0 / (sum(self.costs) or 1)
        if (least := min(bound, self.cost)) < math.inf:
            self.log.add(nodes, percent * least, None if self.best is None else percent * self.cost)

    def _conclude(self) -> Result:
        if self.best is None:
            status = Status.INFEASIBLE if self.bound == math.inf else Status.NO_PLAN
        else:
            status = Status.OPTIMAL if self.proven else Status.FEASIBLE
        return conclude(
            self.problem,
            status,
            self.best,
            unit=self.unit,
            objective=None if self.best is None else self.cost,
            objective_bound=None if self.bound == math.inf else self.bound,
            plan_class=self.plan_class,
            formulation=self.formulation,
            solver=self.solver,
            seconds=time.perf_counter() - self.begin,
            deterministic=self.deterministic,
            progress=self.log.events,
            notes=self.notes,
            budget_bytes=self.limit,
        )
