"""Simulated annealing over execution sequences with repeats: plans where the order is free.

A sequence says what runs when; an op may stand in it several times.  Moves put runs elsewhere, add them and
leave them out, in a compiled kernel that keeps the bytes at every step (:mod:`optpart.solver.sequences_numba`).
Minimised is

    time of all recomputes + price * sum over steps of max(0, bytes - budget)

with a price that rises until the sequence fits.  The closest published search is FastSA (Imanishi, Xu, Takagi,
Wang, Castillo, "A fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023); this one
differs in: moves start at the steps that are over the budget, chains are moved and recomputed together, and the
excess is summed over steps, where a maximum would not tell one bad step from twenty.

The search goes in cycles, cooled from hot to cold: from the start and from the best sequence so far in turn, and
longer ones as it goes on.  No clock decides what a cycle does, only whether there is another one: a plan that
was found can be found again.

* A bare graph: any op may stand anywhere after what it needs, any number of times.
* A joint graph: the forward is that of the best plan among the starts, and stays as it is; in the backward any
  order and any recompute that the graph permits.  Memory is counted as in :mod:`optpart.liveness`, to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optpart.liveness import simulate
from optpart.plans import Plan, baseline
from optpart.problem import Problem
from optpart.solver.base import INTERRUPTED, NO_LIMITS, Limits, ProgressLog, Result, Status, conclude
from optpart.units import format_bytes

if TYPE_CHECKING:  # numba takes half a second to load
    from optpart.solver.sequences_numba import Ints, Search, State

ANY_ORDER = "any order, recompute anywhere"
ANY_BACKWARD = "program order in the forward, any order in the backward, recompute in the backward"

CYCLES = ((0.5, False), (0.2, True))  # heat at the start, in mean run times; from the best sequence so far?
COLD = 0.005  # heat at the end
FIRST = 200  # moves of the first cycle for each step of the sequence
WORK = 20_000  # moves for each step where neither time nor work is limited
CHUNK = 4096  # moves between looks at the clock: some milliseconds
PRICES = 1e3  # how far the price may go, either way, from a mean run time for a mean size
STEP_UP, TRAVEL = (
    1.03,
    8,
)  # by what the price changes in a round; more in a short cycle: TRAVEL times as far as it may go


def anneal(problem: Problem, budget: int, limits: Limits = NO_LIMITS, start: Sequence[Plan] = ()) -> Result:
    """A plan with little recompute whose peak is at most ``budget`` bytes, in any order.

    Args:
        limits: ``work`` counts moves, a million or so a second.  With neither a time nor a work limit the search
            stops by itself.  A recompute time of 0 ends it at once.
        start: valid plans to start from; the given order if there are none.

    Returns:
        A result whose bound is 0 if the overhead is, and None otherwise: a local search proves nothing.  Without a
        plan that fits, NO_PLAN and a note on the smallest peak that was met.

    Raises:
        ValueError: a plan has an op too often, or the graph is joint and its backward is unboxed.
        KeyboardInterrupt: Ctrl-C, unless the limits keep what was found.
    """
    search = _Annealing(problem, budget, limits, _best_start(problem, budget, start))
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        if not limits.keep_on_interrupt:
            raise
        interrupted = True
    return search.result(interrupted)


def _best_start(problem: Problem, budget: int, start: Sequence[Plan]) -> Plan:
    """The plan of least recompute time that fits, or of the lowest peak."""

    def cost(plan: Plan) -> tuple[float, float]:
        live = simulate(problem, plan)
        return max(0, live.peak_bytes - budget), live.recompute_time

    return min(start or [baseline(problem.graph)], key=cost)


def _mean(numbers: Ints) -> float:
    """Of those that are not 0; 1 if there is none."""
    return float(numbers[numbers > 0].mean()) if numbers.any() else 1.0


@dataclass
class _Annealing:
    """One search.  ``cost`` and ``excess`` are those of the best sequence so far."""

    problem: Problem
    budget: int
    limits: Limits
    start: Plan
    moves: int = 0
    stopped: bool = False
    log: ProgressLog = field(init=False)

    def __post_init__(self) -> None:
        from optpart.solver import sequences_numba
        from optpart.solver.sequence_layout import layout

        self.log = ProgressLog(f"annealing, peak at most {format_bytes(self.budget)}")
        self.kernel = sequences_numba
        self.layout = layout(self.problem, self.start)
        sequence = self.layout.sequence(self.start)
        self.steps = len(sequence)
        room = 3 * self.steps + 64
        if max(self.start.counts.values(), default=0) > sequences_numba.RUNS:
            raise ValueError(f"a plan runs an op more than {sequences_numba.RUNS} times")
        self.state: State = sequences_numba.new_state(self.layout.fixed, len(self.layout.forward), room)
        self.search: Search = sequences_numba.new_search(self.layout.fixed, room, self.limits.seed)
        ops, values = self.layout.fixed.ops, self.layout.fixed.values
        self.time = _mean(ops[:, sequences_numba.TIME])
        price = self.time / _mean(values[values[:, sequences_numba.PRODUCER] >= 0, sequences_numba.SIZE])
        places = [sequences_numba.LOWEST, sequences_numba.PRICE, sequences_numba.HIGHEST]
        self.search.knobs[places] = price / PRICES, price, price * PRICES
        self._load(sequence)
        sequences_numba.keep(self.state, self.search)

    @property
    def cost(self) -> int:
        return int(self.search.found[self.kernel.BEST_COST])

    @property
    def excess(self) -> int:
        return int(self.search.found[self.kernel.BEST_EXCESS])

    def run(self) -> None:
        unlimited = self.limits.work is None and self.limits.time_limit == math.inf
        work = WORK * self.steps if unlimited else self.limits.work
        cycle = 0
        self._report()
        while not self._done() and self.steps > 1:
            length = FIRST * self.steps << cycle // len(CYCLES)
            if work is not None:
                left = work - self.moves
                length = left if left < 2 * length else length
            if length == 0 or not self._cycle(length, *CYCLES[cycle % len(CYCLES)]):
                return
            cycle += 1

    def _done(self) -> bool:
        return self.cost == 0 and self.excess == 0

    def _cycle(self, length: int, heat: float, again: bool) -> bool:
        """One annealing, from the best sequence or from the start; False if the clock stopped it."""
        step_up = max(STEP_UP, PRICES ** (TRAVEL / max(TRAVEL, length / self.kernel.ROUND)))
        places = [self.kernel.HOT, self.kernel.COLD, self.kernel.STEP_UP]
        self.search.knobs[places] = heat * self.time, COLD * self.time, step_up
        sequence = self._best() if again else self.layout.sequence(self.start)
        for first in range(0, length, CHUNK):
            if self.log.seconds() >= self.limits.time_limit:
                self.stopped = True
                return False
            last = min(first + CHUNK, length)
            self._load(sequence)  # empty slots between all runs again
            self.kernel.anneal_moves(self.layout.fixed, self.state, self.search, first, last, length)
            self.moves += last - first
            self._report()
            if self._done():
                break
            sequence = self._now()
        return True

    def _load(self, sequence: Ints) -> None:
        base, forward = self.layout.base, self.layout.forward
        self.kernel.load_sequence(self.layout.fixed, self.state, base, forward, sequence, self.budget)

    def _now(self) -> Ints:
        sequence = np.zeros(self.state.op_at.size, np.int64)
        return sequence[: self.kernel.read_sequence(self.state, sequence)]

    def _best(self) -> Ints:
        return self.search.best[: self.search.found[self.kernel.BEST_STEPS]].copy()

    def _report(self) -> None:
        self.log.add(self.moves, None, float(self.cost) if self.excess == 0 else None)

    def result(self, interrupted: bool) -> Result:
        plan = self.layout.plan(self._best())
        fits = self.excess == 0
        notes = [INTERRUPTED] if interrupted else []
        if not fits:
            notes.append(f"the closest plan has a peak of {format_bytes(simulate(self.problem, plan).peak_bytes)}")
        return conclude(
            self.problem,
            Status.OPTIMAL if self._done() else Status.FEASIBLE if fits else Status.NO_PLAN,
            plan if fits else None,
            unit=self.layout.unit,
            objective=float(self.cost) if fits else None,
            objective_bound=0.0 if self._done() else None,
            plan_class=ANY_BACKWARD if self.problem.graph.joint else ANY_ORDER,
            formulation="sequences with repeats",
            solver=f"annealing ({self.moves} moves)",
            seconds=self.log.seconds(),
            deterministic=not (self.stopped or interrupted),
            progress=self.log.events,
            notes=notes,
            budget_bytes=self.budget,
        )
