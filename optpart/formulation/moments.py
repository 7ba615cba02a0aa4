"""A bound for any order: what is alive at the first run of an op, wherever that stands.

Plan class: every plan of a bare graph, in any order, any op again anywhere.

**Moments.**  Ops p_1, ..., p_m of which each needs the one before it, directly or not, so their first runs come in
this order in every plan.  Moment i is the first run of p_i.  What has run by then is a set that holds with an op
all that the op needs; what was run and is read later is alive, or is run again later, and the limit says how
much can be alive.  What is between two moments is relaxed: an op is run again at least once or not.  Every plan is a
solution that costs no more, so the optimum is a lower bound; more moments make it higher.

Sets        i moments; o, j ops, and one behind all that reads what the caller is given; v values, made by op o(v);
            u in reads(j); q in before(o): makers of what o reads, and ops that o has to stand after
Parameters  c_o run time, m_v bytes, M the limit
Variables   D[i,o]  o has run, moment i included                                  binary
            K[i,v]  v is alive at moment i                                        binary
            R[i,o]  o runs again behind moment i, but not behind moment i+1       binary
            N[i,o] = D[i+1,o] - D[i,o], where D[m+1,o] = 1: first runs in between
Objective   min sum_{i,o} c_o R[i,o]
Subject to
    D[i,o] = 1 for p_i and all that it needs, 0 for all that needs it
    D[i,o] <= D[i,q],  D[i,o] <= D[i+1,o]
    K[i,v] <= D[i,o(v)],  K[i+1,v] <= K[i,v] + R[i,o(v)] + N[i,o(v)]
    N[i,j] <= K[i,u] + R[i,o(u)] + N[i,o(u)]                       a first run has its inputs
    R[i,j] <= K[i,u] + R[i,o(u)] + N[i,o(u)]                       so has another run
    D[i,o(v)] - D[i,j] <= K[i,v] + sum_{i' >= i} R[i',o(v)]        j reads v: what is read later is there or made again
    resident + workspace of p_i + sum_v m_v K[i,v] <= M,  K[i,v] = 1 for what p_i reads and writes

The last but one follows from the others where all is whole; it makes the linear relaxation tighter.

Differs from :mod:`optpart.formulation.sequence_stages`: what has run by a moment is decided, not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from optpart.formulation.sequence_stages import WHOLE_TOTAL
from optpart.liveness import resident_bytes
from optpart.problem import Problem
from optpart.solver.sparse import NO_END, Room, SparseModel, Term

ANY_ORDER = "any order, any ops again anywhere"


@dataclass(frozen=True)
class Relations:
    """Which op needs which, in a bare problem.  Op n, behind all others, reads what the caller is given."""

    problem: Problem

    @cached_property
    def reads(self) -> tuple[frozenset[int], ...]:
        """The computed values that each op reads, op n too."""
        graph, rule = self.problem.graph, self.problem.rule
        made = [v.producer is not None for v in graph.values]
        given = (*graph.forward_outputs, *graph.backward_outputs) if rule.hold_outputs else ()
        return tuple(frozenset(v for v in reads if made[v]) for reads in (*(op.reads for op in graph.ops), given))

    @cached_property
    def maker(self) -> dict[int, int]:
        """Value -> op, for values that an op reads."""
        values = self.problem.graph.values
        read = sorted(frozenset().union(*self.reads))
        return {v: producer for v in read if (producer := values[v].producer) is not None}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        return {v: [j for j, reads in enumerate(self.reads) if v in reads] for v in self.maker}

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """The ops that an op has to stand after, by what it reads or by ``after``."""
        ops = self.problem.graph.ops
        return tuple(frozenset((*(self.maker[v] for v in self.reads[op.id]), *op.after)) for op in ops)

    @cached_property
    def ancestors(self) -> tuple[frozenset[int], ...]:
        """All ops that an op needs, itself left out."""
        found: list[frozenset[int]] = []
        for before in self.before:
            found.append(before.union(*(found[q] for q in before)))
        return tuple(found)

    def comparable(self, a: int, b: int) -> bool:
        """Does one of two ops need the other?"""
        return a in self.ancestors[b] or b in self.ancestors[a]


@dataclass(frozen=True)
class MomentModel:
    """The model; a solution's cost in whole units is its objective times ``scale``, which is 1 if ``whole``."""

    model: SparseModel
    scale: float

    @property
    def whole(self) -> bool:
        return self.scale == 1.0


@dataclass(frozen=True)
class _Sum:
    """A linear expression: terms and a constant."""

    terms: tuple[Term, ...] = ()
    constant: float = 0.0

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.terms + other.terms, self.constant + other.constant)

    def __sub__(self, other: _Sum) -> _Sum:
        return self + _Sum(tuple((c, -a) for c, a in other.terms), -other.constant)


