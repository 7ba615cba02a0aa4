"""Live bytes of a plan, step by step and by kind: what the memory timeline draws.

The simulator (:mod:`optpart.liveness`) says how many bytes live at each step; here each of them gets a
name.  The bands add up to the simulator's timeline exactly, at every step:

    parameters, inputs       resident: there at every step
    outputs                  what the forward hands to the caller
    saved                    forward values that the backward reads as the forward left them
    forward                  all other forward values
    gradients                what the backward hands to the caller
    recomputed               values of an op's second and later runs
    backward                 tangents, and all other values of the backward
    workspace                of the op that runs

A value is in one band from its execution to its last read: a saved value is "saved" from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from optpart.graph import ValueKind
from optpart.liveness import Instance, Liveness, simulate, workspaces
from optpart.plans import Plan
from optpart.problem import Problem


class Band(StrEnum):
    """A kind of memory; from the bottom of the stack to its top."""

    PARAMETERS = "parameters and buffers"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    GRADIENTS = "gradients"
    SAVED = "saved values"
    FORWARD = "forward values, not saved"
    RECOMPUTED = "recomputed values"
    BACKWARD = "backward values"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Holder:
    """Something that is alive at a step: a value, or the workspace of the op that runs.  ``nbytes`` above 0."""

    name: str
    band: Band
    nbytes: int


@dataclass(frozen=True)
class Timeline:
    """Bytes by band and step.  Steps are the positions of ``plan.sequence``; ``ops[j]`` runs at step j.

    ``split``: steps of the forward.  ``alive``: what is there at ``peak_step``, the largest first, without
    what is resident.
    """

    bands: Mapping[Band, tuple[int, ...]]
    ops: tuple[str, ...]
    split: int
    peak_step: int
    peak_bytes: int
    alive: tuple[Holder, ...]

    @property
    def total(self) -> tuple[int, ...]:
        """Live bytes at each step: the simulator's own timeline."""
        return tuple(map(sum, zip(*self.bands.values())))


def timeline(problem: Problem, plan: Plan, live: Liveness | None = None) -> Timeline:
    """The timeline of a valid plan; ``live`` is its simulation, if that is known already."""
    graph, sizes = problem.graph, problem.sizes
    live = live or simulate(problem, plan)
    steps = len(plan.sequence)
    bands = _bands(problem, plan, live)
    rows = {band: [0] * (steps + 1) for band in Band}
    for i, band in bands.items():
        if i.start < steps:
            rows[band][i.start] += sizes[i.value]
            rows[band][i.end + 1] -= sizes[i.value]
    if problem.rule.count_resident and steps:
        for value, nbytes in zip(graph.values, sizes):
            if value.kind is ValueKind.STATIC:
                rows[Band.PARAMETERS][0] += nbytes
            elif value.kind is ValueKind.INPUT:
                rows[Band.INPUTS][0] += nbytes
    for row in rows.values():
        for j in range(1, steps):
            row[j] += row[j - 1]
    rows[Band.WORKSPACE] = [*workspaces(problem, plan), 0]
    alive = [Holder(graph.values[i.value].name, bands[i], sizes[i.value]) for i in live.alive_at(live.peak_step)]
    if steps:
        last = graph.ops[plan.sequence[live.peak_step]]
        alive.append(Holder(last.name, Band.WORKSPACE, rows[Band.WORKSPACE][live.peak_step]))
    return Timeline(
        bands={band: tuple(row[:steps]) for band, row in rows.items()},
        ops=tuple(graph.ops[o].name for o in plan.sequence),
        split=len(plan.forward),
        peak_step=live.peak_step,
        peak_bytes=live.peak_bytes,
        alive=tuple(sorted((h for h in alive if h.nbytes), key=lambda h: (-h.nbytes, h.name))),
    )


def _bands(problem: Problem, plan: Plan, live: Liveness) -> dict[Instance, Band]:
    """The band of each instance."""
    graph, split = problem.graph, len(plan.forward)
    saved, outputs, gradients = set(plan.saved(graph)), set(graph.forward_outputs), set(graph.backward_outputs)
    first: dict[int, int] = {}  # op -> its first step
    for j, o in enumerate(plan.sequence):
        first.setdefault(o, j)
    newest: dict[int, int] = {}  # value -> the start of its last instance
    for i in live.instances:
        newest[i.value] = max(newest.get(i.value, -1), i.start)

    def band(i: Instance) -> Band:
        producer = graph.values[i.value].producer
        if i.start < split and i.value in outputs:
            return Band.OUTPUTS
        if i.start < split and i.value in saved:
            return Band.SAVED
        if i.start >= split and i.value in gradients and newest[i.value] == i.start:
            return Band.GRADIENTS
        if producer is not None and first[producer] < i.start:
            return Band.RECOMPUTED
        return Band.FORWARD if i.start < split else Band.BACKWARD

    return {i: band(i) for i in live.instances}
