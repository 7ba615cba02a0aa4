"""Bare graphs in their given order: least recompute time under a limit on the peak, with its proof.

Rounds of :mod:`optpart.formulation.sequence_stages`.  Each solves the model with the stages that are watched so
far and makes plans of its solution.  If one of them fits, it is the best of its class; otherwise the stages where
they are over the limit are watched too.  The bound of every round holds, so a search that is cut short has one.

    nothing recomputed ──> stages over the limit ──> model ──> bound
                                    ^                  │
                                    └── plans over ────┴─────> a plan that fits: proven

Where that does not come to an end soon, annealing in the same order finds a good plan in the meantime; and where it
comes to an end, perhaps a better one outside of the class, in which an op runs twice ahead of one first run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace

from optpart.bare_search import CLOSED, BareSearch, class_of
from optpart.formulation.sequence_stages import (
    FIXED_CLASS,
    STAGED_CLASS,
    Order,
    SequenceModel,
    Watched,
    sequence_model,
    stages_over,
)
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Progress
from optpart.solver.sparse import MOST_ENTRIES, NotBuilt, Room

# "checkmate": every stage is watched from the start, which is Checkmate's own model.
FORMULATIONS = ("sequence-stages", "checkmate")
ALONE_SECONDS, SHARE = 10.0, 0.2  # for rounds before annealing is tried, and no more than a share of the time
PEAK_GAP = 1e-3  # a peak this close to the smallest is not worth another round


class FixedOrderSearch(BareSearch):
    """See the module's docstring; ``watched`` grows."""

    classes = (STAGED_CLASS, FIXED_CLASS)

    def __init__(
        self,
        problem: Problem,
        limit: int,
        limits: Limits,
        starts: Iterable[Plan] = (),
        formulation: str = FORMULATIONS[0],
    ) -> None:
        super().__init__(problem, limit, limits, starts)
        self.formulation, self.ops = formulation, len(problem.graph.ops)
        every = frozenset(range(self.ops + 1))
        self.watched = Watched(every, every) if formulation == "checkmate" else self._over(self.given, limit)

    def search(self) -> None:
        self._rounds(time.perf_counter() + min(ALONE_SECONDS, SHARE * self.seconds_left))
        if not self.rules_out(FIXED_CLASS):
            start = self.given if self.best is None else self.best
            self.annealed(self.problem.in_given_order(), self.limit, SHARE * self.seconds_left, [start])
        self._rounds(self.deadline)
        if self.best is not None and class_of(self.best) != STAGED_CLASS:
            if self.proven:
                self.notes.append(
                    "no plan of Checkmate's class, with each op at most once ahead of a first run, is cheaper"
                )
            if self.seconds_left > 0:  # a bound that holds outside of that class too
                self._round(Watched(self.watched.stages), self.deadline)
            else:
                self.deterministic = False

    def _rounds(self, stop: float) -> None:
        while not self.proven:
            if time.perf_counter() >= stop:
                self.deterministic = False
                return
            more = self._round(self.watched, stop)
            if more == self.watched:
                return
            self.watched = more

    def _round(self, watched: Watched, stop: float) -> Watched:
        """Solve with what is watched; what is to be watched next.  Building the model counts."""
        model = self._model(Order(self.problem, below=self.cost), self.limit, watched, stop)
        if model is None:
            return watched
        plan_class = STAGED_CLASS if watched.inside else FIXED_CLASS
        limits = replace(self.limits, time_limit=max(0.1, stop - time.perf_counter()))

        def watch(row: Progress) -> None:
            self.row(self.nodes + row.nodes, max(self.bound, (row.best_bound or 0.0) * model.scale))

        outcome, values = self.solved(model, limits, plan_class, watch)
        if not outcome.status.has_plan:
            return watched
        more = watched
        for late in (True, False):
            more = more.more(self._over(model.plan(values, late=late), self.limit))
        return more

    def _model(self, order: Order, limit: int | None, watched: Watched, stop: float) -> SequenceModel | None:
        """The model, None if there is no room for it.  Checkmate's own may be as large as it is."""
        entries = MOST_ENTRIES if self.formulation == FORMULATIONS[0] else math.inf
        try:
            return sequence_model(order, limit, watched, Room(stop, entries))
        except NotBuilt as e:
            self.deterministic &= not e.late
            return None

    def _over(self, plan: Plan, limit: int) -> Watched:
        return Watched().more(stages_over(plan, self.measured(plan, "highs"), limit, self.ops))

    def find_smallest(self, seconds: float) -> None:
        """As in any search, and then rounds that minimise the peak."""
        stop = time.perf_counter() + seconds
        super().find_smallest(SHARE * seconds)
        watched, order = self.watched, Order(self.problem)
        while (model := self._model(order, None, watched, stop)) is not None:
            limits = replace(self.limits, time_limit=max(0.1, stop - time.perf_counter()))
            outcome, values = model.model.minimize("highs", limits, relative_gap=PEAK_GAP, title="smallest peak")
            if not values or outcome.bound is None:
                return
            least, more = math.ceil(outcome.bound * model.scale * (1 - CLOSED)), watched
            for late in (True, False):
                more = more.more(self._over(model.plan(values, late=late), least))
            if self.smallest <= least * (1 + PEAK_GAP) or more == watched:
                return
            watched = more
