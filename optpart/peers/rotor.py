"""Optimal persistent schedules of a chain of unequal links: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova,
"Optimal checkpointing for heterogeneous chains" (rotor), ACM TOMS 2024, arXiv:1911.13214.

Links s = 0..l-1 (:mod:`line`); a_s bytes of the border into s, t_s bytes of its tape with the border behind it.
Persistent: what is kept stays until the backward has come back to it.  C(s, t, m) is the least run time of going back
through links s..t with m bytes, the border into s being there and not counted; in E(s, t, m) it is counted, and goes
when s has run, if nothing comes back to it:

    C(s, s, m) = time of the ops that make the tape of s
    C(s, t, m) = min of    keep all of s:      time(s) + C(s+1, t, m - t_s)
                           keep a border s':   sum of time(s..s'-1) + E(s', t, m) + C(s, s'-1, m),  s < s' <= t
    E(s, t, m) = min of    C(s, t, m - a_s)
                           keep all of s:      time(s) + C(s+1, t, m - t_s)

wherever the runs fit: while link k is run forward ahead of the backward of t, what is there anyway (before_t), the border
into k and all that k has alive; while the backward of s runs, what is there anyway (during_s) and the tape.  The first
pass through the forward is the same with run times of 0.  Bytes are counted in SLOTS slots, as theirs.

One table has the answers for every m, so all of them are made plans, and the one of least recompute time whose real
peak fits is taken.  It is tried on blocks, found by structure, and on single ops where these are few.

Differs in: 1. what reaches over several links is part of each border that it crosses, or saved once (``Line.held``);
2. gradients that have been made so far are there anyway; 3. only ops that are read are run again; 4. E: their backward
of a link reads the border into it, ours often does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optpart.formulation.stage_graph import build_stages
from optpart.peers.candidates import best_within, keep_everything
from optpart.peers.line import Line, Step, lines, schedule_plan
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result

PLAN_CLASS = "persistent schedules on a chain of links"
SLOTS = 500
LONGEST = 160  # links of a chain of single ops: the program takes the cube of it, some seconds for this many
ROOM = 1.25  # the table reaches up to this times the limit, since its memory counts more than there is
ALL = -1  # a choice: keep all of a link

Slots = NDArray[Any]  # by number of slots


def rotor(problem: Problem, limit: int, limits: Limits) -> Result:
    """The persistent schedules of all amounts of memory, by real peak.

    Raises:
        ValueError: the backward holds what is saved to its end (rule ``boxed`` False).
    """
    return best_within(
        problem,
        limit,
        _plans(problem, limit),
        limits,
        formulation="persistent schedules of a chain",
        plan_class=PLAN_CLASS,
        solver="dynamic program",
    )


def _plans(problem: Problem, limit: int) -> Iterator[Plan]:
    yield keep_everything(problem)
    for line in lines(problem):
        if line.count <= LONGEST:
            for steps in Table(line, ROOM * limit).schedules():
                yield schedule_plan(line, steps)


@dataclass(frozen=True)
class Costs:
    """Of each link: bytes of the border into it, of its tape with the border behind it, most bytes while it is run for
    the border alone and for both; run times for the border, for both, and for the tape alone; and what is there anyway
    ahead of its backward ops and while they run."""

    border: list[int]
    tape: list[int]
    pass_peak: list[int]
    tape_peak: list[int]
    pass_time: list[float]
    both_time: list[float]
    tape_time: list[float]
    before: list[int]
    during: list[int]


def costs_of(line: Line) -> Costs:
    """Measured on the graph."""
    sizes, stages = line.problem.sizes, build_stages(line.problem, every=True)
    place = {o: i for i, ops in enumerate(line.backward) for o in ops}
    held = sum(sizes[v] for v in line.always if v not in line.problem.graph.forward_outputs)
    before, during = [0] * line.count, [0] * line.count
    for o, b, d in zip(stages.ops, stages.before, stages.during):
        i = place[o]
        before[i], during[i] = max(before[i], b + held), max(during[i], d + held)
    for i in reversed(range(line.count - 1)):  # nothing goes back through a link: as behind it
        before[i], during[i] = before[i] or before[i + 1], during[i] or during[i + 1]
    runs = [(_run(line, i, line.borders[i + 1]), _run(line, i, _whole(line, i))) for i in range(line.count)]
    return Costs(
        border=[sum(sizes[v] for v in values) for values in line.borders[:-1]],
        tape=[sum(sizes[v] for v in _whole(line, i)) for i in range(line.count)],
        pass_peak=[past[0] for past, _ in runs],
        tape_peak=[both[0] for _, both in runs],
        pass_time=[past[1] for past, _ in runs],
        both_time=[both[1] for _, both in runs],
        tape_time=[_run(line, i, tape)[1] for i, tape in enumerate(line.tapes)],
        before=before,
        during=during,
    )


def _whole(line: Line, i: int) -> frozenset[int]:
    return line.tapes[i] | line.borders[i + 1]


def _run(line: Line, i: int, wanted: Iterable[int]) -> tuple[int, float]:
    """Most bytes, and run time, of the ops of a link that make these values, which stay; others go at their last read."""
    ops, sizes = line.problem.graph.ops, line.problem.sizes
    inside = {w for o in line.links[i] for w in ops[o].writes}
    needed, keep = set(wanted) & inside, frozenset(wanted)
    runs: list[int] = []
    for o in reversed(line.links[i]):
        if needed & set(ops[o].writes):
            runs.append(o)
            needed.update(v for v in ops[o].reads if v in inside and v not in line.always)
    last = {v: o for o in reversed(runs) for v in (*ops[o].writes, *ops[o].reads) if v in inside}
    now = sum(sizes[v] for v in keep - inside)
    peak = now
    for o in reversed(runs):
        now += sum(sizes[w] for w in ops[o].writes)
        peak = max(peak, now + line.problem.workspace[o])
        now -= sum(sizes[v] for v in {*ops[o].writes, *ops[o].reads} if last.get(v) == o and v not in keep)
    return peak, math.fsum(line.problem.runtime[o] for o in runs)


class Table:
    """C and E for all s, t and m up to ``most`` bytes, and what to choose."""

    def __init__(self, line: Line, most: float) -> None:
        self.line, self.costs = line, costs_of(line)
        self.slot = max(most, 1.0) / SLOTS
        n = line.count
        self.again = Choices({}, {}, {}, {})
        for length in range(1, n + 1):
            for s in range(n - length + 1):
                self._fill(s, s + length - 1, self.again, 1.0)
        self.first = Choices({}, {}, {}, {})
        for s in reversed(range(n)):
            self._fill(s, n - 1, self.first, 0.0)

    def _slots(self, nbytes: float) -> int:
        return min(math.ceil(nbytes / self.slot), SLOTS + 1)

    def _from(self, costs: Slots, nbytes: float) -> Slots:
        """``costs`` from that many bytes on, infinite below."""
        costs = costs.copy()
        costs[: self._slots(nbytes)] = np.inf
        return costs

    def _without(self, costs: Slots, nbytes: float) -> Slots:
        """What is left to spend with so many bytes less."""
        less = self._slots(nbytes)
        return np.concatenate([np.full(less, np.inf), costs[: SLOTS + 1 - less]])

    def _fill(self, s: int, t: int, table: Choices, price: float) -> None:
        """``table`` is of the first pass or of later ones; what is gone back through later is always of these."""
        c = self.costs
        if s == t:
            whole = np.full(SLOTS + 1, price * c.tape_time[s])
        else:
            whole = price * c.both_time[s] + self._without(table.cost[s + 1, t], c.tape[s])
        best = self._from(whole, max(c.before[t] + c.tape_peak[s], c.during[s] + c.tape[s]))
        choice = np.full(SLOTS + 1, ALL, np.int16)
        peak, time = 0, 0.0
        for middle in range(s + 1, t + 1):
            k = middle - 1
            peak = max(peak, c.before[t] + c.pass_peak[k] + (c.border[k] if k > s else 0))
            time += price * c.pass_time[k]
            found = self._from(time + table.enter[middle, t] + self.again.cost[s, k], peak)
            better = found < best
            best[better], choice[better] = found[better], middle
        table.cost[s, t], table.choice[s, t] = best, choice
        kept = self._without(best, c.border[s])
        run = self._from(whole, max(c.before[t] + c.border[s] + c.tape_peak[s], c.during[s] + c.tape[s]))
        table.enter[s, t], table.leave[s, t] = np.minimum(kept, run), run < kept

    def schedules(self) -> Iterator[list[Step]]:
        """For each cost one with the least memory for it, cheapest first."""
        n = self.line.count - 1
        cost = self.first.cost[0, n]
        rises = [m for m in range(SLOTS + 1) if math.isfinite(cost[m]) and (m == 0 or cost[m] < cost[m - 1])]
        for m in reversed(rises):
            yield list(self._steps(0, n, m, self.first))

    def _steps(self, s: int, t: int, m: int, table: Choices, entered: bool = False) -> Iterator[Step]:
        c, line = self.costs, self.line
        leaves = entered and bool(table.leave[s, t][m])
        m -= self._slots(c.border[s]) if entered and not leaves else 0
        middle = ALL if leaves else int(table.choice[s, t][m])
        if s == t:
            yield "back", s
        elif middle == ALL:
            values = _whole(line, s)
            yield "keep", values
            yield from self._steps(s + 1, t, m - self._slots(c.tape[s]), table)
            yield "back", s
            yield "drop", values
        else:
            yield "keep", line.borders[middle]
            yield from self._steps(middle, t, m, table, True)
            yield "drop", line.borders[middle]
            yield from self._steps(s, middle - 1, m, self.again)


@dataclass(frozen=True)
class Choices:
    """By (s, t) and slots: C, what it chooses (ALL or s'), E, and whether E lets the border into s go."""

    cost: dict[tuple[int, int], Slots]
    choice: dict[tuple[int, int], Slots]
    enter: dict[tuple[int, int], Slots]
    leave: dict[tuple[int, int], Slots]
