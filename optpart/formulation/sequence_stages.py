"""Least recompute time of a bare graph in a given order: Checkmate's stages, opened only where memory asks for it.

Plan class ("sequence stages"): first runs in program order; ahead of each of them any set of earlier ops is
run again, in program order, each at most once (Checkmate, Jain et al., MLSys 2020, arXiv:1910.02653).  Stage t
is op t and what is run again ahead of it; a last stage, without an op, stands for what the caller is given.

**Watched stages.**  Memory is over the limit at few steps, so most of Checkmate's n^2 variables only say that
nothing happens.  Here some stages are *watched*: they have a memory row.  They cut the order into intervals
i = 0..m, each from the stage behind a watched one to the next watched one, and what happens inside an interval
is relaxed: a value is carried into it or not, an op is run again in it at least once or not.  Every plan of
the class is a solution that costs no more, whatever is watched, so the optimum is a lower bound.  Stages are
watched more and more where the plans of these solutions are over the limit; with all of them watched, and
single in their intervals, the model is the class itself.

Sets        i intervals; v values, made by op o(v); u in reads(o); t stages
Parameters  c_o run time, m_v bytes, M the limit; last_v: the last stage for which v can be of use
Variables   S[i,v]  v is carried into interval i              binary; o(v) < i <= last_v
            R[i,o]  o is run again in interval i              binary; o < i: before the interval's first stage
            A[t,k,v] v is alive while op k is run again in stage t             continuous
Objective   min sum_{i,o} c_o R[i,o]
Subject to  (left out where v or u is made in interval i itself: it is there)
    S[i+1,v] <= S[i,v] + R[i,o(v)]                                     carried only what is there
    R[i,o]   <= S[i,u] + R[i,o(u)]           u in reads(o)             a run has its inputs
    S[i,v] + R[i,o(v)] = 1                   v in needs(t), t in i     a stage has its inputs
    S[i,v] + R[i,o(v)] <= 1                                            what is carried in is not made again
  Memory, a row for each watched stage t, the last one of interval i:
    resident + workspace_t + writes(t) + needs(t) + sum_{v not in needs(t)} S[i+1,v] m_v  <= M
  and where t is alone in interval i and looked *inside*, one for each op k < t that may be run again:
    resident + R[i,k] (workspace_k + writes(k)) + sum_{v: o(v)<k} A[t,k,v] m_v
             + sum_{v: o(v)>=k} S[i,v] m_v  <= M
    A[t,k,v] >= R[i,j] for readers j >= k of v;  A[t,k,v] >= S[i+1,v];  A[t,k,v] = 1 if v in needs(t)

The equation and the row below it take no plan away: where v is carried into an interval and its op runs again
in it, the plan's R can be 0 here, and in a single stage such a v is not read before it is made again.  (An
op with several values of use in a longer interval is left out: one may be carried in and another made again.)
Without rows of the inside nothing depends on the order or the number of runs between two first runs, so the
bound then holds for any fixed-order plan.  Rows are exact without FREE variables for the reason given in
:mod:`optpart.formulation.stages`.

Differs from ``stages``: a bare graph, every op is a stage; no forward, no windows, intervals instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from optpart.formulation.bounds import smallest_peak_bound
from optpart.liveness import Liveness, resident_bytes
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.sparse import INFINITY, NO_END, Room, SparseModel, Term

STAGED_CLASS = "first runs in the given order, ahead of each any ops again, in that order, each at most once"
FIXED_CLASS = "first runs in the given order, any ops again anywhere"
NEAR = 3  # stages this close are neighbours
WHOLE_TOTAL = 10**6  # up to this sum of costs a solver tells an objective from the next whole number


@dataclass(frozen=True)
class Watched:
    """Stages with a memory row, and those of them that are alone in their interval and looked inside."""

    stages: frozenset[int] = frozenset()
    inside: frozenset[int] = frozenset()

    def more(self, other: Watched) -> Watched:
        alone = {t - 1 for t in other.inside if t > 0}
        return Watched(self.stages | other.stages | other.inside | alone, self.inside | other.inside)


@dataclass(frozen=True)
class Order:
    """A bare problem as stages.  ``below``: in whole units of cost; ops that cost as much or more run once."""

    problem: Problem
    below: float = float("inf")

    @cached_property
    def needs(self) -> tuple[frozenset[int], ...]:
        """By stage the computed values that it reads; the last stage's are given to the caller."""
        graph, rule = self.problem.graph, self.problem.rule
        made = [v.producer is not None for v in graph.values]
        needs = [frozenset(v for v in op.reads if made[v]) for op in graph.ops]
        given = (*graph.forward_outputs, *graph.backward_outputs) if rule.hold_outputs else ()
        return (*needs, frozenset(v for v in given if made[v]))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        return self.problem.integer_costs()[0]

    @cached_property
    def repeats(self) -> tuple[bool, ...]:
        """By op: may it run more than once?"""
        ops = self.problem.graph.ops
        return tuple(op.recomputable and op.rng_state is None and self.costs[op.id] < self.below for op in ops)

    @cached_property
    def last(self) -> dict[int, int]:
        """By value: the last stage at which it, or something made of it again, is read."""
        last: dict[int, int] = dict.fromkeys(self.needs[-1], len(self.needs) - 1)
        for op in reversed(self.problem.graph.ops):
            latest = max([op.id, *(last[w] for w in op.writes if w in last)]) if self.repeats[op.id] else op.id
            for v in self.needs[op.id]:
                last[v] = max(latest, last.get(v, latest))
        return last

    def intervals(self, watched: Watched) -> list[range]:
        """The stages of each interval, in order."""
        end = len(self.needs) - (not self.needs[-1])
        cuts = [0, *(t + 1 for t in sorted(watched.stages)), end]
        return [range(a, b) for a, b in itertools.pairwise(cuts) if a < b]


