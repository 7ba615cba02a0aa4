"""Minimum s-t cut through OR-Tools' push-relabel ``SimpleMaxFlow``, with whole or floating capacities.

A cut splits the nodes into a source side and a sink side and costs the capacities of the arcs that go
from the first to the second.  OR-Tools wants int64: whole capacities are passed as they are, floating
ones are scaled by a power of two, so that their sum takes 60 bits: each is off by the sum over 2**61 at
most, and cuts that differ by less than that may be taken for each other.  An unlimited arc
gets one more than the sum of all finite capacities: no cut of finite capacity reaches that, so it is as
good as infinite, and it is the smallest number that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from ortools.graph.python import max_flow

MAX_TOTAL = 2**61  # of all finite capacities; one unlimited arc more still fits in an int64

Integers = NDArray[numpy.int64]
Mask = NDArray[numpy.bool_]


@dataclass(frozen=True)
class MinimumCut:
    """``value`` is summed over the arcs of the cut, in the caller's numbers.

    Minimum cuts are a lattice; ``smallest`` is the source side that every minimum cut's source side
    contains and ``largest`` the one that contains them all (masks over nodes).
    """

    value: int | float
    smallest: Mask
    largest: Mask


@dataclass(frozen=True)
class InfinitePath:
    """Why no finite cut exists: the positions of unlimited arcs that lead from the source to the sink."""

    arcs: tuple[int, ...]


def minimum_cut(
    tail: Integers,
    head: Integers,
    capacity: NDArray[Any],
    unlimited: Mask,
    *,
    nodes: int,
    source: int = 0,
    sink: int = 1,
) -> MinimumCut | InfinitePath:
    """Minimum cut of a network whose arc i goes from ``tail[i]`` to ``head[i]`` (parallel arcs add up).

    Args:
        capacity: shape (arcs,), int64 or float64, not negative; not read where ``unlimited`` is True.
        nodes: number of nodes, ids 0 to nodes - 1.

    Raises:
        OverflowError: whole capacities sum up to 2**61 or more.
    """
    unlimited = unlimited | (capacity == math.inf)
    finite = numpy.where(unlimited, 0, capacity)
    total = float(finite.sum(dtype=numpy.float64))
    if capacity.dtype.kind == "f":
        scaled = numpy.rint(numpy.ldexp(finite, 60 - math.frexp(total)[1])).astype(numpy.int64)
    elif total < MAX_TOTAL:
        scaled = finite
    else:
        raise OverflowError(
            f"capacities sum up to {total:.3g}, and only sums below 2**61 are exact: "
            "divide them by a common factor, or use a coarser unit"
        )
    infinite = int(scaled.sum()) + 1
    flow = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(tail, head, numpy.where(unlimited, infinite, scaled))
    status = flow.solve(source, sink)
    if status == flow.POSSIBLE_OVERFLOW or (status == flow.OPTIMAL and flow.optimal_flow() >= infinite):
        return _infinite_path(tail, head, unlimited, source, sink)
    if status != flow.OPTIMAL:
        raise ValueError(f"not a flow network: {status.name} (negative capacity, or source equal to sink)")
    smallest = numpy.zeros(nodes, dtype=numpy.bool_)
    smallest[flow.get_source_side_min_cut()] = True
    largest = numpy.ones(nodes, dtype=numpy.bool_)
    largest[flow.get_sink_side_min_cut()] = False
    smallest[source], largest[sink] = True, False  # both may be without arcs
    value = finite[largest[tail] & ~largest[head]].sum().item()
    return MinimumCut(value, smallest, largest)


def _infinite_path(tail: Integers, head: Integers, unlimited: Mask, source: int, sink: int) -> InfinitePath:
    """A shortest path over unlimited arcs; there is one whenever the maximum flow passes all finite capacity."""
    leaving: dict[int, list[int]] = {}
    for arc in numpy.flatnonzero(unlimited).tolist():
        leaving.setdefault(int(tail[arc]), []).append(arc)
    reached: dict[int, int] = {source: -1}
    queue = [source]
    for node in queue:  # grows while it is read
        for arc in leaving.get(node, ()):
            if (target := int(head[arc])) not in reached:
                reached[target] = arc
                queue.append(target)
    path: list[int] = []
    node = sink
    while node != source:
        path.append(reached[node])
        node = int(tail[path[-1]])
    return InfinitePath(tuple(reversed(path)))
