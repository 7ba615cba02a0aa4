"""Least recompute with a peak of at most so many bytes: a joint graph's plan and its bound.  Torch-free.

Windows from above give the plan, windows from below the bound (``formulation.stages``); rows of single recomputes
are added where the exact simulation finds a step over the limit.  Every plan is measured by ``liveness.simulate``
before it counts, so a plan that is returned fits.  Ctrl-C ends the search; what it found by then is the answer where
the limits say so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from optpart.formulation.blocks import Blocks, find_blocks
from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.checkpoints import block_checkpoints
from optpart.formulation.cut import hull
from optpart.formulation.levers import ALL, Levers
from optpart.formulation.network import NoPlan
from optpart.formulation.stage_graph import Stages, build_stages
from optpart.formulation.stages import PLAN_CLASS, Side, StageModel, stage_model
from optpart.liveness import Liveness, simulate
from optpart.plans import Plan, baseline
from optpart.problem import Problem
from optpart.solver.base import INTERRUPTED, InfeasibleBudget, Interrupted, Limits, Result, Status, conclude
from optpart.solver.polish import leave_out
from optpart.solver.sparse import MOST_ENTRIES, NotBuilt, Room
from optpart.units import format_bytes

# Seconds that looking for the smallest peak may take at most; a share of the time limit, but not more.
SMALLEST_PEAK_SECONDS = 30.0
# Its work limit: branch-and-bound nodes of one model, and binaries of a model with wider windows.
SMALLEST_PEAK_NODES, SMALLEST_PEAK_BINARIES = 100, 4000
DESCENT = (0.8, 0.9, 0.97)  # of the smallest peak so far: limits that are tried where a model is larger
GAP = 2e-3  # a plan this close to the bound of its own windows is not improved further
WIDE_GAP = 2e-2  # from here on the windows are widened while there is time
WHOLE_BINARIES = 6000  # a model without windows is tried up to this size (a 6-layer GPT)
BOUND_SHARE = 0.2  # of the time that is there at first: kept for the bound, however long plans take
ROUNDS = 4  # how often rows for single recomputes are added before windows are widened


@dataclass(frozen=True)
class Candidate:
    """A plan and what it costs, by exact simulation."""

    plan: Plan
    live: Liveness
    origin: str


@dataclass
class PeakSearch:
    """One search under a limit on the peak.

    ``found`` are all plans met so far, good or bad; ``bound`` is what is proven of those that fit, in percent
    of the step; ``polished`` is the last plan that the polish left.
    """

    problem: Problem
    limits: Limits
    levers: Levers = ALL
    found: list[Candidate] = field(default_factory=list)
    deterministic: bool = True
    notes: list[str] = field(default_factory=list)
    bound: float | None = None
    nodes: int = 0
    polished: Plan | None = None

    def __post_init__(self) -> None:
        self.start = time.perf_counter()
        self.stages: Stages = build_stages(self.problem)
        self.blocks: Blocks = find_blocks(self.stages)
        try:
            corners = hull(self.problem, inputs_free=True)
        except NoPlan as e:
            raise RuntimeError(f"no plan at all: {e}") from e
        for point in corners if self.levers.cuts_first else corners[-1:]:
            self.add(point.plan, "parametric cut")
        self.nothing = self.found[-1]  # least time: nothing recomputed, except what a tag demands
        for plan in block_checkpoints(self.problem, self.blocks) if self.levers.cuts_first else ():
            self.add(plan, "borders of blocks kept")
        plan = baseline(self.problem.graph)
        if all(self.problem.graph.values[v].savable for v in plan.saved(self.problem.graph)):
            self.nothing = self.add(plan, "nothing recomputed")

    # --------------------------------------------------------------------------------------- helpers

    def add(self, plan: Plan, origin: str) -> Candidate:
        candidate = Candidate(plan, simulate(self.problem, plan), origin)
        self.found.append(candidate)
        return candidate

    def best(self, limit: int) -> Candidate | None:
        """The plan of least overhead that fits; of equal ones the one of lowest peak, then the first."""
        fits = [c for c in self.found if c.live.peak_bytes <= limit]
        return min(fits, key=lambda c: (c.live.overhead, c.live.peak_bytes), default=None)

    @property
    def smallest(self) -> int:
        return min(c.live.peak_bytes for c in self.found)

    @property
    def deadline(self) -> float:
        """When all has to be over; this and every ``stop`` are readings of ``time.perf_counter``."""
        return self.start + self.limits.time_limit

    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def _solve(
        self,
        limit: int | None,
        side: Side,
        width: int | None,
        inside: frozenset[int] | None,
        stop: float,
        work: int | None = None,
    ) -> tuple[Status, Candidate | None, float | None]:
        """One model: its status, its plan (from above), and its dual bound in percent of the step.

        A bound that holds for the whole class is noted, whatever else comes of the solve.  Building the model counts.
        """
        try:
            model = self._model(limit, side, width, inside, stop)
        except NotBuilt as e:
            self.deterministic &= not e.late
            return Status.NO_PLAN, None, None
        limits = replace(self.limits, time_limit=max(0.1, stop - time.perf_counter()), work=work)
        title = f"{side}, windows {width}, {sum(model.model.integral)} binaries, {len(model.model.rows)} rows"
        gap = GAP if side == "above" else 1e-4
        proves = limit is not None and (side == "below" or (width is None and inside is None))
        try:
            outcome, values = model.model.minimize("highs", limits, relative_gap=gap, title=title)
        except Interrupted as e:
            self._proven(e.bound if proves else None)
            raise
        self._proven(outcome.bound if proves else None)
        self.deterministic &= outcome.deterministic
        self.nodes += outcome.nodes
        candidate = self.add(model.plan(values), title) if values and side == "above" else None
        return outcome.status, candidate, outcome.bound

    def _model(
        self, limit: int | None, side: Side, width: int | None, inside: frozenset[int] | None, stop: float
    ) -> StageModel:
        return stage_model(
            self.stages,
            limit,
            side=side,
            width=width,
            blocks=self.blocks,
            inside=inside,
            levers=self.levers,
            room=Room(stop, MOST_ENTRIES),
        )

    def _proven(self, bound: float | None) -> None:
        self.bound = max((b for b in (self.bound, bound) if b is not None), default=None)

    @contextlib.contextmanager
    def _until_interrupted(self) -> Iterator[None]:
        """A part of the search.  Ctrl-C ends it, and with ``keep_on_interrupt`` nothing else."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.limits.keep_on_interrupt:
                raise
            self.deterministic = False
            self.notes.append(INTERRUPTED)

    @property
    def _interrupted(self) -> bool:
        return INTERRUPTED in self.notes

    def _over(self, candidate: Candidate, limit: int) -> frozenset[int]:
        """Stages at which a plan, as it really runs, is over the limit."""
        stage_of = {o: t for t, o in enumerate(self.stages.ops)}
        steps = candidate.plan.sequence
        over, t = set(), len(self.stages.ops)
        for j in range(len(steps) - 1, len(candidate.plan.forward) - 1, -1):
            t = stage_of.get(steps[j], t)
            if candidate.live.timeline[j] > limit and t < self.stages.count:
                over.add(t)
        return frozenset(over)

    def _from_above(self, limit: int, width: int | None, stop: float) -> Status:
        """Plans of one window width; rows for single recomputes are added where the plan is over."""
        inside = self._first_rows
        status = Status.NO_PLAN
        for _ in range(ROUNDS):
            status, candidate, _bound = self._solve(limit, "above", width, inside, stop)
            if candidate is None or candidate.live.peak_bytes <= limit:
                return status
            if time.perf_counter() > stop:
                self.deterministic = False
                return status
            over = self._over(candidate, limit)
            if inside is None or over <= inside:  # it is over in the forward, or by a rounding of the solver's
                return status
            inside |= over
        return status

    # --------------------------------------------------------------------------------------- answers

    def within(self, limit: int) -> Result:
        """Least recompute with a peak of at most ``limit`` bytes."""
        if self.levers.necessary_first and limit < smallest_peak_bound(self.problem):
            self.find_smallest(min(5.0, self.limits.time_limit))
            raise InfeasibleBudget(limit, self.smallest)
        if self.nothing.live.peak_bytes <= limit:
            return self._conclude(limit, self.nothing, 100.0 * self.nothing.live.overhead)
        for part in (self._plans, self._polish, self._prove, self._last_resort, self._polish):
            if not self._interrupted:
                with self._until_interrupted():
                    part(limit)
        best = self.best(limit)
        if best is None and self._interrupted:
            raise KeyboardInterrupt("no plan that fits was found so far")
        if best is None:
            raise InfeasibleBudget(limit, self.smallest)
        return self._conclude(limit, best, self.bound)

    def _last_resort(self, limit: int) -> None:
        """Where no plan fits so far: one of the smallest peak, whatever it costs."""
        if self.best(limit) is None:
            self.find_smallest(min(SMALLEST_PEAK_SECONDS, self.limits.time_limit))

    def _polish(self, limit: int) -> None:
        best = self.best(limit)
        if not self.levers.polish or best is None or best.plan == self.polished:
            return
        if best.live.overhead * 100 > (self.bound or 0.0):
            stop = time.perf_counter() + 0.5 * self.seconds_left()  # there is a bound to be found too
            self.polished, ended = leave_out(self.problem, best.plan, limit, stop)
            self.deterministic &= ended
            if self.polished != best.plan:
                self.add(self.polished, f"{best.origin}, polished")

    def _plans(self, limit: int) -> None:
        """Plans from above, in half of the time that is not kept for the bound; more if none fits by then."""
        kept = time.perf_counter() + (1 - BOUND_SHARE) * self.seconds_left()
        for width in self._widths():
            now = time.perf_counter()
            if now >= kept:
                self.deterministic = False
                return
            status = self._from_above(limit, width, now + 0.5 * (kept - now))
            if status.has_plan and self.best(limit) is not None:
                return

    def _prove(self, limit: int) -> None:
        """The bound, and where it is far from the plan wider windows while there is time."""
        best = self.best(limit)
        if best is not None and best.live.overhead <= self.nothing.live.overhead:
            self._proven(100.0 * self.nothing.live.overhead)  # the least of all plans, whatever their memory
            return
        if (total := self.seconds_left()) <= 0:
            self.deterministic = False
            return
        width = 1 if self.levers.windows else None
        status, _none, _bound = self._solve(limit, "below", width, self._first_rows, self.deadline)
        if status is Status.INFEASIBLE:
            self.notes.append("proven: no plan of the class fits")
        if status is Status.INFEASIBLE or not self._wide(limit) or not self.levers.widening or width is None:
            return
        if self.seconds_left() < 0.1 * total:
            self.deterministic = False
        elif self._small(None, WHOLE_BINARIES, self.deadline):  # no windows at all: plan and bound from one model
            self._solve(limit, "above", None, None, self.deadline)
        else:
            self._from_above(limit, 3, self.deadline)

    def _wide(self, limit: int) -> bool:
        """Is the gap on the overhead worth more work?"""
        best, bound = self.best(limit), self.bound
        return best is None or bound is None or 100 * best.live.overhead - bound > WIDE_GAP * bound

    def _widths(self) -> Iterator[int | None]:
        """Narrow windows first where the model would be large: some plan is there early."""
        if not self.levers.windows:
            yield None
            return
        if len(self.stages.values) * self.stages.count > 40_000:
            yield 0
        yield 1
        yield 3

    @property
    def _first_rows(self) -> frozenset[int] | None:
        """Stages whose ops have memory rows in a first model: none, or all of them (None)."""
        return frozenset() if self.levers.lazy_rows else None

    def find_smallest(self, seconds: float) -> None:
        """Plans of a peak as small as the search gets in a fixed amount of work."""
        stop = time.perf_counter() + seconds
        for width in (0, 1, 3) if self.levers.windows else (None,):
            inside = self._first_rows
            if width and not self._small(width, SMALLEST_PEAK_BINARIES, stop):
                self._descend(width, stop)
                return
            for _ in range(2):
                if time.perf_counter() >= stop:
                    self.deterministic = False
                    return
                _status, candidate, bound = self._solve(None, "above", width, inside, stop, SMALLEST_PEAK_NODES)
                if candidate is None or bound is None:
                    break
                peak = int(bound * smallest_peak_bound(self.problem))
                if inside is None or candidate.live.peak_bytes <= peak * (1 + GAP):
                    break
                inside |= self._over(candidate, peak)
            if self.smallest <= smallest_peak_bound(self.problem) * (1 + GAP):
                return

    def _descend(self, width: int, stop: float) -> None:
        """Where a model is too large to minimise a peak with: ask for any plan that is a step lower, and lower again."""
        for step in DESCENT:
            while time.perf_counter() < stop:
                limit = int(self.smallest * step)
                status, candidate, _bound = self._solve(limit, "above", width, frozenset(), stop, SMALLEST_PEAK_NODES)
                if not status.has_plan or candidate is None or candidate.live.peak_bytes > limit:
                    break
        self.deterministic &= time.perf_counter() < stop

    def _small(self, width: int | None, binaries: int, stop: float) -> bool:
        """Does the model of windows have at most so many binaries?"""
        try:
            return sum(self._model(None, "above", width, frozenset(), stop).model.integral) <= binaries
        except NotBuilt as e:
            self.deterministic &= not e.late
            return False

    def at_fraction(self, fraction: float) -> Result:
        """Budget = low + fraction (high - low); low's own plan is kept, so that 0.0 is never infeasible."""
        high = self.nothing.live.peak_bytes
        if fraction == 1.0:
            return self._conclude(high, self.nothing, 100.0 * self.nothing.live.overhead)
        with self._until_interrupted():
            self.find_smallest(min(SMALLEST_PEAK_SECONDS, 0.5 * self.limits.time_limit))
        low = self.smallest
        limit = low + int(fraction * (high - low))
        self.notes.append(
            f"memory_budget={fraction} of the range from {format_bytes(low)} to {format_bytes(high)}: {format_bytes(limit)}"
        )
        return self.within(limit)

    def _conclude(self, limit: int, best: Candidate, bound: float | None) -> Result:
        total = self.problem.total_time
        proven = max(self.nothing.live.overhead, 0.0 if bound is None else bound / 100.0 * (1 - 1e-6))
        overhead = best.live.overhead
        optimal = overhead == 0.0 or overhead <= proven * (1 + 1e-4) + 1e-9
        return conclude(
            self.problem,
            Status.OPTIMAL if optimal else Status.FEASIBLE,
            best.plan,
            unit=total or 1.0,
            objective=overhead,
            objective_bound=min(proven, overhead),
            plan_class=PLAN_CLASS,
            formulation="stages",
            solver=f"highs ({best.origin})",
            seconds=time.perf_counter() - self.start,
            deterministic=self.deterministic,
            notes=self.notes,
            budget_bytes=limit,
            nodes=self.nodes,
        )