@dataclass(frozen=True)
class SequenceModel:
    """The model, and which column says what.  ``carried[v]`` maps interval -> column of S; ``rerun[o]`` of R.

    A solution's cost in whole units is its objective times ``scale``, which is 1 if ``whole``.
    """

    order: Order
    intervals: list[range]
    model: SparseModel
    carried: dict[int, dict[int, int]]
    rerun: dict[int, dict[int, int]]
    scale: float

    @property
    def whole(self) -> bool:
        return self.scale == 1.0

    def plan(self, values: Sequence[float], *, late: bool = True) -> Plan:
        """A plan of the class that makes the runs of a solution, each at most once in an interval.

        What is read in the interval is made just before; what is only carried out of it at its last stage
        (``late``) or at its first.  Runs that nobody reads are left out.
        """
        ops = self.order.problem.graph.ops
        sequence: list[int] = []
        for i, stages in enumerate(self.intervals):
            chosen = {o for o, at in self.rerun.items() if i in at and values[at[i]] > 0.5}
            there = {v for v, at in self.carried.items() if i in at and values[at[i]] > 0.5}
            onward = {v for v, at in self.carried.items() if i + 1 in at and values[at[i + 1]] > 0.5}
            for t in stages:
                wanted = set(self.order.needs[t]) - there
                if t == (stages[-1] if late else stages[0]):
                    wanted |= onward - there
                again: list[int] = []
                for o in sorted((o for o in chosen if o < t), reverse=True):
                    if wanted & set(ops[o].writes):
                        again.append(o)
                        wanted |= self.order.needs[o] - there
                chosen -= set(again)
                there.update(w for o in again for w in ops[o].writes)
                sequence += again[::-1]
                if t < len(ops):
                    sequence.append(t)
                    there |= set(ops[t].writes)
        return Plan(tuple(sequence))


def stages_over(plan: Plan, live: Liveness, limit: int, ops: int) -> Watched:
    """Where a plan of the class for a graph of ``ops`` ops is over the limit: at stages' own steps, or inside of them.

    Of neighbouring stages over the limit it is only the fullest: where it fits, the others mostly do.
    """
    first: set[int] = set()
    own: dict[int, int] = {}
    inside, over = set(), False
    for j, o in enumerate(plan.sequence):
        if o in first:
            over |= live.timeline[j] > limit
            continue
        first.add(o)
        if over:
            inside.add(o)
        if live.timeline[j] > limit:
            own[o] = live.timeline[j]
        over = False
    full = {t for t in own if all((own[t], -t) >= (own.get(u, 0), -u) for u in range(t - NEAR, t + NEAR + 1))}
    return Watched(frozenset(full), frozenset(inside | ({ops} if over else set())))


def sequence_model(order: Order, limit: int | None, watched: Watched, room: Room = NO_END) -> SequenceModel:
    """The model for a limit on the peak in bytes; None: the peak is minimised, in bytes times ``scale``, runs are free.

    Raises:
        NotBuilt: there is no room for it.
    """
    return _Builder(order, limit, watched, room).build()


