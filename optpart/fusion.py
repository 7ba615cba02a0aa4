"""A problem as a code generator sees it: pointwise ops that vanish into the kernels that read them are no decisions.

Inductor computes a pointwise op inside its reader's kernel.  Its value then has no storage: to save it or to recompute
it is not a question, and counting it makes the peak too large and the model three times its size.  :func:`fuse` merges
such ops into their readers; a plan of the merged problem expands to a plan of the whole one.

**Inlined** is an op o with a single value v if
  1. o is pointwise (``inlinable``), has no effect, and no other op waits for it;
  2. each reader of v can fuse with it (``fusible``: pointwise ops and reductions), and v is no output;
  3. on the forward side: o may be recomputed, and no backward op reads v (what the backward reads may be saved, so it
     stays a value of its own).  On the backward side: v has one reader, a backward op.

**Merged ops.**  Each op that is left carries the inlined ops that lie between it and the values that are left: its
*members*.  It reads what they read from outside, and takes the time of each of them times the share of its traffic that
leaves the kernel (a value that several members read counts once).  Inlined ops with several readers are members of each
of them, since each kernel computes them anew.

**Expansion.**  The forward runs all of the whole problem's forward ops, in program order, and the free ops that the plan
runs early.  In the backward each merged op is its members, the last one writes.  What is shared by two merged ops runs in
each of them: one copy for both would need a storage between their kernels.

A peak of the merged problem is what fused kernels allocate, if the compiler fuses what it can; the whole problem's peak
is what runs op by op.  They are never mixed: a :class:`Fused` problem is solved, bounded and checked as itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optpart.graph import Graph, Op, Region, Value
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True)
class Fused:
    """``problem``: the merged one.  ``members[o]``: what its op o stands for, op ids of ``whole`` in program order; the
    last one is what it is named after, and writes its values."""

    problem: Problem
    whole: Problem
    members: tuple[tuple[int, ...], ...]

    def expand(self, plan: Plan) -> tuple[Plan, tuple[tuple[int, ...], ...]]:
        """The plan of the whole problem, and for each step of ``plan`` the steps of its members, the last one last."""
        ops = self.whole.graph.ops
        early = {m for o in plan.forward for m in self.members[o] if ops[m].region is Region.EITHER}
        forward = [op.id for op in ops if op.region is Region.FORWARD or op.id in early]
        place = {o: i for i, o in enumerate(forward)}
        steps = [tuple(place[m] for m in self.members[o]) for o in plan.forward]
        backward: list[int] = []
        for o in plan.backward:
            at = len(forward) + len(backward)
            steps.append(tuple(range(at, at + len(self.members[o]))))
            backward += self.members[o]
        return Plan(tuple(forward), tuple(backward)), tuple(steps)


def fuse(whole: Problem, inlinable: Sequence[bool], fusible: Sequence[bool]) -> Fused:
    """Merge what is inlined into its readers.

    Args:
        whole: the problem op by op, joint.
        inlinable: for each op, whether it is pointwise.
        fusible: for each op, whether pointwise ops that it reads can be computed in its kernel.
    """
    graph = whole.graph
    inlined = _inlined(graph, inlinable, fusible)
    members = {op.id: _members(graph, op, inlined) for op in graph.ops if op.id not in inlined}
    number = {o: i for i, o in enumerate(members)}
    vanished = {v for o in inlined for v in graph.ops[o].writes}
    values: list[Value] = []
    renamed: dict[int, int] = {}
    for value in graph.values:
        if value.id not in vanished:
            renamed[value.id] = len(values)
            producer = None if value.producer is None else number[value.producer]
            values.append(replace(value, id=len(values), producer=producer))
    ops, runtime, workspace = [], [], []
    for o, inside in members.items():
        parts = [graph.ops[m] for m in inside]
        outside = dict.fromkeys(v for part in parts for v in part.reads if v not in vanished)
        ops.append(
            replace(
                parts[-1],
                id=number[o],
                reads=tuple(renamed[v] for v in outside),
                writes=tuple(renamed[v] for v in parts[-1].writes),
                cheap=all(part.cheap for part in parts),
                after=tuple(number[a] for a in parts[-1].after),
                rng_state=None if parts[-1].rng_state is None else renamed[parts[-1].rng_state],
            )
        )
        runtime.append(_runtime(whole, parts, vanished))
        workspace.append(Bytes(max(whole.workspace[m] for m in inside)))
    merged = Graph(
        tuple(values),
        tuple(ops),
        tuple(renamed[v] for v in graph.forward_outputs),
        tuple(renamed[v] for v in graph.backward_outputs),
        graph.joint,
        graph.name,
    )
    problem = replace(whole, graph=merged, runtime=tuple(runtime), workspace=tuple(workspace))
    return Fused(problem, whole, tuple(members.values()))


def _inlined(graph: Graph, inlinable: Sequence[bool], fusible: Sequence[bool]) -> set[int]:
    """Ops whose value has no storage (rules 1 to 3 of the module)."""
    outputs = {*graph.forward_outputs, *graph.backward_outputs}
    awaited = {a for op in graph.ops for a in op.after}
    found = set()
    for op in graph.ops:
        plain = len(op.writes) == 1 and op.rng_state is None and not op.after and op.id not in awaited
        if not inlinable[op.id] or not plain or op.writes[0] in outputs:
            continue
        readers = graph.readers[op.writes[0]]
        if not readers or not all(fusible[r] and graph.ops[r].rng_state is None for r in readers):
            continue
        backward = [graph.ops[r].region is Region.BACKWARD for r in readers]
        if op.region is Region.BACKWARD:
            fits = len(readers) == 1
        else:
            fits = not any(backward) and op.recomputable
        if fits:
            found.add(op.id)
    return found


def _members(graph: Graph, op: Op, inlined: set[int]) -> tuple[int, ...]:
    """The op and what is inlined into it, directly or through others, in program order."""
    inside, stack = {op.id}, [op]
    while stack:
        for v in stack.pop().reads:
            producer = graph.values[v].producer
            if producer in inlined and producer not in inside:
                inside.add(producer)
                stack.append(graph.ops[producer])
    return tuple(sorted(inside))


def _runtime(whole: Problem, parts: Sequence[Op], vanished: set[int]) -> Microseconds:
    """Each part's time, times the share of its bytes that come from outside for the first time or go outside."""
    if len(parts) == 1 and not vanished.intersection(parts[0].reads):
        return whole.runtime[parts[0].id]
    seen: set[int] = set()
    total = 0.0
    for part in parts:
        touched = [*dict.fromkeys(part.reads), *part.writes]
        traffic = sum(whole.sizes[v] for v in touched)
        crossing = sum(whole.sizes[v] for v in touched if v not in vanished and v not in seen)
        seen.update(part.reads)
        if traffic:
            total += whole.runtime[part.id] * crossing / traffic
    return Microseconds(total)
