"""Local improvement of a plan: leave out runs that the budget does not need.

A recompute can be left out if the instance before it may live on instead: its value is then kept in
memory from the last run (or from the forward) to the reads behind the run that is gone.  Runs that only
served that one go too.  Greedy, most expensive first, until nothing more fits; every step is measured by
the exact simulation, so the result fits if the start did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from optpart.graph import Graph
from optpart.liveness import simulate
from optpart.plans import Plan
from optpart.problem import Problem


def leave_out(problem: Problem, plan: Plan, limit: int, stop: float = math.inf) -> tuple[Plan, bool]:
    """A plan with no more recompute than ``plan`` and a peak of at most ``limit`` bytes, if ``plan`` has one.

    Joint problems only; the forward is left as it is.  The second result is False where ``stop``, a reading of
    ``time.perf_counter``, came before the end.
    """
    refused: set[tuple[int, int]] = set()
    while True:
        runs = _repeats(plan)
        runs.sort(key=lambda j: (-problem.runtime[plan.backward[j]], j))
        for j in runs:
            if time.perf_counter() > stop:
                return plan, False
            key = (plan.backward[j], plan.backward[:j].count(plan.backward[j]))
            if key in refused:
                continue
            shorter = _without(problem.graph, plan, j)
            if shorter is not None and simulate(problem, shorter).peak_bytes <= limit:
                plan = shorter
                break
            refused.add(key)
        else:
            return plan, True


def _repeats(plan: Plan) -> list[int]:
    """Positions in the backward whose op has run before."""
    seen = set(plan.forward)
    found = []
    for j, o in enumerate(plan.backward):
        if o in seen:
            found.append(j)
        seen.add(o)
    return found


def _without(graph: Graph, plan: Plan, j: int) -> Plan | None:
    """The plan without the run at position j and what only served it; None if that is not allowed."""
    backward = [*plan.backward[:j], *plan.backward[j + 1 :]]
    shorter = Plan(plan.forward, tuple(_without_unread(graph, plan.forward, backward)))
    if all(graph.values[v].savable for v in shorter.saved(graph)):
        return shorter
    return None


def _without_unread(graph: Graph, forward: Sequence[int], backward: Sequence[int]) -> list[int]:
    """The backward without repeated runs that nobody reads, last one first."""
    first: dict[int, int] = dict.fromkeys(forward, -1)
    for j, o in enumerate(backward):
        first.setdefault(o, j)
    early = set(forward)
    wanted = set(graph.backward_outputs)
    kept: list[int] = []
    for j in range(len(backward) - 1, -1, -1):
        op = graph.ops[backward[j]]
        if first[op.id] < j and not wanted & set(op.writes):
            continue
        kept.append(op.id)
        wanted -= set(op.writes)
        wanted |= set(op.reads_again if op.id in early else op.reads)
    return kept[::-1]
