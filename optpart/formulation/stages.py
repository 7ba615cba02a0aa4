"""Least recompute time under a limit on the real peak: the stage formulation, with exact memory rows.

Plan class ("stages"): the backward ops run in a fixed order; ahead of each backward op that reads
forward-side values (a stage, see :mod:`optpart.formulation.stage_graph`) any set of ops is run again, in
program order, each at most once; a value may be recomputed in many stages.  The forward runs in program
order, with those ops that are free to run on both sides (Region.EITHER) that a saved value needs.

Sets        t in 0..T-1 stages; v forward-side values, made by op o(v); u in reads(o).
Parameters  c_o run time, m_v bytes, M the limit; before_t, during_t, after_t: what is there anyway.
Variables   S[t,v]  v is carried into stage t (S[0,v]: saved by the forward)          binary
            R[t,o]  o is run again in stage t                                         binary
            x_o     o, free to run on both sides, runs in the forward                 binary
            A[t,k,v] v is alive while op k runs in stage t                            continuous
Objective   min sum_{t,o} c_o R[t,o]  +  sum_{o free} c_o (x_o - 1)
Subject to
    S[t+1,v] <= S[t,v] + R[t,o(v)]                                carried only what is there
    R[t,o]   <= S[t,u] + R[t,o(u)]           u in reads(o)        a run has its inputs
    S[t,v] + R[t,o(v)] >= 1                  v in needs(t)        a stage has its inputs
    S[t,v] + R[t,o(v)] <= 1                                       what is run again was not carried
    S[0,v]   <= x_o(v),  x_o <= x_o(u)                            for free ops
    x_o + sum_t R[t,o] >= 1                                       o free and behind a need: it runs at least once
    sum_t R[t,o] <= 1 + (T-1) x_o                                 o free and random: only a forward run can be replayed
  Memory, one row for each step that can reach M at all:
    b(t) runs:      during_t + sum_{v in needs(t)} m_v + sum_{v not in needs(t)} S[t+1,v] m_v  <= M
    after b(t):     after_t + sum_v S[t+1,v] m_v                                               <= M
    op k runs:      before_t + sum_{v: o(v)<k} A[t,k,v] m_v + sum_{v: o(v)>k} S[t,v] m_v
                             + sum_{v: o(v)=k} (S[t,v] + R[t,k]) m_v + R[t,k] workspace_k      <= M
                    A[t,k,v] >= R[t,j] for readers j >= k of v;  A[t,k,v] >= S[t+1,v];
                    A[t,k,v] >= 1 if v in needs(t)
    forward op i:   live_i + sum_{v: last reader before i} alive(i,v) m_v                      <= M

The rows of op k are exact without Checkmate's FREE variables: R[t,j] = 1 implies that v is there, and
it is alive at k < j whether it was carried or made before k.  They hold whether k runs or not, because
what is alive at k was alive at the step before.  A value that is carried for nothing is counted, which
changes no optimum.

**Windows** (``width`` w).  Block b(t) is the last block that stage t reads; lo(t) = min of b over stages up
to t.  A value opens at first_v, the first stage with block(v) >= lo(t) - w; before, it has no S[t,v] and
no R[t,o].  (A value whose last use is over has none either.)

* ``side="above"``: a closed value is kept from the forward until it opens (s_v, counted in every row up
  to then) or absent.  Every solution is a plan of the class: an upper bound.
* ``side="below"``: what happens to a closed value is relaxed.  s_v: kept from the forward to first_v,
  counted; z_v: saved, dropped somewhere before first_v, counted in the forward only; q_o: run again at
  least once before first_v, paid once and counted nowhere.  S[first_v,v] <= s_v + q_o(v),
  q_o <= s_u + z_u + q_o(u), and what reads a closed u needs s_u + z_u + q_o(u) >= 1.  Every plan of the
  class maps to a solution that costs no more, so the dual bound holds for the whole class.

Differs from Checkmate (Jain et al., MLSys 2020, arXiv:1910.02653) in: 1. stages only where the backward
reads the forward; 2. rows exact through A, no big M; 3. windows from both sides; 4. several values per
op; 5. ops that may run on either side; 6. workspace, gradients and caller-held memory in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from optpart.formulation.blocks import Blocks, find_blocks
from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.levers import ALL, Levers
from optpart.formulation.stage_graph import NOTHING, Stages
from optpart.graph import Op, Region
from optpart.liveness import resident_bytes
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.sparse import INFINITY, NO_END, Room, SparseModel, Term

Side = Literal["above", "below"]
PLAN_CLASS = (
    "stages: program order, recompute in the backward only, ahead of backward ops that read forward values, "
    "each op at most once there"
)


@dataclass(frozen=True)
class StageModel:
    """The model, and which column says what.  ``carried[v]`` maps stage -> column of S; ``rerun[o]`` of R."""

    stages: Stages
    model: SparseModel
    kept: dict[int, int]
    carried: dict[int, dict[int, int]]
    rerun: dict[int, dict[int, int]]
    early: dict[int, int]

    def plan(self, values: Sequence[float]) -> Plan:
        """The plan of a solution (``side="above"``); runs that nobody reads are left out."""
        graph = self.stages.problem.graph
        runs = [
            {o for o, at in self.rerun.items() if t in at and values[at[t]] > 0.5} for t in range(self.stages.count)
        ]
        carried = [
            {v for v, at in self.carried.items() if t in at and values[at[t]] > 0.5} for t in range(self.stages.count)
        ]
        early = {o for o, column in self.early.items() if values[column] > 0.5}
        forward = [op.id for op in graph.ops if op.region is Region.FORWARD or op.id in early]
        return Plan(tuple(forward), _sequence(self.stages, runs, carried))


def _sequence(stages: Stages, runs: list[set[int]], carried: list[set[int]]) -> tuple[int, ...]:
    """Backward list: before each stage op its runs in program order, without those that nobody reads."""
    graph = stages.problem.graph
    before: dict[int | None, list[int]] = {}
    for t, wanted in enumerate(runs):
        used = set(stages.needs[t]) | (carried[t + 1] if t + 1 < stages.count else set())
        chosen = []
        for o in sorted(wanted, reverse=True):
            if used & set(graph.ops[o].writes):
                chosen.append(o)
                used |= set(graph.ops[o].reads)
        before[stages.ops[t] if t < len(stages.ops) else None] = chosen[::-1]
    sequence: list[int] = []
    for o in stages.backward:
        sequence += [*before.get(o, ()), o]
    return tuple(sequence + before.get(None, []))


def stage_model(
    stages: Stages,
    limit: int | None,
    *,
    side: Side = "above",
    width: int | None = 1,
    blocks: Blocks | None = None,
    inside: frozenset[int] | None = None,
    levers: Levers = ALL,
    room: Room = NO_END,
) -> StageModel:
    """The model for a limit on the peak in bytes.

    Args:
        side: "above" for plans, "below" for a bound; the same thing where ``width`` is None.
        width: how many blocks a window reaches below the stage's; None: no windows, the whole class.
        inside: the stages that get their "op k runs" rows; None: all.
        limit: bytes; None: the peak itself is minimised, and recompute is free.
        levers: what to leave out of the model that does not have to be in it.

    Raises:
        NotBuilt: there is no room for it.
    """
    return _Builder(stages, limit, side, width, blocks or find_blocks(stages), inside, levers, room).build()


class _Builder:
    def __init__(
        self,
        stages: Stages,
        limit: int | None,
        side: Side,
        width: int | None,
        blocks: Blocks,
        inside: frozenset[int] | None,
        levers: Levers,
        room: Room,
    ) -> None:
        self.stages, self.side, self.inside, self.levers = stages, side, inside, levers
        self.problem: Problem = stages.problem
        self.graph, self.sizes = self.problem.graph, self.problem.sizes
        self.model = SparseModel(f"stages {side}, width {width}", room)
        self.decided = set(stages.values)
        self.last = stages.last_use if levers.last_uses else dict.fromkeys(stages.values, stages.count - 1)
        self.made_by = {v: self.graph.ops[p] for v in stages.values if (p := self.graph.values[v].producer) is not None}
        self.first = self._opening(width, blocks)
        percent = 0.0 if limit is None else 100.0 / (self.problem.total_time or 1.0)
        self.cost = [percent * time for time in self.problem.runtime]  # in percent of the step
        self.unit = float(max(smallest_peak_bound(self.problem) if limit is None else limit, 1))
        least = 1.0 if levers.necessary_first else 0.0
        self.peak = self.model.column(1.0, least, INFINITY) if limit is None else None  # in units of the bound
        self.kept: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        self.redone: dict[int, int] = {}
        self.carried: dict[int, dict[int, int]] = {}
        self.rerun: dict[int, dict[int, int]] = {}
        self.early: dict[int, int] = {}

    # ------------------------------------------------------------------------------------- variables

    def _opening(self, width: int | None, blocks: Blocks) -> dict[int, int]:
        """Op -> the first stage at which its values are open."""
        if width is None:
            return {op.id: 0 for op in self.made_by.values()}
        low, lows = blocks.count, []
        for needs in self.stages.needs:
            reads = [blocks.of[self.made_by[v].id] for v in needs if v in self.made_by and v not in blocks.everywhere]
            low = min(low, max(reads, default=low))
            lows.append(low)
        first: dict[int, int] = {}
        for op in self.made_by.values():
            if any(v in blocks.everywhere for v in op.writes):
                first[op.id] = 0
                continue
            reach = blocks.of[op.id] + width
            first[op.id] = next((t for t, b in enumerate(lows) if b <= reach), self.stages.count)
        return first

    def _variables(self) -> None:
        relevant = [v for v in self.stages.values if v in self.last]
        for op in dict.fromkeys(self.made_by[v] for v in relevant):
            writes = [v for v in op.writes if v in self.last]
            first = self.first[op.id]
            if op.region is Region.EITHER:
                self.early[op.id] = self.model.binary(self.cost[op.id])
                self.model.offset -= self.cost[op.id]
            if self.stages.may_rerun(op) and writes:
                stop = max(self.last[v] for v in writes)
                self.rerun[op.id] = {t: self.model.binary(self.cost[op.id]) for t in range(first, stop + 1)}
                if self.side == "below" and first > 0:
                    self.redone[op.id] = self.model.binary(self.cost[op.id])
            for v in op.creates:
                if v in self.last:
                    self._value(v, first)

    def _always_early(self) -> None:
        """Free ops that somebody waits for without reading them, or that have an effect: run in the forward."""
        ops = self.graph.ops
        wanted = [op.id for op in ops if op.region is Region.EITHER and not op.writes]
        wanted += [a for op in ops for a in op.after if ops[a].region is Region.EITHER]
        while wanted:
            o = wanted.pop()
            if o not in self.early:
                self.early[o] = self.model.binary(self.cost[o])
                self.model.offset -= self.cost[o]
            if self.model.lower[self.early[o]] < 1.0:
                self.model.lower[self.early[o]] = 1.0
                producers = (self.graph.values[u].producer for u in ops[o].reads)
                wanted += [p for p in producers if p is not None and ops[p].region is Region.EITHER]

    def _value(self, v: int, first: int) -> None:
        dominated = self.levers.dominated_saves and v in self.stages.dominated
        savable = self.graph.values[v].savable and not dominated
        stop = self.last[v]
        if savable:
            self.kept[v] = self.model.binary()
            if self.side == "below" and first > 0:
                self.lost[v] = self.model.binary()
        if self.levers.dropped_carries and dominated and self.side == "above" and self.inside == frozenset():
            self.carried[v] = {}  # seldom worth its column: its reader can mostly run at once instead
            return
        begin = first if self.side == "below" and first > 0 else first + 1
        self.carried[v] = {t: self.model.binary() for t in range(begin, stop + 1)}
        if begin == first + 1 and savable and first <= stop:
            self.carried[v][first] = self.kept[v]

    def _carried(self, t: int, v: int) -> list[Term]:
        """S[t,v] as terms: carried into stage t."""
        if t > self.last.get(v, NOTHING):
            return []
        if t < self.first[self.made_by[v].id]:
            return [(self.kept[v], 1.0)] if v in self.kept else []
        column = self.carried[v].get(t)
        return [] if column is None else [(column, 1.0)]

    def _there(self, t: int, v: int) -> list[Term]:
        """v is available in stage t: carried, or run again (closed values: see the docstring)."""
        o = self.made_by[v].id
        terms = self._carried(t, v)
        if t < self.first[o]:
            terms += [(self.lost[v], 1.0)] if v in self.lost else []
            terms += [(self.redone[o], 1.0)] if o in self.redone else []
            return terms
        column = self.rerun.get(o, {}).get(t) if v in self.made_by[v].writes else None
        return terms if column is None else [*terms, (column, 1.0)]

    def _saved(self, v: int) -> list[Term]:
        """S[0,v], whatever becomes of it later."""
        return self._carried(0, v) + ([(self.lost[v], 1.0)] if v in self.lost else [])

    # ------------------------------------------------------------------------------------------ rows

    def build(self) -> StageModel:
        self._variables()
        self._always_early()
        self._logic()
        self._memory()
        self._forward_memory()
        return StageModel(self.stages, self.model, self.kept, self.carried, self.rerun, self.early)

    def _reads(self, op: Op) -> list[int]:
        reads = op.reads_again if op.region is Region.FORWARD else op.reads
        return [v for v in dict.fromkeys(reads) if v in self.decided]

    def _logic(self) -> None:
        below, m = self.side == "below", self.model
        for t, needs in enumerate(self.stages.needs):
            for v in sorted(needs & self.decided):
                m.at_least(self._there(t, v), 1.0)
        for v, at in self.carried.items():
            o = self.made_by[v].id
            first = self.first[o]
            for t, column in at.items():
                if t > first:
                    m.at_most([(column, 1.0), *_minus(self._there(t - 1, v))], 0.0)
                elif below and first > 0:
                    redone = [(self.redone[o], -1.0)] if o in self.redone else []
                    kept = [(self.kept[v], -1.0)] if v in self.kept else []
                    m.at_most([(column, 1.0), *kept, *redone], 0.0)
                if self.levers.carried_or_made and t in self.rerun.get(o, {}) and v in self.made_by[v].writes:
                    m.at_most([(column, 1.0), (self.rerun[o][t], 1.0)], 1.0)
            if v in self.lost:
                m.at_most([(self.kept[v], 1.0), (self.lost[v], 1.0)], 1.0)
        for o, runs in self.rerun.items():
            for u in self._reads(self.graph.ops[o]):
                for t, column in runs.items():
                    m.at_most([(column, 1.0), *_minus(self._there(t, u))], 0.0)
                if o in self.redone:
                    m.at_most([(self.redone[o], 1.0), *_minus(self._before_opening(u, self.first[o]))], 0.0)
        for o, column in self.early.items():
            for v in self.graph.ops[o].writes:
                if v in self.last and self._saved(v):
                    m.at_most([*self._saved(v), (column, -1.0)], 0.0)
            for u in self.graph.ops[o].reads:
                producer = self.graph.values[u].producer
                if producer in self.early:
                    m.at_most([(column, 1.0), (self.early[producer], -1.0)], 0.0)
            again = [*self.rerun.get(o, {}).values(), *([self.redone[o]] if o in self.redone else [])]
            runs_of_it = [(c, 1.0) for c in (column, *again)]
            if self.levers.free_ops_run and any(v in self.stages.last_use for v in self.graph.ops[o].writes):
                m.at_least(runs_of_it, 1.0)
            if not self.graph.ops[o].recomputable:
                m.at_most(runs_of_it, 1.0)
            elif self.graph.ops[o].rng_state is not None and len(again) > 1:
                m.at_most([*((c, 1.0) for c in again), (column, 1.0 - len(again))], 1.0)

    def _before_opening(self, u: int, first: int) -> list[Term]:
        """u was there at some stage before ``first`` (side "below")."""
        o = self.made_by[u].id
        terms = self._saved(u)
        if o in self.redone:
            terms += [(self.redone[o], 1.0)]
        if self.first[o] < first:
            terms += [(c, 1.0) for t, c in self.rerun.get(o, {}).items() if t < first]
        return terms

    def _limit_row(self, fixed: int, terms: Iterable[Term]) -> None:
        """fixed bytes + terms (in units of the limit) <= limit, unless that holds anyway."""
        terms = list(terms)
        most = fixed / self.unit + sum(a * self.model.upper[c] for c, a in terms if a > 0)
        if most > 1.0 or not self.levers.reachable_rows:
            if self.peak is None:
                self.model.at_most(terms, 1.0 - fixed / self.unit)
            else:
                self.model.at_most([*terms, (self.peak, -1.0)], -fixed / self.unit)

    def _bytes(self, terms: Iterable[Term], v: int) -> list[Term]:
        """Terms that say whether v is there, as memory in units of the limit."""
        return [(c, a * self.sizes[v] / self.unit) for c, a in terms]

    def _sum(self, terms: list[Term]) -> list[Term]:
        """A column that equals a sum, so that the rows that speak of it have one entry instead of hundreds."""
        if (len(terms) == 1 and terms[0][1] == 1.0) or not self.levers.shared_sums:
            return _merged(terms)
        column = self.model.column(upper=sum(a * self.model.upper[c] for c, a in terms if a > 0))
        self.model.equal([*terms, (column, -1.0)], 0.0)
        return [(column, 1.0)]

    def _memory(self) -> None:
        stages = self.stages
        values = sorted(v for v in self.decided if v in self.last and self.sizes[v])
        first = {v: self.first[self.made_by[v].id] for v in values}
        opened = [[v for v in values if first[v] <= t <= self.last[v]] for t in range(stages.count + 1)]
        closed = [[v for v in values if t < first[v] and t <= self.last[v]] for t in range(stages.count + 1)]
        kept: list[list[Term]] = []  # what is carried into stage t and closed there, in one column
        before: list[int] = []
        for t in range(stages.count + 1):
            if not kept or closed[t] != before:
                gone = [x for v in before if v not in set(closed[t]) for x in self._bytes(self._carried(0, v), v)]
                come = [x for v in closed[t] if t == 0 for x in self._bytes(self._carried(0, v), v)]
                kept.append(self._sum([*(kept[-1] if kept else []), *come, *_minus(gone)]))
            else:
                kept.append(kept[-1])
            before = closed[t]
        carried = [
            [*kept[t], *(x for v in opened[t] for x in self._bytes(self._carried(t, v), v))]
            for t in range(stages.count + 1)
        ]
        total = [self._sum(terms) for terms in carried]
        lost = [x for v in values if v in self.lost for x in self._bytes([(self.lost[v], 1.0)], v)]
        self._limit_row(stages.start, [*total[0], *lost])
        for t, needs in enumerate(stages.needs):
            needed = sorted(needs & self.decided)
            onward = [x for v in needed if v in self.last for x in self._bytes(self._carried(t + 1, v), v)]
            during = stages.during[t] + sum(self.sizes[v] for v in needed)
            self._limit_row(during, _merged([*total[t + 1], *_minus(onward)]))
            if stages.after[t] != NOTHING:
                self._limit_row(stages.after[t], total[t + 1])
            if self.inside is None or t in self.inside:
                self._inside(t, needs, opened[t], kept[t])

    def _inside(self, t: int, needs: frozenset[int], live: list[int], kept: list[Term]) -> None:
        """Rows of the ops that may run again in stage t, last one first: A grows as readers come in."""
        runs = [o for o, at in self.rerun.items() if t in at]
        carried = {v: self._carried(t, v) for v in live}
        alive = {v: self._carried(t + 1, v) for v in live if v not in needs}
        settled: dict[int, list[Term]] = {}
        for k in sorted(runs, reverse=True):
            op = self.graph.ops[k]
            run = self.rerun[k][t]
            for v in self._reads(op):
                if v in alive:
                    alive[v].append((run, 1.0))
                    settled.pop(v, None)
            fixed = self.stages.before[t]
            own = self.problem.workspace[k] + sum(self.sizes[v] for v in op.writes)
            own += self.problem.aside(k) if op.region is Region.FORWARD else 0
            terms = [*kept, (run, own / self.unit)]
            for v in live:
                o = self.made_by[v].id
                if o >= k:
                    terms += self._bytes(carried[v], v)
                elif v in needs:
                    fixed += self.sizes[v]
                else:
                    if v not in settled:
                        alive[v] = settled[v] = self._largest(alive[v])
                    terms += self._bytes(settled[v], v)
            fixed += sum(
                self.sizes[v] for v in needs & self.decided if t < self.first[self.made_by[v].id] and v not in self.kept
            )
            self._limit_row(fixed, terms)

    def _largest(self, terms: list[Term]) -> list[Term]:
        """A column that is at least each of the terms (the term itself if there is one only)."""
        distinct = list(dict.fromkeys(terms))
        if len(distinct) <= 1:
            return distinct
        top = self.model.column()
        for term in distinct:
            self.model.at_most([term, (top, -1.0)], 0.0)
        return [(top, 1.0)]

    def _forward_memory(self) -> None:
        """One row for each forward step, last one first: what is saved stays, the rest while it is read.

        A value of the forward is there anyway up to its last reader in the forward; after it, and for
        values of free ops, it is there if it is saved or a free op that runs later in the forward reads it.
        """
        graph, sizes, problem = self.graph, self.sizes, self.problem
        side = [op for op in graph.ops if op.region is Region.FORWARD or op.id in self.early]
        held = set(graph.forward_outputs) if problem.rule.hold_outputs else set()
        until = {v: op.id for op in side if op.region is Region.FORWARD for v in (*op.writes, *op.reads)}
        fixed_from = [v for op in side if op.region is Region.FORWARD for v in op.writes]
        resident = resident_bytes(problem)
        alive = {v: self._saved(v) for v in self.decided if v in self.last}
        total: list[Term] | None = None
        counted: dict[int, list[Term]] = {}
        for op in reversed(side):
            i, free = op.id, op.region is Region.EITHER
            if free:
                for v in op.reads:
                    if v in alive:
                        alive[v] = self._largest([*alive[v], (self.early[i], 1.0)])
            own = problem.workspace[i] + sum(sizes[v] for v in op.writes)
            fixed = resident + (0 if free else own)
            now: dict[int, list[Term]] = {}
            for v in fixed_from:
                if self._producer(v) < i and (v in held or until[v] >= i):
                    fixed += sizes[v]
            for v, terms in alive.items():
                if self._producer(v) < i and until.get(v, NOTHING) < i and v not in held and terms:
                    now[v] = terms
            gone = [x for v, terms in counted.items() if now.get(v) != terms for x in self._bytes(terms, v)]
            come = [x for v, terms in now.items() if counted.get(v) != terms for x in self._bytes(terms, v)]
            if total is None or gone or come:
                total = self._sum([*(total or []), *come, *_minus(gone)])
            counted = now
            self._limit_row(fixed, [*total, *([(self.early[i], own / self.unit)] if free else [])])

    def _producer(self, v: int) -> int:
        producer = self.graph.values[v].producer
        return NOTHING if producer is None else producer


def _minus(terms: Iterable[Term]) -> list[Term]:
    return [(c, -a) for c, a in terms]


def _merged(terms: Iterable[Term]) -> list[Term]:
    """The same sum, with each column once."""
    merged: dict[int, float] = {}
    for column, a in terms:
        merged[column] = merged.get(column, 0.0) + a
    return [(column, a) for column, a in merged.items() if a]
