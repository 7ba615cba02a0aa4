"""The forward as a chain of links, and schedules on it as plans: what methods for chains need of a joint graph.

    x ──> link 0 ──border 1──> link 1 ──border 2──> link 2 ──> out        forward ops, in program order
             │                    │                    │
             └── tape 0           └── tape 1           └── tape 2         what the backward reads of a link

Links have only ops that the backward may have to run again: nothing behind the last tape, no update of a buffer.  A
**border** is all that later links read of earlier ones.  A backward op goes back through link i if i is the last
link that it reads, or that an op before it went back through.  A schedule on the chain is a list of steps:

* ``("keep", values)``  make these values if they are not there, and keep them;
* ``("drop", values)``  keep them no longer (as often as they were kept);
* ``("back", i)``       run the backward ops of link i; what they read and is not there is made just before, from what
                        is kept, and forgotten afterwards.

Steps ahead of the first ``back`` are the forward's: what is kept there is saved.  So is the tape of the link that it
begins with, since the forward has just made it.  Values that must be saved (:func:`candidates.must_keep`) are there
throughout; ``held`` adds others (what reaches over many links: a mask, a skip connection).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from optpart.formulation.blocks import find_blocks
from optpart.formulation.stage_graph import build_stages
from optpart.graph import Region
from optpart.peers.candidates import is_activation, must_keep
from optpart.plans import Plan, just_in_time
from optpart.problem import Problem

Step = tuple[Literal["keep", "drop"], frozenset[int]] | tuple[Literal["back"], int]


@dataclass(frozen=True)
class Line:
    """See the module's docstring.  ``of``: the link of each of its ops, rising from 0 without holes."""

    problem: Problem
    of: Mapping[int, int]
    held: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        return len(self.links)

    @cached_property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """Forward ops by link."""
        links: list[list[int]] = [[] for _ in range(max(self.of.values()) + 1)]
        for o, i in self.of.items():
            links[i].append(o)
        return tuple(map(tuple, links))

    @cached_property
    def always(self) -> frozenset[int]:
        """Saved whatever the schedule says."""
        return must_keep(self.problem) | self.held

    @cached_property
    def borders(self) -> tuple[frozenset[int], ...]:
        """By link, what it and later ones read of earlier ones, without what is always there; one more, empty."""
        borders: list[set[int]] = [set() for _ in range(self.count + 1)]
        for o, link in self.of.items():
            for v in self.problem.graph.ops[o].reads:
                producer = self.problem.graph.values[v].producer
                if producer is not None and v not in self.always:
                    for i in range(self.of[producer] + 1, link + 1):
                        borders[i].add(v)
        return tuple(map(frozenset, borders))

    @cached_property
    def tapes(self) -> tuple[frozenset[int], ...]:
        """By link, its values that ops beyond the forward read."""
        graph = self.problem.graph
        tapes: list[set[int]] = [set() for _ in range(self.count)]
        for op in graph.in_region(Region.EITHER, Region.BACKWARD):
            for v in op.reads:
                if is_activation(graph, v) and v not in self.always:
                    tapes[self.of[graph.values[v].producer or 0]].add(v)
        return tuple(map(frozenset, tapes))

    @cached_property
    def backward(self) -> tuple[tuple[int, ...], ...]:
        """By link, the backward ops that go back through it (ops of effect alone too), in program order.

        Ops do not always come in the order of the links, so an op's link is the least so far or the greatest still
        to come: whichever leaves fewer links without an op.
        """
        graph = self.problem.graph
        reach: dict[int, int] = {}  # forward-side value -> last link behind it
        ops: list[int] = []
        links: list[int | None] = []
        for op in graph.ops:
            read = max((reach[v] for v in op.reads if v in reach), default=None)
            if op.region is Region.BACKWARD or (op.region is Region.EITHER and not op.writes):
                ops.append(op.id)
                links.append(read)
            elif (place := self.of.get(op.id, read)) is not None:
                reach.update(dict.fromkeys((v for v in op.creates if v not in self.always), place))
        least, greatest = [self.count - 1], [0]
        for link in links:
            least.append(least[-1] if link is None else min(least[-1], link))
        for link in reversed(links):
            greatest.append(greatest[-1] if link is None else max(greatest[-1], link))
        chosen = max((least[1:], greatest[:0:-1]), key=lambda at: len(set(at)))
        groups: list[list[int]] = [[] for _ in range(self.count)]
        for o, i in zip(ops, chosen):
            groups[i].append(o)
        return tuple(map(tuple, groups))


