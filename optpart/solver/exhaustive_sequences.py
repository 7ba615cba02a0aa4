"""Exhaustive search over classes of execution sequences under a limit on the peak: a dozen ops, any repeats.

What formulations of the peak are tested with.  It imports no formulation, no other solver and no
liveness, so an agreement with one of those is evidence.

A class (:class:`Sequences`) holds the valid plans whose two lists keep its rules; an op may be recomputed
as often as one likes.  The search is Dijkstra's over states

    (forward or backward, ops that ran, values that are kept readable, what is held to the end)

with two moves: start the backward, or run an op whose reads are readable and drop any of the values that it
read or wrote (a value's life ends at its last read, or at its own step if there is none).  Running an op
that ran before costs its run time, everything else nothing; the step's bytes are what is readable or held,
what the op writes, and its workspace.  A plan's live ranges are the cheapest choice of drops, so the search
counts exactly what ``optpart.validate`` counts, which checks the plan that is found.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from optpart.graph import Op, Region, ValueKind
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes, Microseconds
from optpart.validate import validate

MAX_STATES = 300_000  # half a minute; 8 ops take 0.1 s on average, 10 ops 1 s, 12 ops 5 s


@dataclass(frozen=True, slots=True)
class Sequences:
    """A class of execution sequences.

    ``fixed_order``: FORWARD ops keep program order among themselves and BACKWARD ops do too; EITHER ops and
    recomputes stand anywhere among them.  In a bare graph the first runs are in program order.
    ``staged``: what stands between two such ops is in program order, each op at most once (Checkmate's
    stages, Jain et al. 2020).  ``either_early``: EITHER ops may run in the forward.
    """

    fixed_order: bool = True
    staged: bool = False
    either_early: bool = True


FIXED = Sequences()
STAGED = Sequences(staged=True)
FREE = Sequences(fixed_order=False)


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a class, with its numbers according to ``optpart.validate``."""

    plan: Plan
    recompute_time: Microseconds
    peak_bytes: Bytes


def least_recompute_plan(problem: Problem, sequences: Sequences = FIXED, max_states: int = MAX_STATES) -> Found | None:
    """The plan of least recompute time whose peak is within ``problem.budget``; None if there is none.

    Raises:
        ValueError: more than ``max_states`` states, or a joint graph whose outputs nobody holds.
    """
    return _dijkstra(_Moves(problem, sequences), lambda so_far, time, _: so_far + time, max_states)


def least_peak_plan(problem: Problem, sequences: Sequences = FIXED, max_states: int = MAX_STATES) -> Found | None:
    """The plan of least peak, whatever it recomputes; raises as :func:`least_recompute_plan`."""
    moves = _Moves(problem.with_budget(None), sequences)
    return _dijkstra(moves, lambda so_far, _, nbytes: max(so_far, nbytes), max_states)


class _State(NamedTuple):
    """Sets of op ids (``done``) and value ids (the others) as bit masks.

    ``late``: the backward has started (never in a bare graph).  ``live``: instances that take their own bytes
    and may be read.  ``held``: values whose forward instance, or the tangent, takes its bytes to the end
    whatever happens; ``free``: those of them that may still be read.  ``last``: the op that ran last in this
    stage, -1 at its start.
    """

    late: bool
    done: int
    live: int
    free: int
    held: int
    last: int


def _mask(ids: Iterable[int]) -> int:
    return sum(1 << i for i in set(ids))


def _subsets(mask: int) -> Iterator[int]:
    part = mask
    while part:
        yield part
        part = (part - 1) & mask
    yield 0


