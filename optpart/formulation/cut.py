"""The default partition and the frontier of (saved bytes, recompute time), as minimum cuts.

The network, its constraints and the proof are in :mod:`optpart.formulation.network`; here it gets bytes
and run times.  Two questions are answered, both exactly:

* :func:`min_saved_bytes`: least saved bytes, and of these plans the least recompute time.  One cut with
  a = (sum of all costs) + 1, b = 1: no saving of time outweighs a byte.
* :func:`hull`: for every price of a unit of time at once, least bytes + price * time.  The minimum of a
  parametric cut is concave and piecewise linear in the price; its breakpoints are found by asking for
  the direction between two known points until nothing lies below the segment between them (Eisner and
  Severance, "Mathematical techniques for efficient record segmentation in large shared databases",
  JACM 23(4), 1976).  Its points are the lower convex hull of all plans.

Both numbers depend only on what is saved: more runs of an op save nothing, and the order of the
backward changes neither.  So what is proven for the class "one copy" holds for every plan.

Whole numbers throughout: bytes over their greatest common divisor, run times in the unit of
:meth:`Problem.integer_costs`, made coarser only where products would not fit in 61 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from optpart.formulation.network import Network, NetworkCut, build_network, solve_network
from optpart.graph import Graph, Region, ValueKind
from optpart.plans import Plan, just_in_time
from optpart.problem import Problem
from optpart.solver.maxflow import MAX_TOTAL
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True)
class CutResult:
    """A plan of the class "one copy" and its two numbers.

    ``saved`` are the values kept for the backward, without static inputs; ``saved_bytes`` is what they
    were charged: nothing for forward outputs, nor for inputs where these were free.  ``cut`` is where
    the plan comes from.
    """

    saved: frozenset[int]
    saved_bytes: Bytes
    recompute_time: Microseconds
    plan: Plan
    cut: NetworkCut = field(repr=False, compare=False)


def charged_bytes(problem: Problem, inputs_free: bool = False) -> tuple[int | None, ...]:
    """By value id: bytes charged when the value is saved, None = may not be saved.

    Nothing for what stays alive in any case: static inputs and forward outputs; inputs that the caller
    may drop are charged, unless ``inputs_free`` (in a peak they are resident whatever is saved).
    """
    free = set(problem.graph.forward_outputs)
    free_kinds = {ValueKind.STATIC, ValueKind.INPUT} if inputs_free else {ValueKind.STATIC}
    return tuple(
        None if not v.savable else 0 if v.kind in free_kinds or v.id in free else size
        for v, size in zip(problem.graph.values, problem.sizes, strict=True)
    )


def banned_ops(graph: Graph, cheap_only: bool) -> frozenset[int]:
    """Ops that may not run twice: not recomputable, or (``cheap_only``) not cheap to redo."""
    return frozenset(op.id for op in graph.ops if not op.recomputable or (cheap_only and not op.cheap))


class PricedNetwork:
    """A problem's network in whole units: points on the trade-off between bytes and time.

    ``weights`` by value id (None = may not be saved) in units of ``byte_unit`` bytes, ``costs`` by op id
    (None = banned) in units of ``time_unit``; ``total_weight`` and ``total_cost`` are their sums.

    Raises:
        ValueError: a bare graph.
    """

    def __init__(self, problem: Problem, banned: frozenset[int], inputs_free: bool, cheap_only: bool) -> None:
        self.problem = problem
        self.charged = charged_bytes(problem, inputs_free)
        banned = banned | banned_ops(problem.graph, cheap_only)
        self.byte_unit = math.gcd(*(w for w in self.charged if w)) or 1
        self.weights = tuple(None if w is None else w // self.byte_unit for w in self.charged)
        self.total_weight = sum(w for w in self.weights if w)
        costs, self.time_unit = problem.integer_costs()
        most = MAX_TOTAL // (4 * self.total_weight + 4)  # so that weight * cost + cost * weight fits
        total = sum(c for o, c in enumerate(costs) if o not in banned)
        if total > most:
            coarser = total / most
            costs, self.time_unit = tuple(round(c / coarser) for c in costs), self.time_unit * coarser
        self.costs = tuple(None if o in banned else c for o, c in enumerate(costs))
        self.total_cost = sum(c for c in self.costs if c)
        self.network: Network = build_network(problem.graph, self.weights, self.costs)

    def solve(self, a: int, b: int) -> CutResult:
        """The plan that minimises a * weight + b * cost.  NoPlan if there is none."""
        return self.result(solve_network(self.network, a, b)[1])

    def result(self, cut: NetworkCut) -> CutResult:
        """The plan of a cut, with its numbers."""
        graph = self.problem.graph
        effects = (op.id for op in graph.ops if op.region is Region.EITHER and not op.writes)
        plan = just_in_time(graph, cut.saved, frozenset(o for o in effects if o not in cut.rerun))
        saved = frozenset(plan.saved(graph))
        time = math.fsum(n * self.problem.runtime[o] for o, n in plan.recomputes().items())
        return CutResult(saved, Bytes(sum(self.charged[v] or 0 for v in saved)), Microseconds(time), plan, cut)

    def units(self, point: CutResult) -> tuple[int, int]:
        """(weight, cost) of a plan in whole units."""
        again = point.plan.recomputes().items()
        return point.saved_bytes // self.byte_unit, sum(n * (self.costs[o] or 0) for o, n in again)

    def prices(self, longest_chain: float | None) -> tuple[int, int]:
        """(a, b) of an objective in which a byte outweighs ``longest_chain`` cheap ops on it, or all time (None)."""
        graph = self.problem.graph
        cheap = [op for op in graph.ops if op.cheap and op.region is not Region.BACKWARD and self.costs[op.id]]
        written = sum(self.problem.sizes[v] for op in cheap for v in op.writes) / self.byte_unit
        if longest_chain is None or not written:
            return self.total_cost + 1, 1
        a = longest_chain * sum(self.costs[op.id] or 0 for op in cheap) / written
        if a > self.total_cost:
            return self.total_cost + 1, 1
        room = MAX_TOTAL // (4 * (math.ceil(a) * self.total_weight + self.total_cost + 1))
        scale = max(1, min(1000, room))
        return max(1, round(a * scale)), scale


def min_saved_bytes(
    problem: Problem,
    banned: frozenset[int] = frozenset(),
    inputs_free: bool = False,
    cheap_only: bool = True,
    longest_chain: float | None = None,
) -> CutResult:
    """The plan that saves the fewest bytes and, of these, recomputes the least.

    Args:
        longest_chain: a byte is saved after all if freeing it takes more time than this many cheap ops
            (of the graph's average time per byte) on it; None: whatever it takes.
        banned: ops that may not run twice, beside those that are not recomputable.
        inputs_free: saving an input costs nothing.
        cheap_only: ops that are not cheap may not run twice either.

    Raises:
        NoPlan: a value that the backward needs can neither be saved nor computed there.
        ValueError: a bare graph.
    """
    priced = PricedNetwork(problem, banned, inputs_free, cheap_only)
    return priced.solve(*priced.prices(longest_chain))


def hull(
    problem: Problem, banned: frozenset[int] = frozenset(), inputs_free: bool = False, cheap_only: bool = False
) -> tuple[CutResult, ...]:
    """Corners of the lower convex hull of (saved bytes, recompute time) of all plans, by growing bytes.

    The first corner has the fewest bytes, the last the least time.  Arguments and errors as in
    :func:`min_saved_bytes`, except that by default every recomputable op may run twice.
    """
    return hull_of(PricedNetwork(problem, banned, inputs_free, cheap_only))


def hull_of(priced: PricedNetwork) -> tuple[CutResult, ...]:
    """:func:`hull` of a network that is there already."""
    least_bytes = priced.solve(priced.total_cost + 1, 1)
    least_time = priced.solve(1, priced.total_weight + 1)
    found = {priced.units(p): p for p in (least_time, least_bytes)}
    segments = [(priced.units(least_bytes), priced.units(least_time))]
    while segments:
        left, right = segments.pop()
        a, b = left[1] - right[1], right[0] - left[0]
        if a <= 0 or b <= 0:
            continue
        point = priced.solve(a, b)
        here = priced.units(point)
        if a * here[0] + b * here[1] < a * left[0] + b * left[1]:
            found[here] = point
            segments += [(left, here), (here, right)]
    corners: list[tuple[int, int]] = []
    for here in sorted(found):
        while len(corners) > 1 and _above(corners[-1], corners[-2], here):
            corners.pop()
        corners.append(here)
    return tuple(found[c] for c in corners)


def _above(point: tuple[int, int], left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether a point lies on or above the segment between two others."""
    return (point[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (point[0] - left[0])
