"""A problem as the tables of :mod:`optpart.solver.sequences_numba`, and plans to and from sequences.

Two kinds of ops are added that take no time and are no step: one behind everything reads what the caller is
given at the end (so it lives until then), and one ahead of each forward run with a generator's state writes
that state (so that recomputes, which do not write it, can read it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from optpart.graph import Op, Region, ValueKind
from optpart.liveness import resident_bytes
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.sequences_numba import Fixed, Ints


@dataclass(frozen=True)
class Layout:
    """``base`` and ``forward`` as ``load_sequence`` wants them; ``sink``: the op behind everything; ``unit``: one of the costs."""

    start: Plan
    fixed: Fixed
    base: Ints
    forward: Ints
    sink: int
    unit: float

    def sequence(self, plan: Plan) -> Ints:
        """What stands behind the forward, of a plan with the same forward."""
        runs = plan.backward if len(self.forward) else plan.forward
        return np.array([*runs, self.sink], np.int64)

    def plan(self, sequence: Iterable[int]) -> Plan:
        runs = tuple(int(o) for o in sequence if o != self.sink)
        return Plan(self.start.forward, runs) if len(self.forward) else Plan(runs)


@dataclass
class _Row:
    """One op of the tables.  ``before``: ops whose first run has to stand earlier; ``behind``: later."""

    reads: tuple[int, ...] = ()
    reads_late: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    before: set[int] = field(default_factory=set)
    behind: list[int] = field(default_factory=list)
    time: int = 0
    space: int = 0
    space_late: int = 0
    again: bool = False
    loose: bool = False
    step: bool = False


def layout(problem: Problem, start: Plan) -> Layout:
    """The tables for sequences with the forward of ``start`` (a valid plan), which stays as it is.

    Raises:
        ValueError: a joint graph whose backward holds what is saved to its end, or whose outputs nobody holds.
    """
    graph, rule = problem.graph, problem.rule
    if graph.joint and not (rule.boxed and rule.hold_outputs):
        raise ValueError("in a joint graph saved values are freed at their last read and the caller holds the outputs")
    early = start.forward if graph.joint else ()
    states = [(o, s) for o in early if (s := graph.ops[o].rng_state) is not None]
    state_op = {o: len(graph.ops) + i for i, (o, _) in enumerate(states)}
    sink = len(graph.ops) + len(states)
    producer = [-1 if v.producer is None else v.producer for v in graph.values]
    for o, state in states:
        producer[state] = state_op[o]
    costs, unit = problem.integer_costs()
    rows = [_row(problem, op, costs[op.id], start, producer) for op in graph.ops]
    rows += [_Row(writes=(state,)) for _, state in states]
    given = graph.backward_outputs if graph.joint else (*graph.forward_outputs, *graph.backward_outputs)
    held = _computed(given, producer) if rule.hold_outputs else ()
    rows.append(_Row(held, held, before={producer[v] for v in held}))
    for o, row in enumerate(rows):
        for p in sorted(row.before):
            rows[p].behind.append(o)
    forward = [p for o in early for p in ([state_op[o], o] if o in state_op else [o])]
    fixed = _tables(problem, rows, producer, forward, {state for _, state in states})
    base = np.array(_base(problem, forward), np.int64)
    return Layout(start, fixed, base, np.array(forward, np.int64), sink, unit)


def _computed(values: Iterable[int], producer: Sequence[int]) -> tuple[int, ...]:
    return tuple(v for v in dict.fromkeys(values) if producer[v] >= 0)


def _row(problem: Problem, op: Op, cost: int, start: Plan, producer: Sequence[int]) -> _Row:
    joint = problem.graph.joint
    early = joint and op.id in start.forward
    redone = early and op.rng_state is not None  # a run in the backward draws from the forward's state
    reads = _computed(op.reads, producer)
    space = problem.workspace[op.id]
    return _Row(
        reads=reads,
        reads_late=_computed(op.reads_again, producer) if redone else reads,
        writes=op.writes,
        before={*op.after, *(producer[v] for v in reads)},
        time=cost,
        space=space,
        space_late=space + problem.aside(op.id) if redone else space,
        again=_may_repeat(problem, op, early),
        loose=not early and op.id in start.counts,
        step=True,
    )


def _may_repeat(problem: Problem, op: Op, early: bool) -> bool:
    values = problem.graph.values
    if not problem.graph.joint:
        return op.recomputable and op.rng_state is None
    there = all(values[v].savable for v in op.reads if values[v].producer is None)
    return op.recomputable and op.region is not Region.BACKWARD and there and (early or op.rng_state is None)


def _tables(
    problem: Problem, rows: Sequence[_Row], producer: Sequence[int], forward: Sequence[int], states: set[int]
) -> Fixed:
    """The rows as arrays, in the order of the columns."""
    items: list[int] = []
    ops = []
    readers: list[list[int]] = [[] for _ in producer]
    for o, row in enumerate(rows):
        for v in row.reads_late:
            readers[v].append(o)
        places = [len(items), len(items) + len(row.reads)]
        for part in (row.reads_late, row.writes, sorted(row.before), row.behind):
            items += part
            places.append(len(items))
        ops.append([row.time, row.space_late, row.space, row.again, row.loose, row.step, *places])
    in_forward = set(forward)
    held = _held(problem, forward)
    values = []
    for value, size in zip(problem.graph.values, problem.sizes):
        v = value.id
        bound = not value.savable and producer[v] in in_forward
        read_from = len(forward) if v in states else 0
        places = [len(items), len(items) + len(readers[v])]
        values.append([size, 0 if v in held else size, producer[v], bound, read_from, *places])
        items += readers[v]
    return Fixed(np.array(ops, np.int64), np.array(values, np.int64), np.array(items, np.int64))


def _held(problem: Problem, forward: Sequence[int]) -> set[int]:
    """Values whose instance from the forward the caller holds to the end."""
    in_forward, values = set(forward), problem.graph.values
    return {v for v in problem.graph.forward_outputs if values[v].producer in in_forward}


def _base(problem: Problem, forward: Sequence[int]) -> list[int]:
    """What is there anyway: resident inputs, forward outputs as they come, tangents in the backward."""
    graph, sizes, held = problem.graph, problem.sizes, _held(problem, forward)
    now = resident_bytes(problem)
    base = []
    for o in forward:
        now += sum(sizes[v] for v in graph.ops[o].writes if v in held) if o < len(graph.ops) else 0
        base.append(now)
    tangents = sum(sizes[v.id] for v in graph.values if v.kind is ValueKind.TANGENT) if graph.joint else 0
    return [*base, now + tangents]
