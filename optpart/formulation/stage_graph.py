"""The backward as stages: what the stage formulations share, computed once and plainly.

Fixed here: the order of the backward ops and the forward's order (program order).  Then

* a **stage** t = 0..T-1 is a backward op b(t) that reads values of the forward side; before it runs,
  any set of ops may be recomputed, in program order, each at most once.  Stage T, if there is one, has
  no op: it stands for forward-side values that the backward returns;
* ``needs[t]`` are the forward-side values that b(t) reads;
* three numbers say what is there whatever is decided (resident inputs, forward outputs, tangents,
  backward values, gradients so far): ``before[t]`` while ops are recomputed for stage t, ``during[t]``
  while b(t) runs (its outputs and workspace included, its forward-side reads not), ``after[t]`` at the
  worst of the backward ops between b(t) and b(t+1), which read nothing of the forward side.  ``start``
  is ``after`` for the ops ahead of stage 0.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from optpart.graph import Op, Region, ValueKind
from optpart.liveness import resident_bytes
from optpart.problem import Problem

NOTHING = -1  # "no such step": below every size
CONE = 16  # ops that are looked at behind a value for one that all its uses pass through


@dataclass(frozen=True)
class Stages:
    """See the module's docstring.  Sizes in bytes, rounded by the problem's rule."""

    problem: Problem
    ops: tuple[int, ...]
    needs: tuple[frozenset[int], ...]
    before: tuple[int, ...]
    during: tuple[int, ...]
    after: tuple[int, ...]
    start: int
    backward: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.needs)

    @functools.cached_property
    def values(self) -> tuple[int, ...]:
        """Forward-side values that a plan decides about: computed, and not held by the caller anyway."""
        graph = self.problem.graph
        held = caller_keeps(self.problem)
        return tuple(v.id for v in graph.values if is_forward_side(self.problem, v.id) and v.id not in held)

    def may_rerun(self, op: Op) -> bool:
        """May this op run in the backward, for the first time or again?"""
        if op.region is Region.BACKWARD or not (op.recomputable or op.region is Region.EITHER):
            return False
        values = self.problem.graph.values
        return all(values[v].savable for v in op.reads if values[v].producer is None)

    @functools.cached_property
    def rerunners(self) -> dict[int, tuple[int, ...]]:
        """Value -> ops that may run in the backward and read it then, in program order."""
        readers: dict[int, list[int]] = {v: [] for v in self.values}
        for op in self.problem.graph.ops:
            if self.may_rerun(op):
                for v in dict.fromkeys(op.reads_again if op.region is Region.FORWARD else op.reads):
                    if v in readers:
                        readers[v].append(op.id)
        return {v: tuple(r) for v, r in readers.items()}

    @functools.cached_property
    def last_use(self) -> dict[int, int]:
        """Value -> last stage at which it, or something recomputed from it, may be needed."""
        graph = self.problem.graph
        decided = set(self.values)
        last: dict[int, int] = {}
        for t, needs in enumerate(self.needs):
            for v in needs:
                if v in decided:
                    last[v] = t
        for op in reversed(graph.ops):  # a value's op lies before all its readers
            if op.region is Region.BACKWARD:
                continue
            latest = max((last[v] for v in op.writes if v in last), default=None)
            if latest is not None and self.may_rerun(op):
                for v in op.reads_again if op.region is Region.FORWARD else op.reads:
                    if v in decided:
                        last[v] = max(latest, last.get(v, NOTHING))
        return last

    @functools.cached_property
    def dominated(self) -> frozenset[int]:
        """Values u that need not be saved by the forward, because saving what is made of them is no worse.

        All that can be made of u in the backward passes through one forward op o, the backward reads nothing
        before that, and what o makes takes no more bytes.  A plan that keeps u from the forward can keep o's
        outputs instead: the forward has just made them, the memory is no higher at any step, and the runs
        between u and o are not needed.
        """
        return frozenset(u for u in self.rerunners if self._better_saved_later(u))

    def _better_saved_later(self, u: int) -> bool:
        graph, sizes = self.problem.graph, self.problem.sizes
        needed = self.needed
        waiting = {u}
        ran: set[int] = set()
        for _ in range(CONE):
            if waiting & needed:
                return False
            readers = {o for v in waiting for o in self.rerunners[v]} - ran
            if not readers:
                return False
            o = min(readers)  # program order
            if graph.ops[o].region is not Region.FORWARD:
                return False
            ran.add(o)
            made = {v for v in graph.ops[o].writes if v in self.last_use}
            waiting = {v for v in waiting if not ran.issuperset(self.rerunners[v])}
            if not waiting and sum(sizes[v] for v in made) <= sizes[u]:
                return all(graph.values[v].savable for v in made)
            waiting |= made
        return False

    @functools.cached_property
    def needed(self) -> frozenset[int]:
        """Forward-side values that some stage reads."""
        return frozenset().union(*self.needs)


def caller_keeps(problem: Problem) -> frozenset[int]:
    """Forward outputs that the backward may read as they are: the caller holds them anyway."""
    graph = problem.graph
    held = graph.forward_outputs if problem.rule.hold_outputs else ()
    return frozenset(v for v in held if graph.values[v].savable)


def is_forward_side(problem: Problem, v: int) -> bool:
    """Is the value computed by an op that may run in the forward?"""
    value = problem.graph.values[v]
    return value.producer is not None and problem.graph.ops[value.producer].region is not Region.BACKWARD


def build_stages(problem: Problem, backward: Sequence[int] | None = None, *, every: bool = False) -> Stages:
    """The stages of a joint problem.

    Args:
        backward: another order of its BACKWARD ops than program order.
        every: every backward op is a stage, also one that reads nothing of the forward side; ops can then
            be run again ahead of any backward op, which is Checkmate's class.

    Raises:
        ValueError: a bare graph, or a backward that holds what is saved to its end (rule ``boxed`` False).
    """
    if not problem.graph.joint or not problem.rule.boxed:
        raise ValueError("stages need a joint graph whose backward frees saved values at their last read")
    graph, sizes = problem.graph, problem.sizes
    order = tuple(backward or (op.id for op in graph.in_region(Region.BACKWARD)))
    held = graph.forward_outputs if problem.rule.hold_outputs else ()
    given = set(graph.backward_outputs) if problem.rule.hold_outputs else set()
    fixed = resident_bytes(problem) + sum(sizes[v] for v in held)
    fixed += sum(sizes[v.id] for v in graph.values if v.kind is ValueKind.TANGENT)
    last = {v: j for j, o in enumerate(order) for v in graph.ops[o].reads}
    ops: list[int] = []
    needs: list[frozenset[int]] = []
    before: list[int] = []
    during: list[int] = []
    after: list[int] = []
    start = NOTHING
    live = fixed
    caller_has = caller_keeps(problem)
    for j, o in enumerate(order):
        op = graph.ops[o]
        reads = frozenset(v for v in op.reads if is_forward_side(problem, v))
        written = sum(sizes[v] for v in op.writes)
        now = live + written + problem.workspace[o]
        if every or reads - caller_has:
            ops.append(o)
            needs.append(reads - caller_has)
            before.append(live)
            during.append(now)
            after.append(NOTHING)
        elif ops:
            after[-1] = max(after[-1], now)
        else:
            start = max(start, now)
        live += written
        done = [v for v in {*op.reads, *op.writes} if last.get(v, j) <= j and v not in given]
        live -= sum(sizes[v] for v in done if _is_backward(problem, v))
    returned = frozenset(v for v in graph.backward_outputs if is_forward_side(problem, v)) - caller_has
    if returned:
        needs.append(returned)
        before.append(live)
        during.append(live)
        after.append(NOTHING)
    return Stages(problem, tuple(ops), tuple(needs), tuple(before), tuple(during), tuple(after), start, order)


def _is_backward(problem: Problem, v: int) -> bool:
    value = problem.graph.values[v]
    return value.producer is not None and problem.graph.ops[value.producer].region is Region.BACKWARD
