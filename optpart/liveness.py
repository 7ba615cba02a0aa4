"""Live ranges, timeline, peak and cost of a plan: the one simulator that everybody quotes.

Steps are the positions of ``plan.sequence``.  At step j

    live(j) =   static inputs and inputs held by the caller                     all steps
              + tangents                                  first step of the backward .. end
              + instances of values                execution .. last read before the next execution
              + outputs of forward and backward    execution .. end (the caller holds them)
              + workspace(op at j), and the generator's state once more while a draw is replayed

A run that draws the numbers of the forward run again sets the generator back, and puts its present state aside.
Tangents stay to the end because the autograd engine holds them while the backward runs (measured on
torch 2.13: freeing them in the graph frees nothing).  ``peak_bytes`` is the maximum.  An instance that
nobody reads lives at its own step.
``saved_bytes`` is another number: the storages that the forward keeps for the backward, without static
inputs and without forward outputs, which stay alive whether they are saved or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optpart.graph import ValueKind
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True, slots=True)
class Instance:
    """One life of one storage: alive at every step ``start <= j <= end``."""

    value: int
    start: int
    end: int


@dataclass(frozen=True)
class Liveness:
    """What a plan costs.  ``timeline[j]`` is live bytes while step j runs, workspace included."""

    timeline: tuple[int, ...]
    instances: tuple[Instance, ...]
    peak_bytes: Bytes
    peak_step: int
    saved_bytes: Bytes
    recompute_time: Microseconds
    overhead: float

    def alive_at(self, step: int) -> tuple[Instance, ...]:
        """The instances alive at a step, resident inputs left out."""
        return tuple(i for i in self.instances if i.start <= step <= i.end)


def resident_bytes(problem: Problem) -> int:
    """Static inputs and inputs that the caller holds: there at every step."""
    if not problem.rule.count_resident:
        return 0
    kinds = (ValueKind.STATIC, ValueKind.INPUT)
    return sum(s for v, s in zip(problem.graph.values, problem.sizes) if v.kind in kinds)


def workspaces(problem: Problem, plan: Plan) -> list[int]:
    """For each step, the bytes that are there only while it runs: its op's workspace, and what a replayed draw puts aside."""
    early, split = set(plan.forward), len(plan.forward)
    spaces: list[int] = [problem.workspace[o] for o in plan.sequence]
    for j in range(split, len(spaces)):
        o = plan.sequence[j]
        if o in early:
            spaces[j] += problem.aside(o)
    return spaces


def simulate(problem: Problem, plan: Plan) -> Liveness:
    """Replay a plan.  The plan has to be valid (``optpart.validate`` says so in words)."""
    graph, sizes, rule = problem.graph, problem.sizes, problem.rule
    sequence, split = plan.sequence, len(plan.forward)
    last = len(sequence) - 1
    kept = set(graph.forward_outputs) if rule.hold_outputs else set()
    given = set(graph.backward_outputs) if rule.hold_outputs else set()
    saved = set(plan.saved(graph))
    live: dict[int, Instance] = {}  # newest instance of each computed value
    instances: list[Instance] = []
    early: dict[int, int] = {}  # forward output -> its forward instance's start
    for value in graph.values:
        if value.kind is ValueKind.TANGENT:
            live[value.id] = Instance(value.id, split, last)
    in_forward = set(plan.forward)
    for j, o in enumerate(sequence):
        op = graph.ops[o]
        again = graph.joint and j >= split and o in in_forward
        for v in op.reads_again if again else op.reads:
            if v in live:
                live[v] = Instance(v, live[v].start, max(live[v].end, j))
        for v in op.writes:
            if v in live:
                instances.append(live[v])
            live[v] = Instance(v, j, j)
            if v in kept and j < split:
                early[v] = j
        if op.rng_state is not None and op.rng_state in saved and not again:
            live[op.rng_state] = Instance(op.rng_state, j, j)
    instances += live.values()
    outside = {live[v] for v in given if v in live}
    outside |= {i for i in instances if early.get(i.value) == i.start}
    held = [_hold(i, last, i in outside, not rule.boxed and i.value in saved and i.start < split) for i in instances]
    timeline = _timeline(held, sizes, len(sequence), resident_bytes(problem))
    timeline = [live + space for live, space in zip(timeline, workspaces(problem, plan))]
    peak = max(timeline, default=resident_bytes(problem))
    recompute = sum(n * problem.runtime[o] for o, n in plan.recomputes().items())
    free = set(graph.forward_outputs)
    return Liveness(
        timeline=tuple(timeline),
        instances=tuple(held),
        peak_bytes=Bytes(peak),
        peak_step=timeline.index(peak) if timeline else 0,
        saved_bytes=Bytes(sum(sizes[v] for v in saved if v not in free)),
        recompute_time=Microseconds(recompute),
        overhead=recompute / problem.total_time if problem.total_time else 0.0,
    )


def _hold(i: Instance, last: int, *reasons: bool) -> Instance:
    """Stretch an instance to the end if there is a reason: somebody outside the graph holds it."""
    return Instance(i.value, i.start, last) if any(reasons) else i


def _timeline(instances: Sequence[Instance], sizes: Sequence[int], steps: int, resident: int) -> list[int]:
    """Live bytes at each step, from the instances' starts and ends."""
    change = [0] * (steps + 1)
    for i in instances:
        if i.start < steps:
            change[i.start] += sizes[i.value]
            change[i.end + 1] -= sizes[i.value]
    timeline, now = [], resident
    for j in range(steps):
        now += change[j]
        timeline.append(now)
    return timeline
