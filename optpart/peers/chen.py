"""Checkpoints at every k-th place, and greedy ones: Chen, Xu, Zhang and Guestrin, 2016, arXiv:1604.06174.

A forward of n ops is cut into segments.  The ends of the segments are saved, what lies between is run again when the
backward reaches the segment.

* **sqrt(n)**: segments of equal length, k of them; k = sqrt(n) is the one with the least memory for equal layers.
* **greedy** (their algorithm 3): a place is saved when what was computed since the last one exceeds b bytes.

Both parameters are swept.  Their candidates for a checkpoint are the layers of a chain; for graphs Checkmate (Jain et
al., MLSys 2020, section 6.1) takes the articulation points of the forward as an undirected graph ("AP"), or every op
in program order ("linearized"), and saves the op's output.  Both are tried, and a third that lies nearer to what is
done by hand: all that crosses the place is saved, so that no run goes back behind it.

Differs in: 1. a segment is run again op by op, just ahead of the first reader, and only what is read; 2. what may not
run again, and what the caller holds anyway, is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import networkx

from optpart.graph import Graph, Op, Region
from optpart.peers.candidates import best_within, is_activation, keep, keep_everything
from optpart.peers.line import Line, lines
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result

PLAN_CLASS = "ends of segments are saved, the rest is made again once"
BUDGETS = 64  # of the greedy's parameter, in equal ratios
Place = tuple[int, frozenset[int]]  # (a forward op's position, what is saved there)
Chooser = Callable[[Problem, Sequence[Place]], Iterator[list[frozenset[int]]]]


def sqrt_n(problem: Problem, limit: int, limits: Limits) -> Result:
    """Segments of equal length, any number of them."""
    plans = _plans(problem, _every_kth)
    formulation = "sqrt(n) checkpoints"
    return best_within(
        problem, limit, plans, limits, formulation=formulation, plan_class=PLAN_CLASS, solver="closed form"
    )


def greedy(problem: Problem, limit: int, limits: Limits) -> Result:
    """A checkpoint whenever a segment is full, for any size of a segment."""
    plans = _plans(problem, _by_bytes)
    formulation = "greedy checkpoints"
    return best_within(
        problem, limit, plans, limits, formulation=formulation, plan_class=PLAN_CLASS, solver="greedy sweep"
    )


def _plans(problem: Problem, choices: Chooser) -> Iterator[Plan]:
    yield keep_everything(problem)
    for places in candidates(problem):
        for chosen in choices(problem, places):
            yield keep(problem, frozenset().union(*chosen))


def candidates(problem: Problem) -> Iterator[list[Place]]:
    """Places where the forward may be cut, with what is saved there: see the module's docstring."""
    graph = problem.graph
    forward = graph.in_region(Region.FORWARD)
    place = {op.id: i for i, op in enumerate(forward)}
    points = articulation_points(graph)
    yield [(place[op.id], frozenset(op.writes)) for op in forward if op.id in points]
    yield [(place[op.id], frozenset(op.writes)) for op in forward]
    every = Line(problem, {op.id: i for i, op in enumerate(forward)})
    for line in (*lines(problem), every) if forward else ():
        ends = [max(place[o] for o in ops) for ops in line.links]
        yield [(ends[i - 1], line.borders[i] | line.held) for i in range(1, line.count)]


def articulation_points(graph: Graph) -> frozenset[int]:
    """Forward ops without which the forward, read as an undirected graph, falls apart."""
    edges: networkx.Graph[int] = networkx.Graph()
    for op in graph.in_region(Region.FORWARD):
        edges.add_edges_from((graph.values[v].producer, op.id) for v in op.reads if is_activation(graph, v))
    return frozenset(networkx.articulation_points(edges))


def _every_kth(_problem: Problem, places: Sequence[Place]) -> Iterator[list[frozenset[int]]]:
    """Segments of 1, 2, 3, ... candidates, those of about sqrt(n) first."""
    n = len(places)
    for step in sorted(range(1, n + 1), key=lambda k: (abs(k - math.sqrt(n)), k)):
        yield [values for _, values in places[step - 1 :: step]]


def _by_bytes(problem: Problem, places: Sequence[Place]) -> Iterator[list[frozenset[int]]]:
    """A candidate is saved when more than so many bytes were written since the last one."""
    forward = problem.graph.in_region(Region.FORWARD)
    written = [_bytes(problem, op) for op in forward]
    least, most = min((b for b in written if b), default=1), sum(written) + 1
    for k in range(BUDGETS):
        budget = least * (most / least) ** (k / BUDGETS)
        chosen, since, last = [], 0, 0
        for position, values in places:
            since += sum(written[last : position + 1])
            last = position + 1
            if since > budget:
                chosen.append(values)
                since = 0
        yield chosen


def _bytes(problem: Problem, op: Op) -> int:
    return sum(problem.sizes[v] for v in op.writes)