def repeated(problem: Problem, always: frozenset[int]) -> tuple[int, ...]:
    """Forward ops that the backward may have to run again if ``always`` is saved, in program order."""
    graph = problem.graph
    waiting = [v for op in graph.in_region(Region.EITHER, Region.BACKWARD) for v in op.reads]
    waiting += graph.backward_outputs
    found: set[int] = set()
    while waiting:
        v = waiting.pop()
        if is_activation(graph, v) and v not in always and (o := graph.values[v].producer or 0) not in found:
            found.add(o)
            waiting += graph.ops[o].reads
    return tuple(sorted(found))


def line_of_ops(problem: Problem) -> Line:
    """Each op is a link."""
    return Line(problem, {o: i for i, o in enumerate(repeated(problem, must_keep(problem)))})


def line_of_blocks(problem: Problem, *, hold_far: bool = True) -> Line:
    """Links are the blocks of ``formulation.blocks.find_blocks``; ``hold_far``: what reaches further than a block is saved."""
    freeing = replace(problem, rule=replace(problem.rule, boxed=True))  # blocks do not depend on when memory is freed
    blocks, values = find_blocks(build_stages(freeing)), problem.graph.values
    far = frozenset(v for v in blocks.everywhere if is_activation(problem.graph, v) and values[v].savable and hold_far)
    ops = repeated(problem, must_keep(problem) | far)
    place = {b: i for i, b in enumerate(sorted({blocks.of[o] for o in ops}))}
    return Line(problem, {o: place[blocks.of[o]] for o in ops}, far)


def lines(problem: Problem) -> Iterable[Line]:
    """The chains that a method for chains is tried on, coarse ones first, equal ones once."""
    found: list[Line] = []
    for line in (line_of_blocks(problem), line_of_blocks(problem, hold_far=False), line_of_ops(problem)):
        if line.of and all((line.of, line.always) != (other.of, other.always) for other in found):
            found.append(line)
            yield line


def schedule_plan(line: Line, steps: Sequence[Step]) -> Plan:
    """The plan of a schedule that goes back through every link."""
    return _Emitter(line, steps).run(steps)


class _Emitter:
    def __init__(self, line: Line, steps: Sequence[Step]) -> None:
        self.line, self.graph = line, line.problem.graph
        self.kept: Counter[int] = Counter()
        saved = set(line.always)
        for step in steps:
            if step[0] == "back":
                saved |= line.tapes[step[1]]
                break
            saved |= step[1]
        self.saved = frozenset(v for v in saved if self.graph.values[v].savable)
        self.forward = just_in_time(self.graph, self.saved).forward
        self.early = set(self.forward)
        self.there = set(self.saved)
        self.done = set(self.forward)
        self.lasting = set(line.always)
        self.backward: list[int] = []

    def run(self, steps: Sequence[Step]) -> Plan:
        started = False
        for step in steps:
            if step[0] == "back":
                started = True
                for o in self.line.backward[step[1]]:
                    self._run(o)
            elif step[0] == "drop":
                self.kept.subtract(step[1])
            else:
                self.kept.update(step[1])
                if started:
                    self._make(step[1])
            if started:
                self.there = {v for v in self.there if v in self.lasting or self.kept[v] > 0}
        self._make(self.graph.backward_outputs)
        return Plan(self.forward, tuple(self.backward))

    def _run(self, o: int) -> None:
        op = self.graph.ops[o]
        self._make(op.reads, op.after)
        self._append(o)

    def _append(self, o: int) -> None:
        op = self.graph.ops[o]
        self.backward.append(o)
        self.done.add(o)
        self.there.update(op.writes)
        again = op.recomputable and (op.rng_state is None or o in self.early)
        if op.region is Region.BACKWARD or not again:
            self.lasting.update(op.writes)

    def _make(self, values: Iterable[int], after: Iterable[int] = ()) -> None:
        """Run what is missing of these values, and of the ops that have to run before, in program order."""
        waiting = [*self._makers(values), *(o for o in after if o not in self.done)]
        missing: set[int] = set()
        while waiting:
            o = waiting.pop()
            if o not in missing:
                missing.add(o)
                op = self.graph.ops[o]
                waiting += [*self._makers(op.reads), *(a for a in op.after if a not in self.done)]
        for o in sorted(missing):
            self._append(o)

    def _makers(self, values: Iterable[int]) -> list[int]:
        producers = (self.graph.values[v].producer for v in values if v not in self.there)
        return [p for p in producers if p is not None]
