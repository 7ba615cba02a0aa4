"""Where to cut the forward side into blocks: narrow places, found in the graph and not by names of modules.

Only reads count that can happen again in the backward: a buffer's update reads what it reads once.  A position
between two ops is a cut if a single storage crosses it (the residual stream) and a plan may keep that storage: it
is savable, and keeping what is made of it would not be as good (``Stages.dominated``).  Where several storages
cross everywhere, a long block is cut where the fewest cross.  A storage that crosses further than to the next
block is *global* (a mask, rotary tables, a skip connection): it belongs to no block.

Any cuts are right (see :mod:`optpart.formulation.stages`); narrow ones make small models with close bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from optpart.formulation.stage_graph import Stages
from optpart.graph import Region


@dataclass(frozen=True)
class Blocks:
    """``of[o]``: the block of a forward-side op; ``everywhere``: the global values; ``count`` blocks."""

    of: dict[int, int]
    everywhere: frozenset[int]
    count: int


# Longer than any block that we would want: what reaches further is taken for global while cuts are sought.
LONG_REACH = 48
# Blocks are at least this many ops long, and where several storages cross everywhere, about this many.
SHORT_BLOCK, LONG_BLOCK = 4, 24


def find_blocks(stages: Stages) -> Blocks:
    """Blocks of the forward side, in program order.

    Lengths count forward ops that may run again.  A free op (Region.EITHER) goes with the op that it stands behind.
    """
    graph = stages.problem.graph
    side = [op for op in graph.ops if op.region is not Region.BACKWARD]
    place = {op.id: i for i, op in enumerate(side)}
    again = [op.region is Region.FORWARD and stages.may_rerun(op) for op in side]
    reach: dict[int, tuple[int, int]] = {}
    for op, counts in zip(side, again):
        for v in op.reads_again if counts else ():
            producer = graph.values[v].producer
            if producer in place:
                reach[v] = (place[producer], place[op.id])  # program order: the last reader stays
    crossing = _crossing(reach, len(side))
    open_border = _border(stages, reach, len(side))
    free = [op.region is Region.EITHER for op in side]
    block, of, long = 0, {}, 0
    for i, op in enumerate(side):
        of[op.id] = block
        long += again[i]
        if i + 1 == len(side) or free[i + 1] or not any(again[i + 1 :]):
            continue
        ahead = crossing[i : i + LONG_BLOCK - SHORT_BLOCK]
        if (crossing[i] <= 1 and open_border[i] and long >= SHORT_BLOCK) or (
            long >= LONG_BLOCK - SHORT_BLOCK and min(ahead) > 1 and crossing[i] == min(ahead)
        ):
            block, long = block + 1, 0
    far = {v for v, (a, b) in reach.items() if of[side[b].id] - of[side[a].id] > 1}
    return Blocks(of, frozenset(far), block + 1)


def _crossing(reach: dict[int, tuple[int, int]], n: int) -> list[int]:
    """How many storages, those of long reach left out, are written at or before i and read after i."""
    change = [0] * (n + 1)
    for a, b in reach.values():
        if b - a <= LONG_REACH:
            change[a] += 1
            change[b] -= 1
    return list(accumulate(change[:n]))


def _border(stages: Stages, reach: dict[int, tuple[int, int]], n: int) -> list[bool]:
    """May all storages that cross position i, those of long reach left out, be kept there?"""
    values = stages.problem.graph.values
    closed = {v: r for v, r in reach.items() if not values[v].savable or v in stages.dominated}
    return [count == 0 for count in _crossing(closed, n)]