_ZERO, _ONE = _Sum(), _Sum((), 1.0)


def moment_model(relations: Relations, limit: int, moments: Sequence[int], room: Room = NO_END) -> MomentModel:
    """The model for a limit on the peak in bytes and a chain of ops, each of which needs the one before it.

    Raises:
        NotBuilt: there is no room for it.
    """
    return _Builder(relations, limit, moments, room).build()


class _Builder:
    def __init__(self, relations: Relations, limit: int, moments: Sequence[int], room: Room) -> None:
        self.relations, self.limit, self.moments = relations, limit, moments
        self.problem = relations.problem
        self.ops, self.sizes = self.problem.graph.ops, self.problem.sizes
        self.model = SparseModel(f"moments {', '.join(map(str, moments))}", room)
        costs = self.problem.integer_costs()[0]
        total = sum(costs)
        self.scale = 1.0 if total <= WHOLE_TOTAL else total / 100.0
        self.touched = [relations.reads[p] | frozenset(self.ops[p].writes) for p in moments]
        self.done = [*(self._done(p) for p in moments), [_ONE] * (len(self.ops) + 1)]
        self.alive = [self._alive(i) for i in range(len(moments))]
        self.again = [
            {
                op.id: self._binary(costs[op.id] / self.scale)
                for op in self.ops
                if op.recomputable and op.rng_state is None and self.done[i][op.id] != _ZERO
            }
            for i in range(len(moments))
        ]

    def _binary(self, cost: float = 0.0) -> _Sum:
        return _Sum(((self.model.binary(cost), 1.0),))

    def _done(self, p: int) -> list[_Sum]:
        """D[i,o] of a moment, by op."""
        ancestors = self.relations.ancestors
        needed = ancestors[p] | {p}
        done = [_ONE if op.id in needed else _ZERO if p in ancestors[op.id] else self._binary() for op in self.ops]
        return [*done, _ZERO]

    def _alive(self, i: int) -> dict[int, _Sum]:
        """K[i,v] of a moment, by value."""
        maker = self.relations.maker
        return {
            v: _ONE if v in self.touched[i] else _ZERO if self.done[i][o] == _ZERO else self._binary()
            for v, o in maker.items()
        }

    def _new(self, i: int, o: int) -> _Sum:
        """N[i,o]."""
        return self.done[i + 1][o] - self.done[i][o]

    def _there(self, i: int, v: int) -> _Sum:
        """K + R + N: v is there at some time between moment i and the next."""
        o = self.relations.maker[v]
        return self.alive[i][v] + self.again[i].get(o, _ZERO) + self._new(i, o)

    def build(self) -> MomentModel:
        for i in range(len(self.moments)):
            self._order(i)
            self._values(i)
            self._memory(i)
        return MomentModel(self.model, self.scale)

    def _at_most(self, left: _Sum, right: _Sum) -> None:
        """left <= right, unless that holds for all values of the binaries."""
        terms: dict[int, float] = {}
        for column, a in (left - right).terms:
            terms[column] = terms.get(column, 0.0) + a
        bound = right.constant - left.constant
        if sum(a for a in terms.values() if a > 0) > bound:
            self.model.at_most(terms.items(), bound)

    def _order(self, i: int) -> None:
        done = self.done[i]
        for op in self.ops:
            self._at_most(done[op.id], self.done[i + 1][op.id])
            for q in self.relations.before[op.id]:
                self._at_most(done[op.id], done[q])

    def _values(self, i: int) -> None:
        done, last = self.done[i], i + 1 == len(self.moments)
        for v, o in self.relations.maker.items():
            if v not in self.touched[i]:
                self._at_most(self.alive[i][v], done[o])
            if not last and v not in self.touched[i + 1]:
                self._at_most(self.alive[i + 1][v], self._there(i, v))
            later = sum((again[o] for again in self.again[i:] if o in again), _ZERO)
            for j in self.relations.readers[v]:
                self._at_most(self._new(i, j), self._there(i, v))
                self._at_most(done[o] - done[j], self.alive[i][v] + later)
        for o, run in self.again[i].items():
            for u in self.relations.reads[o]:
                self._at_most(run, self._there(i, u))

    def _memory(self, i: int) -> None:
        p, unit = self.moments[i], float(max(self.limit, 1))
        fixed = resident_bytes(self.problem) + self.problem.workspace[p]
        fixed += sum(self.sizes[v] for v in self.touched[i])
        waiting = {v: k for v, k in self.alive[i].items() if v not in self.touched[i]}
        alive = tuple((c, self.sizes[v] / unit) for v, k in waiting.items() for c, _ in k.terms)
        self._at_most(_Sum(alive, fixed / unit), _Sum((), self.limit / unit))
