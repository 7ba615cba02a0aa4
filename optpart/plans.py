"""A Plan: what runs, in which order, in the forward and in the backward.

Two lists of op ids; an op may stand several times in the backward (in a bare graph: in the one list).
A read refers to the newest execution before it, and an instance of a value lives from its execution to
its last read before the next execution of its op.  Everything else follows from that and is derived:
saved values (forward instances that the backward reads), recomputed ops, live ranges, peak, cost.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optpart.graph import Graph, Region


@dataclass(frozen=True)
class Plan:
    """Execution lists of op ids.  A bare graph's plan has everything in ``forward``."""

    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()

    @property
    def sequence(self) -> tuple[int, ...]:
        """Forward and backward, one after the other."""
        return self.forward + self.backward

    @functools.cached_property
    def counts(self) -> Mapping[int, int]:
        """How often each op runs."""
        return Counter(self.sequence)

    def recomputes(self) -> dict[int, int]:
        """Op id -> how often it is recomputed (runs beyond the first), for those that are, by id."""
        return {o: n - 1 for o, n in sorted(self.counts.items()) if n > 1}

    def saved(self, graph: Graph) -> tuple[int, ...]:
        """Values kept from the forward for the backward, by id: the backward reads their forward
        instance, or the input itself, or returns it.  Static inputs are left out: they are there anyway.
        A bare graph saves nothing, whatever it returns."""
        if not graph.joint:
            return ()
        run: set[int] = set()
        saved: set[int] = set()
        forward = set(self.forward)
        for o in self.backward:
            op = graph.ops[o]
            for v in op.reads_again if o in forward else op.reads:
                producer = graph.values[v].producer
                if producer is None or (producer in forward and (producer not in run or v == graph.ops[producer].rng_state)):
                    saved.add(v)
            run.add(o)
        for v in graph.backward_outputs:
            producer = graph.values[v].producer
            if producer is None or producer not in run:
                saved.add(v)
        return tuple(sorted(v for v in saved if graph.values[v].kind.value in ("computed", "input")))


def baseline(graph: Graph) -> Plan:
    """Nothing recomputed: forward ops in the forward, all others in the backward, in program order.

    EITHER ops run where only the backward pays for them.  A bare graph runs in program order.
    """
    if not graph.joint:
        return Plan(tuple(op.id for op in graph.ops))
    return Plan(
        tuple(op.id for op in graph.in_region(Region.FORWARD)),
        tuple(op.id for op in graph.in_region(Region.EITHER, Region.BACKWARD)),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {"format": "optpart-plan-1", "forward": list(plan.forward), "backward": list(plan.backward)}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The inverse of :func:`plan_to_json`; ValueError for another format."""
    if data.get("format") != "optpart-plan-1":
        raise ValueError(f"not a plan of this package: format is {data.get('format')!r}, expected 'optpart-plan-1'")
    return Plan(tuple(data["forward"]), tuple(data["backward"]))


def just_in_time(graph: Graph, saved: frozenset[int], early: frozenset[int] = frozenset()) -> Plan:
    """The plan that keeps ``saved`` from the forward and recomputes everything else once, just before
    its first reader in the backward (program order breaks ties).

    EITHER ops run in the forward only where a saved value or a FORWARD op needs them, and those in ``early``.
    """
    ops, values = graph.ops, graph.values
    needed_early: set[int] = set()
    stack = [*early, *(p for v in saved if (p := values[v].producer) is not None)]
    stack += [a for op in ops if op.region is Region.FORWARD for a in op.after]
    while stack:
        o = stack.pop()
        if o in needed_early:
            continue
        needed_early.add(o)
        stack += [p for v in ops[o].reads if (p := values[v].producer) is not None]
        stack += ops[o].after
    forward = [op.id for op in ops if op.region is Region.FORWARD or (op.id in needed_early and op.region is Region.EITHER)]
    in_forward = set(forward)
    backward: list[int] = []
    done: set[int] = set()

    def missing(o: int) -> list[int]:
        op = ops[o]
        producers = [
            p
            for v in (op.reads_again if o in in_forward else op.reads)
            if (p := values[v].producer) is not None and v not in saved and p not in done and v != op.rng_state
        ]
        return producers + [a for a in op.after if a not in done and a not in in_forward]

    def run(o: int) -> None:
        chain, seen = [o], set()
        while chain:  # every ancestor that is missing, then in program order
            a = chain.pop()
            if a in seen or a in done:
                continue
            seen.add(a)
            chain += missing(a)
        for a in sorted(seen):
            backward.append(a)
            done.add(a)

    for op in ops:
        if op.region is Region.BACKWARD or (op.region is Region.EITHER and op.id not in in_forward and not op.writes):
            if op.id not in done:
                run(op.id)
    for v in graph.backward_outputs:  # an EITHER op whose value is itself a gradient
        producer = values[v].producer
        if producer is not None and v not in saved and producer not in done:
            run(producer)
    return Plan(tuple(forward), tuple(backward))
