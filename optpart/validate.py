"""The independent checker: is this a plan for this problem, and what does it cost?

Slow and obvious on purpose.  It reads a plan as two lists of op ids and works everything else out again
from the definitions, by looking back for where a value comes from and looking forward for who still reads
it: quadratic in the plan's length.  It imports data types only, so an agreement with ``optpart.liveness``,
a formulation or a solver is evidence.

A plan of a joint graph is valid if

* every FORWARD op runs once in the forward, every BACKWARD op once in the backward and nowhere else; an
  EITHER op runs at most once in the forward, and somewhere if it has an effect (it writes nothing) or
  anybody needs it;
* an op runs more than once only if it is recomputable, and a FORWARD op in the backward is a recompute;
* what an op reads is there: an input (tangents in the backward only), or written earlier.  A read refers
  to the newest run before it.  What the backward reads from outside of it (a forward run, an input of the
  forward) has to be savable;
* an op with a generator's state takes it, in the backward, from its forward run: that state is saved.  If
  it did not run in the forward it runs once;
* each run of an op stands after a run of every op in its ``after``;
* forward outputs are computed in the forward; backward outputs are there at the end, and savable if they
  come from the forward.

In a bare graph everything is in one list, each op at least once, again only if recomputable.  A peak over
the problem's budget is a fault too.  How memory is counted: see :func:`_lives` and :func:`_timeline`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from optpart.graph import Op, Region, ValueKind
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """``faults`` are sentences that name ops and values; ``ok`` says that there are none.

    The numbers are those of the plan as it stands, faults or not, as ``optpart.liveness`` defines them
    (``overhead`` is a fraction); all are 0 if the plan names an op that the graph does not have.
    """

    ok: bool
    faults: tuple[str, ...]
    peak_bytes: Bytes
    saved_bytes: Bytes
    recompute_time: Microseconds
    overhead: float


def validate(problem: Problem, plan: Plan) -> Verdict:
    """Check a plan against its problem and recompute its numbers; never raises for a wrong plan."""
    n = len(problem.graph.ops)
    unknown = sorted({o for o in (*plan.forward, *plan.backward) if not 0 <= o < n})
    if unknown:
        faults = [f"the plan runs op {o}; the graph has ops 0 to {n - 1}" for o in unknown]
        return Verdict(False, tuple(faults), Bytes(0), Bytes(0), Microseconds(0), 0.0)
    replay = _Replay(problem, (*plan.forward, *plan.backward), len(plan.forward))
    timeline = _timeline(replay)
    peak = max(timeline, default=_resident(problem))
    faults = [*_run_faults(replay), *_read_faults(replay), *_order_faults(replay), *_output_faults(replay)]
    if problem.budget is not None and peak > problem.budget:
        where = replay.say(timeline.index(peak)) if timeline else "an empty plan"
        faults.append(f"the peak of {peak} bytes, at {where}, is over the budget of {problem.budget} bytes")
    free = problem.graph.forward_outputs
    recompute = math.fsum(problem.runtime[o] * (replay.runs(o) - 1) for o in range(n) if replay.runs(o) > 1)
    total = math.fsum(problem.runtime)
    return Verdict(
        ok=not faults,
        faults=tuple(faults),
        peak_bytes=Bytes(peak),
        saved_bytes=Bytes(sum(problem.sizes[v] for v in replay.saved if v not in free)),
        recompute_time=Microseconds(recompute),
        overhead=recompute / total if total else 0.0,
    )


@dataclass(frozen=True)
class _Replay:
    """A plan as one sequence of steps; the backward starts at step ``split``."""

    problem: Problem
    sequence: tuple[int, ...]
    split: int

    @property
    def steps(self) -> range:
        return range(len(self.sequence))

    def op(self, j: int) -> Op:
        return self.problem.graph.ops[self.sequence[j]]

    def say(self, j: int) -> str:
        return f"step {j} (op {self.op(j).name!r})"

    def name(self, v: int) -> str:
        return self.problem.graph.values[v].name

    def runs(self, o: int) -> int:
        return self.sequence.count(o)

    def in_backward(self, j: int) -> bool:
        return self.problem.graph.joint and j >= self.split

    @functools.cached_property
    def again(self) -> tuple[bool, ...]:
        """For each step: does it rerun, in the backward, an op that ran in the forward?"""
        early = set(self.sequence[: self.split])
        return tuple(self.in_backward(j) and self.sequence[j] in early for j in self.steps)

    @functools.cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.op(j).reads_again if self.again[j] else self.op(j).reads for j in self.steps)

    @functools.cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.op(j).writes if self.again[j] else self.op(j).creates for j in self.steps)

    def newest(self, v: int, before: int) -> int | None:
        """The last step before this one that writes v."""
        return next((j for j in reversed(range(before)) if v in self.writes[j]), None)

    def from_outside(self, v: int, before: int) -> bool:
        """Does a reader in the backward at step ``before`` get v from a forward run or a forward input?"""
        if self.problem.graph.values[v].kind is ValueKind.COMPUTED:
            source = self.newest(v, before)
            return source is not None and source < self.split
        return self.problem.graph.values[v].kind is not ValueKind.TANGENT

    def crossing(self) -> Iterator[tuple[int, int]]:
        """(value, step) of every read in the backward from outside; step -1 stands for "is returned"."""
        if not self.problem.graph.joint:
            return
        for j in self.steps[self.split :]:
            yield from ((v, j) for v in self.reads[j] if self.from_outside(v, j))
        end = len(self.sequence)
        yield from ((v, -1) for v in self.problem.graph.backward_outputs if self.from_outside(v, end))

    @functools.cached_property
    def saved(self) -> frozenset[int]:
        """What the forward keeps for the backward; static inputs are there anyway."""
        values = self.problem.graph.values
        return frozenset(v for v, _ in self.crossing() if values[v].kind is not ValueKind.STATIC)


# -------------------------------------------------------------------------------------------- faults


def _run_faults(replay: _Replay) -> Iterator[str]:
    """Who runs how often, and where."""
    graph = replay.problem.graph
    for op in graph.ops:
        early = replay.sequence[: replay.split].count(op.id)
        late = replay.runs(op.id) - early
        name = f"{op.region} op {op.name!r}" if graph.joint else f"op {op.name!r}"
        if not graph.joint:
            if late:
                yield f"{name} stands in the backward list, which a bare graph does not have"
            if early + late == 0:
                yield f"{name} never runs"
        elif op.region is Region.BACKWARD:
            if early:
                yield f"{name} runs in the forward"
            if late != 1:
                yield f"{name} runs {late} times in the backward; it has to run once"
        elif op.region is Region.FORWARD and early != 1:
            yield f"{name} runs {early} times in the forward; it has to run once"
        elif op.region is Region.EITHER and early > 1:
            yield f"{name} runs {early} times in the forward; once is the most"
        elif op.region is Region.EITHER and not op.writes and not early + late:
            yield f"{name} has an effect and never runs"
        if early + late > 1 and not op.recomputable:
            yield f"{name} runs {early + late} times, but may not be recomputed: {op.reason or 'no reason given'}"
        if early + late > 1 and op.rng_state is not None and not (graph.joint and early):
            yield f"{name} runs {early + late} times, but no forward run left the generator's state for it"


def _read_faults(replay: _Replay) -> Iterator[str]:
    """Is everything that is read there, and savable if it crosses into the backward?"""
    values = replay.problem.graph.values
    for j in replay.steps:
        for v in replay.reads[j]:
            if values[v].kind is ValueKind.TANGENT and not replay.in_backward(j):
                yield f"{replay.say(j)} reads the tangent {replay.name(v)!r} before the backward"
            if values[v].kind is ValueKind.COMPUTED and replay.newest(v, j) is None:
                yield f"{replay.say(j)} reads {replay.name(v)!r} before it is computed"
    for v, j in replay.crossing():
        if not values[v].savable:
            who = replay.say(j) if j >= 0 else "the caller"
            yield f"{who} gets {replay.name(v)!r} from the forward, but it may not be saved: {values[v].reason}"


def _order_faults(replay: _Replay) -> Iterator[str]:
    for j in replay.steps:
        for a in replay.op(j).after:
            if a not in replay.sequence[:j]:
                yield f"{replay.say(j)} has to stand after a run of op {replay.problem.graph.ops[a].name!r}"


def _output_faults(replay: _Replay) -> Iterator[str]:
    graph = replay.problem.graph
    for v in graph.forward_outputs:
        if graph.values[v].kind is ValueKind.COMPUTED and replay.newest(v, replay.split) is None:
            yield f"forward output {replay.name(v)!r} is not computed in the forward"
    for v in graph.backward_outputs:
        if graph.values[v].kind is ValueKind.COMPUTED and replay.newest(v, len(replay.sequence)) is None:
            yield f"backward output {replay.name(v)!r} is never computed"


# -------------------------------------------------------------------------------------------- memory


def _resident(problem: Problem) -> int:
    """Bytes that are there at every step: static inputs and inputs that the caller holds."""
    if not problem.rule.count_resident:
        return 0
    kinds = (ValueKind.STATIC, ValueKind.INPUT)
    return sum(size for v, size in zip(problem.graph.values, problem.sizes) if v.kind in kinds)


def _lives(replay: _Replay) -> Iterator[tuple[int, int, int]]:
    """(value, first step, last step) of everything that comes and goes.

    A run's value lives from that run to its last reader before the next run that writes it, or only at
    its own step if nobody reads it.  It lives to the end if the caller holds it (the newest forward run's
    value of a forward output, the newest run's value of a backward output), or if it is saved and the
    backward is unboxed.  A generator's state that nobody saves is never made.  Tangents live from the
    first step of the backward to the end.
    """
    graph, rule, last = replay.problem.graph, replay.problem.rule, len(replay.sequence) - 1
    reads, writes = replay.reads, replay.writes
    for start in replay.steps:
        for v in writes[start]:
            if v == replay.op(start).rng_state and v not in replay.saved:
                continue
            end, newest, newest_early = start, True, start < replay.split
            for k in replay.steps[start + 1 :]:
                if v in reads[k]:
                    end = k
                if v in writes[k]:
                    newest, newest_early = False, newest_early and k >= replay.split
                    break
            held = (newest_early and v in graph.forward_outputs) or (newest and v in graph.backward_outputs)
            unboxed = not rule.boxed and v in replay.saved and start < replay.split
            yield v, start, last if (held and rule.hold_outputs) or unboxed else end
    if graph.joint:
        yield from ((v.id, replay.split, last) for v in graph.values if v.kind is ValueKind.TANGENT)


def _timeline(replay: _Replay) -> list[int]:
    """Bytes at each step: what is resident, what lives there, and what the op needs while it runs.

    That is its workspace, and for a random op that runs again the generator's state a second time: the one to
    draw from lives anyway, the one to go on with afterwards is put aside.
    """
    problem, lives = replay.problem, list(_lives(replay))
    resident = _resident(problem)
    timeline = []
    for j in replay.steps:
        op = replay.op(j)
        nbytes = resident + sum(problem.sizes[v] for v, start, end in lives if start <= j <= end)
        nbytes += problem.workspace[op.id]
        if replay.again[j] and op.rng_state is not None:
            nbytes += problem.sizes[op.rng_state]
        timeline.append(nbytes)
    return timeline
