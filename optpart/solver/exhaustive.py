"""Exhaustive search over named classes of plans, for problems of a dozen ops: what the solvers are tested with.

Nothing here is clever.  It imports no formulation, no other solver and no liveness, so an agreement
with one of those is evidence.

**Class "one copy"** (the cut's class).  A plan is two run sets:

* every FORWARD op runs in the forward, and in the backward 0 or 1 times (1 = a recompute);
* every EITHER op runs in the forward, in the backward, in both (a recompute), or nowhere if nobody
  needs it; every BACKWARD op runs in the backward;
* what the backward reads or returns and does not compute itself is saved: a value of an op that runs in
  the backward is read from there.  (To save a value and recompute its op as well may pay where memory
  is counted step by step; by saved weight and recompute time it never does.)

Program order is a valid order of both sets, so a member of the class is a plan (:meth:`OneCopy.plan`).

:mod:`optpart.solver.exhaustive_sequences` does the same for a limit on the peak.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optpart.graph import Graph, Op, Region, ValueKind
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Microseconds

MAX_OPTIONS = 1 << 18  # some seconds of enumeration

Weights = Sequence[float | None]  # by value id; None = may not be saved


@dataclass(frozen=True, slots=True)
class OneCopy:
    """A member of the class: op ids that run in the forward, op ids that run in the backward, value ids
    that are saved (inputs included, static inputs left out), and the run time of what runs in both."""

    forward: frozenset[int]
    backward: frozenset[int]
    saved: frozenset[int]
    recompute_time: Microseconds

    def plan(self) -> Plan:
        """Both run sets in program order."""
        return Plan(tuple(sorted(self.forward)), tuple(sorted(self.backward)))

    def weight(self, weights: Weights) -> float | None:
        """Sum of the saved values' weights; None if one of them may not be saved."""
        chosen = [weights[v] for v in sorted(self.saved)]
        return None if None in chosen else sum(w for w in chosen if w is not None)


def one_copy_options(problem: Problem) -> Iterator[OneCopy]:
    """Every member of the class, useless runs included, in a fixed order.

    Raises:
        ValueError: a bare graph, or more than ``MAX_OPTIONS`` combinations of run sets.
    """
    graph = problem.graph
    if not graph.joint:
        raise ValueError("a bare graph has no backward to recompute in")
    choices = [_choices(op) for op in graph.ops]
    if (number := math.prod(map(len, choices))) > MAX_OPTIONS:
        raise ValueError(f"{number} combinations of run sets; exhaustive search takes up to {MAX_OPTIONS}")
    return _options(problem, choices)


def _choices(op: Op) -> list[tuple[bool, bool]]:
    """(runs in the forward, runs in the backward): what one op may do by itself."""
    if op.region is Region.BACKWARD:
        return [(False, True)]
    alone = [(True, False)] if op.region is Region.FORWARD else [(True, False), (False, True)]
    nowhere = [(False, False)] if op.region is Region.EITHER and op.writes else []  # an effect has to happen
    return alone + nowhere + ([(True, True)] if op.recomputable else [])


def _options(problem: Problem, choices: Sequence[Sequence[tuple[bool, bool]]]) -> Iterator[OneCopy]:
    for runs in itertools.product(*choices):
        forward = frozenset(o for o, (early, _) in enumerate(runs) if early)
        backward = frozenset(o for o, (_, late) in enumerate(runs) if late)
        saved = _saved(problem.graph, forward, backward)
        if saved is not None:
            time = math.fsum(problem.runtime[o] for o in forward & backward)
            yield OneCopy(forward, backward, saved, Microseconds(time))


def _saved(graph: Graph, forward: frozenset[int], backward: frozenset[int]) -> frozenset[int] | None:
    """What these run sets have to save; None if they lack something that may not or cannot be saved."""
    values, ops = graph.values, graph.ops
    for o in forward:
        before = [p for v in ops[o].reads if (p := values[v].producer) is not None]
        if not forward.issuperset([*before, *ops[o].after]):
            return None
    if not all((forward | backward).issuperset(ops[o].after) for o in backward):
        return None
    wanted = set(graph.backward_outputs)
    for o in backward:
        wanted.update(ops[o].reads_again if o in forward else ops[o].reads)
    saved = set()
    for v in wanted:
        producer = values[v].producer
        if values[v].kind is ValueKind.TANGENT:
            continue
        if producer is not None and producer in backward and v != ops[producer].rng_state:
            continue
        if not values[v].savable or (producer is not None and producer not in forward):
            return None
        if values[v].kind is not ValueKind.STATIC:
            saved.add(v)
    return frozenset(saved)


def byte_weights(problem: Problem) -> tuple[int, ...]:
    """Weights under which a plan's saved weight is its ``saved_bytes``: forward outputs weigh nothing."""
    free = set(problem.graph.forward_outputs)
    return tuple(0 if v in free else size for v, size in enumerate(problem.sizes))


def _weighed(problem: Problem, weights: Weights, banned: frozenset[int]) -> Iterator[tuple[float, OneCopy]]:
    """(saved weight, member) of the members that recompute no banned op."""
    for option in one_copy_options(problem):
        weight = option.weight(weights)
        if weight is not None and not banned & option.forward & option.backward:
            yield weight, option


def least_saved_weight(
    problem: Problem, weights: Weights, banned: frozenset[int] = frozenset()
) -> tuple[float, OneCopy] | None:
    """(weight, member) of least saved weight, then of least recompute time; None if there is no member.

    ``banned`` ops are not recomputed, as if the graph said so; an EITHER op may still run in the backward alone.
    """
    found = _weighed(problem, weights, banned)
    return min(found, key=lambda f: (f[0], f[1].recompute_time), default=None)


def least_recompute_time(
    problem: Problem, weights: Weights, limit: float, banned: frozenset[int] = frozenset()
) -> OneCopy | None:
    """The member of least recompute time with a saved weight of at most ``limit``, then of least weight;
    None if there is none.  ``banned`` as in :func:`least_saved_weight`."""
    found = (f for f in _weighed(problem, weights, banned) if f[0] <= limit)
    best = min(found, key=lambda f: (f[1].recompute_time, f[0]), default=None)
    return None if best is None else best[1]


def pareto(
    problem: Problem, weights: Weights, banned: frozenset[int] = frozenset()
) -> tuple[tuple[float, OneCopy], ...]:
    """(saved weight, member), the weight growing and the recompute time falling strictly: for each pair of
    numbers that no other member beats in one without losing in the other, one member."""
    front: list[tuple[float, OneCopy]] = []
    for weight, option in sorted(_weighed(problem, weights, banned), key=lambda f: (f[0], f[1].recompute_time)):
        if not front or option.recompute_time < front[-1][1].recompute_time:
            front.append((weight, option))
    return tuple(front)
