"""A dynamic program over lower sets: Kusumoto, Inoue, Watanabe, Akiba and Koyama, NeurIPS 2019, arXiv:1905.11722.

A lower set L of forward ops holds all that its members read.  A strategy is a rising sequence of them,

    L_1 < L_2 < ... < L_k = all forward ops,       V_i = L_i without L_{i-1}.

Behind L_i the values of its boundary d(L_i), those that ops outside of it read, are saved and the rest is dropped; the
backward runs V_i again.  With T and M the run time and bytes of a set, the strategy costs  sum_i T(V_i - d(L_i)),
and takes at segment i

    M(saved before) + 2 M(V_i) + M(readers outside of L_i) + M(what these read besides)

bytes.  For a limit B on that, the program finds for each lower set and each recompute time t (in STEPS) the fewest
saved bytes: opt[L', t + T(L' - L - d(L'))] = opt[L, t] + M(d(L') - L), wherever segment L' - L is within B.

The family of lower sets is their approximate one, an op with all its ancestors, for each op (n + 1 sets; all of them
can be too many).  B is swept, and of each B both of their strategies are taken, the least recompute time
("time-centric") and the most ("memory-centric"), each as it is and with the last segment kept by the forward.

Differs in: 1. bytes are of values, and boundaries too, where theirs are of ops; 2. a segment is run again op by op, just
ahead of the first reader, and only what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optpart.graph import Region
from optpart.peers.candidates import best_within, is_activation, keep, keep_everything
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result

PLAN_CLASS = "boundaries of lower sets are saved, the rest is made again once"
STEPS = 256  # of recompute time
BUDGETS = 48  # values of B, in equal ratios


def lower_sets(problem: Problem, limit: int, limits: Limits) -> Result:
    """The strategies of the swept limit on their memory, by real peak."""
    return best_within(
        problem,
        limit,
        _plans(problem),
        limits,
        formulation="lower sets (approximate family)",
        plan_class=PLAN_CLASS,
        solver="dynamic program",
    )


def _plans(problem: Problem) -> Iterator[Plan]:
    yield keep_everything(problem)
    family = Family(problem)
    if not family.moves:
        return
    least, most = max(1.0, family.least_bytes), family.most_bytes
    for k in range(BUDGETS + 1):
        for sets in family.strategies(most * (least / most) ** (k / BUDGETS)):
            saved = family.saved(sets)
            last = sets[-1] & ~(sets[-2] if len(sets) > 1 else 0)
            yield keep(problem, saved)
            yield keep(problem, saved | family.values_of(last))


@dataclass(frozen=True)
class Move:
    """From lower set ``start`` to ``end`` (positions in the family): its time in steps, bytes saved, and bytes needed."""

    start: int
    end: int
    steps: int
    saves: int
    needs: int


@dataclass(frozen=True)
class Family:
    """Lower sets of forward ops as bit masks over their positions, smallest first, the empty and the full one too."""

    problem: Problem

    @cached_property
    def ops(self) -> tuple[int, ...]:
        return tuple(op.id for op in self.problem.graph.in_region(Region.FORWARD))

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """By position of an op, the positions that it reads from."""
        graph, place = self.problem.graph, {o: i for i, o in enumerate(self.ops)}
        masks = []
        for o in self.ops:
            reads = (graph.values[v].producer for v in graph.ops[o].reads if is_activation(graph, v))
            masks.append(_mask(place[p] for p in reads if p is not None))
        return tuple(masks)

    @cached_property
    def sets(self) -> tuple[int, ...]:
        below: list[int] = []
        for i, parents in enumerate(self.parents):
            mask = 1 << i
            for j in _bits(parents):
                mask |= below[j]
            below.append(mask)
        return tuple(sorted({0, (1 << len(self.ops)) - 1, *below}, key=lambda s: (s.bit_count(), s)))

    @cached_property
    def readers(self) -> dict[int, int]:
        """By activation, the positions of the forward ops that read it."""
        graph = self.problem.graph
        readers: dict[int, int] = {}
        for i, o in enumerate(self.ops):
            for v in graph.ops[o].reads:
                if is_activation(graph, v):
                    readers[v] = readers.get(v, 0) | 1 << i
        return readers

    def boundary(self, lower: int) -> frozenset[int]:
        """Values of a lower set that ops outside of it read."""
        return frozenset(v for v in self.values_of(lower) if self.readers.get(v, 0) & ~lower)

    def values_of(self, ops: int) -> frozenset[int]:
        return frozenset(v for i in _bits(ops) for v in self.problem.graph.ops[self.ops[i]].writes)

    def saved(self, sets: list[int]) -> frozenset[int]:
        return frozenset().union(*(self.boundary(s) for s in sets))

    @cached_property
    def step(self) -> float:
        """Run time of a step."""
        return max(sum(self.problem.runtime[o] for o in self.ops), 1e-9) / STEPS

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """Every pair of a lower set and a larger one, by the first."""
        sets, graph, sizes = self.sets, self.problem.graph, self.problem.sizes
        written = [sum(sizes[v] for v in graph.ops[o].writes) for o in self.ops]
        moves = []
        edges = [self.boundary(s) for s in sets]
        outside = [_mask(j for v in edge for j in _bits(self.readers[v] & ~s)) for s, edge in zip(sets, edges)]
        besides = []
        for s, readers in zip(sets, outside):
            parents = 0
            for j in _bits(readers):
                parents |= self.parents[j]
            besides.append(sum(written[j] for j in _bits(readers | (parents & ~s))))
        for a, start in enumerate(sets):
            for b in range(a + 1, len(sets)):
                if start & ~sets[b]:
                    continue
                part = sets[b] & ~start
                saved = [v for v in edges[b] if part >> self._place(v) & 1]
                kept = {self._place(v) for v in saved}
                time = sum(self.problem.runtime[self.ops[j]] for j in _bits(part) if j not in kept)
                needs = 2 * sum(written[j] for j in _bits(part)) + besides[b]
                moves.append(Move(a, b, round(time / self.step), sum(sizes[v] for v in saved), needs))
        return tuple(moves)

    def _place(self, v: int) -> int:
        return self._places[self.problem.graph.values[v].producer or 0]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {o: i for i, o in enumerate(self.ops)}

    @property
    def least_bytes(self) -> float:
        """Below it no strategy is: some move has to end with each op."""
        return float(min(m.needs for m in self.moves))

    @property
    def most_bytes(self) -> float:
        """Enough for every strategy."""
        return float(max(m.needs for m in self.moves) + sum(self.problem.sizes[v] for v in self.readers) + 1)

    def strategies(self, budget: float) -> Iterator[list[int]]:
        """The strategies of least and of most recompute time within ``budget`` bytes by their own count."""
        sets, room = self.sets, 2 * STEPS
        opt: NDArray[Any] = np.full((len(sets), room), np.inf)
        came: NDArray[Any] = np.full((len(sets), room, 2), -1, np.int32)
        opt[0, 0] = 0.0
        times = np.arange(room)
        for m in self.moves:
            start = opt[m.start, : room - m.steps]
            end = opt[m.end, m.steps :]
            better = np.flatnonzero((start + m.needs <= budget) & (start + m.saves < end))
            if better.size:
                end[better] = start[better] + m.saves
                came[m.end, m.steps + better, 0] = m.start
                came[m.end, m.steps + better, 1] = times[better]
        reached = np.flatnonzero(np.isfinite(opt[-1]))
        for t in dict.fromkeys(int(reached[i]) for i in (0, -1)) if reached.size else ():
            chosen, at = [], (len(sets) - 1, t)
            while at[0] > 0:
                chosen.append(sets[at[0]])
                at = (int(came[at][0]), int(came[at][1]))
            yield chosen[::-1]


def _mask(positions: Any) -> int:
    mask = 0
    for i in positions:
        mask |= 1 << i
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1