class _Moves:
    """What may follow a state of one problem."""

    def __init__(self, problem: Problem, sequences: Sequences) -> None:
        self.problem, self.graph, self.sequences = problem, problem.graph, sequences
        self.bytes, self.useful = functools.cache(self._bytes), functools.cache(self._useful)
        graph, rule = self.graph, problem.rule
        if graph.joint and not rule.hold_outputs:
            raise ValueError("in a joint graph the caller holds the outputs: rule.hold_outputs has to be True")
        kinds = (ValueKind.STATIC, ValueKind.INPUT)
        self.inputs = _mask([v.id for v in graph.values if v.kind in kinds])
        self.savable = _mask([v.id for v in graph.values if v.savable])
        self.tangents = _mask([v.id for v in graph.values if v.kind is ValueKind.TANGENT])
        self.forward_outputs = _mask(graph.forward_outputs)
        self.reads = [_mask(op.reads) for op in graph.ops]
        self.again = [_mask(op.reads_again) for op in graph.ops]
        self.writes = [_mask(op.writes) for op in graph.ops]
        self.before = [_mask(op.after) for op in graph.ops]
        self.resident = self.bytes(self.inputs) if rule.count_resident else 0
        self.must_run = _mask(
            [op.id for op in graph.ops if not graph.joint or op.region is not Region.EITHER or not op.writes]
        )
        self.forward_ops = _mask([op.id for op in graph.in_region(Region.FORWARD)])
        self.backward_ops = _mask([op.id for op in graph.in_region(Region.BACKWARD)])
        outputs = _mask(graph.backward_outputs) | (0 if graph.joint else self.forward_outputs)
        self.at_end = outputs if rule.hold_outputs else 0

    def _bytes(self, mask: int) -> int:
        return sum(size for v, size in enumerate(self.problem.sizes) if mask >> v & 1)

    def _useful(self, done: int) -> tuple[int, int]:
        """(ops, values) that can still matter: what has to run yet, what that reads, and what computes it again."""
        ops, values = self.must_run & ~done, self.at_end
        while True:
            more_ops, more_values = ops, values
            for op in self.graph.ops:
                if ops >> op.id & 1:
                    more_values |= self.again[op.id]
                    more_ops |= self.before[op.id] & ~done
                elif (self.writes[op.id] & values) and (not done >> op.id & 1 or self.may_repeat(op)):
                    more_ops |= 1 << op.id
            if (more_ops, more_values) == (ops, values):
                return ops, values
            ops, values = more_ops, more_values

    def may_repeat(self, op: Op) -> bool:
        if self.graph.joint:
            return op.recomputable and op.region is not Region.BACKWARD
        return op.recomputable and op.rng_state is None

    def is_goal(self, s: _State) -> bool:
        if self.graph.joint and not s.late:
            return False
        return self.must_run & ~s.done == 0 and self.at_end & ~self.readable(s) == 0

    def readable(self, s: _State) -> int:
        return s.live | s.free | (self.inputs if not s.late else self.inputs & self.savable)

    def after(self, s: _State) -> Iterator[tuple[_State, int | None, int]]:
        """(next state, the op that runs or None, bytes of that step)."""
        unfinished = self.forward_ops & ~s.done or s.live & ~self.savable
        if self.graph.joint and not s.late and not unfinished:
            held = self.tangents if self.problem.rule.boxed else self.tangents | s.live
            free = s.free & self.savable | held
            yield s._replace(late=True, live=s.live & ~held, free=free, held=s.held | held, last=-1), None, 0
        for op in self.graph.ops:
            if self.may_run(op, s):
                yield from self.run(op, s)

    def is_anchor(self, op: Op, s: _State) -> bool:
        """Does this run stand in the fixed order?"""
        return not s.done >> op.id & 1 and (op.region is not Region.EITHER or not self.graph.joint)

    def may_run(self, op: Op, s: _State) -> bool:
        ran = bool(s.done >> op.id & 1)
        early = self.graph.joint and not s.late
        if early and (ran or op.region is Region.BACKWARD):
            return False
        if early and op.region is Region.EITHER and not self.sequences.either_early:
            return False
        if (ran and not self.may_repeat(op)) or not self.useful(s.done)[0] >> op.id & 1:
            return False
        if self.is_anchor(op, s):
            peers = {Region.FORWARD: self.forward_ops, Region.BACKWARD: self.backward_ops}
            earlier = (peers[op.region] if self.graph.joint else self.must_run) & ((1 << op.id) - 1)
            if self.sequences.fixed_order and earlier & ~s.done:
                return False
        elif op.id <= s.last:
            return False
        reads = self.again[op.id] if ran else self.reads[op.id]
        if self.before[op.id] & ~s.done or reads & ~self.readable(s):
            return False
        return not self.writes[op.id] & (s.live | s.free)  # the old instance ended at its last read

    def run(self, op: Op, s: _State) -> Iterator[tuple[_State, int | None, int]]:
        early = self.graph.joint and not s.late
        writes = self.writes[op.id]
        held = writes & self.forward_outputs if early else 0
        last = op.id if self.sequences.staged and not self.is_anchor(op, s) else -1
        touched = self.again[op.id] | writes
        ran = bool(s.done >> op.id & 1)
        space = self.problem.workspace[op.id] + (self.problem.aside(op.id) if ran else 0)
        states = [0] if op.rng_state is None or not early else [0, 1 << op.rng_state]  # not made, or made and saved
        for state in states:
            live, free = s.live | (writes & ~held) | state, s.free | held
            nbytes = self.resident + self.bytes(live) + self.bytes(s.held | held) + space
            if self.problem.budget is None or nbytes <= self.problem.budget:
                done = s.done | 1 << op.id
                end = touched & (live | free) & ~state
                dead = end & ~self.useful(done)[1]
                for gone in _subsets(end & ~dead):
                    kept = ~(gone | dead)
                    yield _State(s.late, done, live & kept, free & kept, s.held | held, last), op.id, nbytes


def _dijkstra(moves: _Moves, cost: Callable[[float, float, int], float], max_states: int) -> Found | None:
    """Uniform-cost search; ``cost(so far, recompute time of the step, bytes of the step)`` must not fall."""
    problem = moves.problem
    start = _State(False, 0, 0, 0, 0, -1)
    best: dict[_State, float] = {start: 0.0}
    came: dict[_State, tuple[_State, int | None]] = {}
    queue = [(0.0, 0, start)]
    number = itertools.count(1)
    while queue:
        so_far, _, s = heapq.heappop(queue)
        if so_far > best[s]:
            continue
        if moves.is_goal(s):
            return _found(problem, s, came)
        for new, op, nbytes in moves.after(s):
            time = problem.runtime[op] if op is not None and s.done >> op & 1 else 0.0
            total = cost(so_far, time, nbytes)
            if new not in best or total < best[new]:
                best[new], came[new] = total, (s, op)
                heapq.heappush(queue, (total, next(number), new))
        if len(best) > max_states:
            raise ValueError(
                f"more than {max_states} states: {len(problem.graph.ops)} ops are too many to search through"
            )
    return None


def _found(problem: Problem, s: _State, came: dict[_State, tuple[_State, int | None]]) -> Found:
    """Walk back from a goal to the plan, and have it checked."""
    lists: tuple[list[int], list[int]] = ([], [])
    while s in came:
        s, op = came[s]
        if op is not None:
            lists[s.late].insert(0, op)
    plan = Plan(tuple(lists[0]), tuple(lists[1]))
    verdict = validate(problem, plan)
    assert verdict.ok, verdict.faults
    return Found(plan, verdict.recompute_time, verdict.peak_bytes)
