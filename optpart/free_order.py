"""Bare graphs in any order: plans from local search and from the given order, a bound from moments.

1. Annealing (:mod:`optpart.solver.anneal`).  Often another order alone fits, and then nothing is recomputed.
2. The bound of :mod:`optpart.formulation.moments`.  The linear relaxation of every op alone says where memory is
   short; from there a chain of ops grows, and each is solved as a whole, as long as that raises the bound.
3. The given order, solved as such (:mod:`optpart.fixed_order`): its best plan may be the best of all.
4. Annealing from the best plan, with what time is left.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from optpart.bare_search import BareSearch
from optpart.fixed_order import FixedOrderSearch
from optpart.formulation.moments import ANY_ORDER, MomentModel, Relations, moment_model
from optpart.liveness import simulate
from optpart.solver.base import Limits, Progress, Status
from optpart.solver.sparse import MOST_ENTRIES, NotBuilt, Room

FORMULATION = "moments"
SHARE = 0.25  # of the time that is left, for each of the first three
RANKING = 0.5  # of the bound's time, for linear relaxations
LONGEST_CHAIN, IN_VAIN = 12, 3  # moments of one model; longer chains in a row that do not raise the bound


class FreeOrderSearch(BareSearch):
    """See the module's docstring."""

    classes = (ANY_ORDER,)
    formulation = FORMULATION

    def search(self) -> None:
        self._anneal(SHARE * self.seconds_left)
        if not self.proven:
            self._bound(SHARE * self.seconds_left)
        if not self.proven:
            self._given_order(SHARE * self.seconds_left)
        if not self.proven:
            self._anneal(self.seconds_left)

    def _anneal(self, seconds: float) -> None:
        self.annealed(self.problem, self.limit, seconds, [self.given if self.best is None else self.best])

    def _given_order(self, seconds: float) -> None:
        limits = replace(self.limits, time_limit=max(0.0, seconds))
        result = FixedOrderSearch(self.problem, self.limit, limits).run()
        self.deterministic &= result.deterministic or result.interrupted
        if result.plan is not None:
            self.measured(result.plan, f"{result.formulation}, {result.solver}")
        if result.interrupted:
            raise KeyboardInterrupt

    # ------------------------------------------------------------------------------------------ the bound

    def _bound(self, seconds: float) -> None:
        stop = time.perf_counter() + seconds
        relations = Relations(self.problem)
        chain: list[int] = []
        in_vain = 0
        for op in self._ranked(relations, time.perf_counter() + RANKING * seconds):
            if self.proven or len(chain) == LONGEST_CHAIN or in_vain == IN_VAIN:
                return
            if all(relations.comparable(op, other) for other in chain):
                before = self.bound
                chain = sorted([*chain, op])
                if (model := self._model(relations, chain, stop)) is None:
                    return
                limits = replace(self.limits, time_limit=max(0.0, stop - time.perf_counter()))
                self.solved(model, limits, ANY_ORDER, _silent)
                in_vain = 0 if self.bound > before else in_vain + 1

    def _ranked(self, relations: Relations, stop: float) -> list[int]:
        """Ops by the bound of their moment's linear relaxation, highest first; of equal ones the fullest."""
        live = simulate(self.problem, self.given).timeline
        found: dict[int, float] = {}
        for op in sorted(range(len(live)), key=lambda o: (-live[o], o)):
            if (model := self._model(relations, [op], stop)) is None:
                break
            model.model.integral = [False] * len(model.model.integral)
            limits = Limits(time_limit=max(0.0, stop - time.perf_counter()))  # the work limit is not for GLOP's iterations
            outcome, _values = model.model.minimize("glop", limits, watch=_silent)
            if not outcome.deterministic:
                self.deterministic = False
                break
            found[op] = math.inf if outcome.status is Status.INFEASIBLE else outcome.objective or 0.0
        return sorted(found, key=lambda o: (-found[o], -live[o], o))

    def _model(self, relations: Relations, chain: list[int], stop: float) -> MomentModel | None:
        """The model of a chain, None if there is no room for it."""
        try:
            return moment_model(relations, self.limit, chain, Room(stop, MOST_ENTRIES))
        except NotBuilt as e:
            self.deterministic &= not e.late
            return None


def _silent(_row: Progress) -> None:
    """Rows of one model among many are no news."""
