"""Binomial checkpointing of a chain: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000.

A chain of l equal links, and room for s snapshots of its state, the input among them.  Let

    beta(s, r) = (s + r choose s)      and r be the least with  beta(s, r) >= l.

No schedule advances through fewer than  t(l, s) = r l - beta(s + 1, r - 1)  links, the first sweep included; this one
reaches that.  From a kept state it advances to a link m, keeps the state there, goes back through what is behind m
with one snapshot less, and then through what is before m with all of them again, where

    beta(s, r-2) <= m <= beta(s, r-1)      and      beta(s-1, r-1) <= l - m <= beta(s-1, r).

With s of the order of log l, both memory and time grow by log l ("log n" in Checkmate's tables).  Links of a joint
graph are neither equal nor are their states, so s is swept over blocks and over single ops (:mod:`line`), and the
plan of least recompute time whose real peak fits is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from optpart.peers.candidates import best_within, keep_everything
from optpart.peers.line import Line, Step, lines, schedule_plan
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result

PLAN_CLASS = "binomial schedules on a chain of links"
EVERY, RATIO = 16, 1.15  # all numbers of snapshots up to EVERY, then in this ratio


def revolve(problem: Problem, limit: int, limits: Limits) -> Result:
    """The binomial schedule of the number of snapshots that fits best."""
    return best_within(
        problem,
        limit,
        _plans(problem),
        limits,
        formulation="binomial checkpointing",
        plan_class=PLAN_CLASS,
        solver="closed form",
    )


def _plans(problem: Problem) -> Iterator[Plan]:
    yield keep_everything(problem)
    for line in lines(problem):
        for snapshots in reversed(_numbers(line.count)):
            yield schedule_plan(line, list(binomial(line, snapshots)))


def _numbers(count: int) -> list[int]:
    numbers = list(range(1, min(EVERY, count) + 1))
    while numbers[-1] < count:
        numbers.append(min(count, math.ceil(RATIO * numbers[-1])))
    return numbers


def binomial(line: Line, snapshots: int) -> Iterator[Step]:
    """The schedule for a chain with room for so many states, the input among them (1 or more)."""
    waiting: list[tuple[int, int, int] | int] = [(0, line.count, snapshots)]
    while waiting:  # a stack: (first link, end, snapshots, that of the first link's state among them), or one to drop
        now = waiting.pop()
        if isinstance(now, int):
            yield "drop", line.borders[now]
            continue
        first, end, s = now
        if s == 1 or end - first == 1:
            yield from (("back", i) for i in reversed(range(first, end)))
            continue
        middle = first + split(end - first, s)
        yield "keep", line.borders[middle]
        waiting += [(first, middle, s), middle, (middle, end, s - 1)]


def split(length: int, snapshots: int) -> int:
    """How far to advance before the next state is kept: m of the module's docstring."""
    r = repetitions(length, snapshots)
    return max(1, beta(snapshots, r - 2), length - beta(snapshots - 1, r))


def repetitions(length: int, snapshots: int) -> int:
    """The least r with beta(snapshots, r) >= length: how often a link is advanced through at most."""
    r = 0
    while beta(snapshots, r) < length:
        r += 1
    return r


def beta(s: int, r: int) -> int:
    """The longest chain that s snapshots and r advances of each link are enough for; 0 for r < 0."""
    return math.comb(s + r, s) if r >= 0 else 0


def advances(length: int, snapshots: int) -> int:
    """t(l, s): how many links the best schedule advances through, the first sweep included."""
    r = repetitions(length, snapshots)
    return r * length - beta(snapshots + 1, r - 1)