class _Builder:
    def __init__(self, order: Order, limit: int | None, watched: Watched, room: Room) -> None:
        self.order, self.watched = order, watched
        self.problem = order.problem
        self.graph, self.sizes = self.problem.graph, self.problem.sizes
        self.needs, self.last = order.needs, order.last
        self.intervals = order.intervals(watched)
        self.model = SparseModel(f"sequence stages, {len(watched.stages)} watched", room)
        total = sum(order.costs)
        self.scale = 1.0 if total <= WHOLE_TOTAL else total / 100.0
        self.limit = float(max(1, smallest_peak_bound(self.problem)) if limit is None else limit)
        self.peak = self.model.column(1.0, 1.0, INFINITY) if limit is None else None  # as a multiple of self.limit
        if limit is None:
            self.scale = self.limit
        self.fixed = resident_bytes(self.problem)
        self.carried = {
            v: {i: self.model.binary() for i, s in enumerate(self.intervals) if self._maker(v) < s[0] <= self.last[v]}
            for v in self.last
        }
        self.rerun = {o: at for o in range(len(self.graph.ops)) if order.repeats[o] and (at := self._rerun(o))}

    def _maker(self, v: int) -> int:
        producer = self.graph.values[v].producer
        assert producer is not None  # only computed values have a last use
        return producer

    def _rerun(self, o: int) -> dict[int, int]:
        useful = [self.last[w] for w in self.graph.ops[o].writes if w in self.last]
        stop = max(useful, default=-1)
        cost = self.order.costs[o] / self.scale if self.peak is None else 0.0
        return {i: self.model.binary(cost) for i, s in enumerate(self.intervals) if o < s[0] <= stop}

    def _s(self, i: int, v: int) -> list[Term]:
        column = self.carried[v].get(i) if v in self.carried else None
        return [] if column is None else [(column, 1.0)]

    def _r(self, i: int, o: int) -> list[Term]:
        column = self.rerun[o].get(i) if o in self.rerun else None
        return [] if column is None else [(column, 1.0)]

    def _there(self, i: int, v: int) -> list[Term]:
        return self._s(i, v) + self._r(i, self._maker(v))

    def build(self) -> SequenceModel:
        for i, stages in enumerate(self.intervals):
            self._logic(i, stages)
            t = stages[-1]
            if t in self.watched.stages and t < len(self.graph.ops):
                self._stage_row(i, t)
            if len(stages) == 1 and t in self.watched.inside:
                self._inside_rows(i, t)
        return SequenceModel(self.order, self.intervals, self.model, self.carried, self.rerun, self.scale)

    def _logic(self, i: int, stages: range) -> None:
        m, start = self.model, stages[0]
        needed = {v for t in stages for v in self.needs[t] if self._maker(v) < start}
        for v, at in self.carried.items():
            o = self._maker(v)
            if o >= start:
                continue
            if i + 1 in at:
                m.at_most([(at[i + 1], 1.0), *_minus(self._there(i, v))], 0.0)
            alone = len(stages) == 1 or sum(w in self.last for w in self.graph.ops[o].writes) == 1
            if v in needed and alone:
                m.equal(self._there(i, v), 1.0)
            elif v in needed:
                m.at_least(self._there(i, v), 1.0)
            elif alone and len(self._there(i, v)) == 2:
                m.at_most(self._there(i, v), 1.0)
        for o, at in self.rerun.items():
            for u in self.needs[o] if i in at else ():
                m.at_most([(at[i], 1.0), *_minus(self._there(i, u))], 0.0)

    def _limit_row(self, fixed: int, terms: Iterable[tuple[Term, int]]) -> None:
        """fixed bytes + terms, each times so many bytes, <= limit, unless that holds anyway."""
        row = [(c, a * nbytes) for (c, a), nbytes in terms if nbytes]
        unit = max(self.limit, 1.0)
        if fixed + sum(a * self.model.upper[c] for c, a in row) > self.limit:
            scaled = [(c, a / unit) for c, a in row]
            if self.peak is None:
                self.model.at_most(scaled, (self.limit - fixed) / unit)
            else:
                self.model.at_most([*scaled, (self.peak, -1.0)], -fixed / unit)

    def _stage_row(self, i: int, t: int) -> None:
        op, needs = self.graph.ops[t], self.needs[t]
        own = self.problem.workspace[t] + sum(self.sizes[v] for v in {*op.writes, *needs})
        onward = [v for v in self.carried if self._maker(v) < t and v not in needs]
        self._limit_row(self.fixed + own, [(s, self.sizes[v]) for v in onward for s in self._s(i + 1, v)])

    def _inside_rows(self, i: int, t: int) -> None:
        """Rows of the ops that may run again in a stage, last one first: A grows as readers come in."""
        live = [v for v in self.carried if self._maker(v) < t <= self.last[v]]
        alive = {v: self._s(i + 1, v) for v in live}
        for k in sorted((o for o, at in self.rerun.items() if i in at), reverse=True):
            op, run = self.graph.ops[k], self._r(i, k)
            for v in self.needs[k] - self.needs[t]:
                alive[v] = self._largest([*alive[v], *run])
            own = self.problem.workspace[k] + sum(self.sizes[v] for v in op.writes)
            terms = [(r, own) for r in run]
            fixed = self.fixed
            for v in live:
                if self._maker(v) >= k:
                    terms += [(s, self.sizes[v]) for s in self._s(i, v)]
                elif v in self.needs[t]:
                    fixed += self.sizes[v]
                else:
                    terms += [(a, self.sizes[v]) for a in alive[v]]
            self._limit_row(fixed, terms)

    def _largest(self, terms: list[Term]) -> list[Term]:
        """A column that is at least each of the terms (the term itself if there is one only)."""
        if len(terms) <= 1:
            return terms
        top = self.model.column()
        for term in terms:
            self.model.at_most([term, (top, -1.0)], 0.0)
        return [(top, 1.0)]


def _minus(terms: Iterable[Term]) -> list[Term]:
    return [(c, -a) for c, a in terms]
