"""The cut: save or recompute each value once, as a minimum s-t cut of a network of ops and values.

**Sets.** Ops o and values v of a joint graph.  F, E, B: the FORWARD, EITHER and BACKWARD ops.

**Plans.** The class "one copy": an op runs at most once in the forward and at most once in the
backward.  A plan is known by three sets of binaries:

    r_o   o runs in the backward            B: 1
    x_o   o runs in the forward             F: 1, B: 0
    d_v   v is there in the backward        tangents, values of B: 1

A value is *saved* when d_v = 1 although its op does not run in the backward (an input: when d_v = 1).
Op o is *recomputed* when r_o = x_o = 1.

**Constraints.**
    r_o <= d_v               o reads v                        (what runs in the backward finds what it reads)
    d_v  = 1                 the backward returns v
    1 - r_o <= x_o           o in E                           (it runs somewhere)
    x_o <= x_u               o in E reads a value of u in E   (what runs in the forward finds what it reads)
    x_o <= x_a               o in E or F has to run after a   (a in E; a in B: x_o = 0)
    r_o <= d_s               s is the generator's state from before o; nothing but the forward run of o makes it
    no saved v that is not savable; no recompute of an op that is not recomputable or is banned

**Objective.** a * (bytes of the saved values) + b * (run time of the recomputes), for given a, b >= 0.
A value that the caller keeps anyway (a static input, a forward output) has no bytes.

**Network.** A node for each binary; r_o = 1 and d_v = 1 mean the sink's side, x_o = 1 the source's.  Each
constraint p <= q says that a pair of nodes may not be on certain sides, and is an unlimited arc:
r_o <= d_v the arc v -> o, 1 - r_o <= x_o the arc o -> x_o, x_o <= x_u the arc x_o -> x_u.  The objective
pays for pairs too: the arc o -> v costs v's bytes (o on the source's side, v on the sink's: saved), the
arc x_o -> o costs o's run time (recomputed); for an input and for F the tail is the source itself.  So
cuts of finite capacity are exactly the plans of the class, and capacity is the objective: every cut gives
binaries, the arcs that would break a constraint are unlimited, and each term of the objective is
one arc.  A minimum cut is therefore an optimal plan.  No constraint asks that an op of E whose results
nobody needs runs nowhere, so such ops are left out beforehand.

An op that may run in the backward is only ever asked to run after ops that run somewhere, and program
order respects ``after``; so ``after`` limits no r_o.

Nodes whose side is known are merged with the source or the sink, the two nodes of an op of E that may
not be recomputed with each other (r_o = 1 - x_o), and a value with its reader when it has only one.

This is PyTorch's min-cut (`min_cut_rematerialization_partition`, torch/_functorch/partitioners.py) with
values for nodes, ops that only the backward needs left free to run there, and recompute time as a cost;
given its weights and bans it is the same cut.  Minimum cuts for such choices: Picard, "Maximal closure
of a graph", Management Science 22(11), 1976.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from optpart.graph import Graph, Op, Region, Value, ValueKind
from optpart.solver.maxflow import MAX_TOTAL, InfinitePath, Integers, Mask, minimum_cut

SOURCE, SINK = 0, 1


class NoPlan(ValueError):
    """Something that the backward needs can neither be saved nor computed there; the message says what and why."""


@dataclass(frozen=True)
class Network:
    """Arcs as arrays of shape (arcs,): an arc costs a * ``weight`` + b * ``cost`` for a and b of the solve.

    ``label`` is the value id v of an arc that saves v, and ~o (negative) of one that recomputes op o or
    stands for a constraint on it.  ``run[o]`` is the node of "o runs in the backward".
    """

    graph: Graph
    nodes: int
    tail: Integers
    head: Integers
    weight: NDArray[Any]
    cost: Integers
    unlimited: Mask
    label: Integers
    run: tuple[int, ...]


@dataclass(frozen=True)
class NetworkCut:
    """A cut as decisions: the values that are saved, and the ops that run in the backward without being
    BACKWARD ops.  ``source`` is the source's side, a mask of shape (nodes,)."""

    saved: frozenset[int]
    rerun: frozenset[int]
    source: Mask = field(repr=False, compare=False)

    @classmethod
    def of(cls, network: Network, source: Mask) -> NetworkCut:
        labels = network.label[source[network.tail] & ~source[network.head]].tolist()
        ops, side = network.graph.ops, source.tolist()
        rerun = (o for o, node in enumerate(network.run) if not side[node] and ops[o].region is not Region.BACKWARD)
        return cls(frozenset(v for v in labels if v >= 0), frozenset(rerun), source)


def build_network(
    graph: Graph,
    weight: Sequence[float | None],
    cost: Sequence[int | None],
    *,
    rerun: Collection[int] = (),
    needed: Collection[int] = (),
) -> Network:
    """The network of a joint graph, with any weights and bans.

    Args:
        weight: by value id, what it costs to save; None or inf = may not be saved.  Whole numbers give an
            exact cut, floats one up to rounding.  Not read for tangents and values of BACKWARD ops.
        cost: by op id, what it costs to recompute; None = banned.  Not read for BACKWARD ops.
        rerun: ops that have to run in the backward.
        needed: values that have to be there in the backward, beside those that its ops read.

    Raises:
        ValueError: a bare graph.
    """
    if not graph.joint:
        raise ValueError(f"graph {graph.name!r} is bare: it has no forward and backward to cut between")
    ops, values, forced = graph.ops, graph.values, frozenset(rerun)
    wanted = [p for v in (*graph.backward_outputs, *needed) if (p := values[v].producer) is not None]
    live = _live(graph, [*wanted, *forced])
    nodes = 2
    run, early = [SOURCE] * len(ops), [SOURCE] * len(ops)
    for o, op in enumerate(ops):
        if op.region is Region.BACKWARD:
            run[o] = early[o] = SINK
        elif o in forced:
            run[o] = SINK
        elif live[o] and cost[o] is not None:
            run[o] = nodes
            nodes += 1
        if op.region is Region.EITHER and live[o]:
            early[o] = nodes
            nodes += 1
            if run[o] == SOURCE:
                run[o] = early[o]
    arcs = _Arcs()
    for o, op in enumerate(ops):
        if op.region is Region.BACKWARD or not live[o]:
            continue
        arcs.add(early[o], run[o], ~o, cost=cost[o])
        arcs.add(run[o], early[o], ~o)
        for v in op.reads:
            producer = values[v].producer
            if producer is not None and ops[producer].region is Region.EITHER:
                arcs.add(early[o], early[producer], ~o)
        for a in op.after:
            arcs.add(early[o], early[a], ~o)
    there = {*graph.backward_outputs, *needed}
    for v, value in enumerate(values):
        origin, readers = SOURCE, {run[o] for o in graph.readers[v] if live[o]}
        if (producer := value.producer) is not None:
            origin = run[producer]
            if v == ops[producer].rng_state:
                origin = early[producer]
                readers.add(run[producer])
        readers.discard(SOURCE)
        if value.kind is ValueKind.TANGENT or origin == SINK or (producer is None and weight[v] == 0):
            continue  # there anyway
        if v in there or SINK in readers:
            readers = {SINK}
        if len(readers) == 1:
            arcs.add(origin, readers.pop(), v, weight=weight[v])
        elif readers:
            arcs.add(origin, nodes, v, weight=weight[v])
            for reader in sorted(readers):
                arcs.add(nodes, reader, v)
            nodes += 1
    return arcs.network(graph, nodes, tuple(run))


class _Arcs:
    """Arcs on their way to a Network."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []
        self.prices: list[tuple[float, int]] = []
        self.unlimited: list[bool] = []
        self.labels: list[int] = []

    def add(self, a: int, b: int, label: int, *, weight: float | None = None, cost: int | None = None) -> None:
        """An arc with a weight or a cost, unlimited when it has neither; left out when it can never be cut."""
        if a in (SINK, b) or b == SOURCE:
            return
        weight = None if weight == math.inf else weight
        self.ends.append((a, b))
        self.prices.append((weight or 0, cost or 0))
        self.unlimited.append(weight is None and cost is None)
        self.labels.append(label)

    def network(self, graph: Graph, nodes: int, run: tuple[int, ...]) -> Network:
        ends = numpy.array(self.ends, dtype=numpy.int64).reshape(-1, 2)
        weight = numpy.array([w for w, _ in self.prices])
        return Network(
            graph=graph,
            nodes=nodes,
            tail=ends[:, 0].copy(),
            head=ends[:, 1].copy(),
            weight=weight if weight.size else weight.astype(numpy.int64),
            cost=numpy.array([c for _, c in self.prices], dtype=numpy.int64),
            unlimited=numpy.array(self.unlimited, dtype=numpy.bool_),
            label=numpy.array(self.labels, dtype=numpy.int64),
            run=run,
        )


def _live(graph: Graph, wanted: Iterable[int]) -> list[bool]:
    """By op id: whether the op has to run somewhere (an op of E whose results nobody needs does not)."""
    live = [op.region is not Region.EITHER or not op.writes for op in graph.ops]
    for o in wanted:
        live[o] = True
    for op in reversed(graph.ops):
        if live[op.id]:
            for v in op.reads:
                if (producer := graph.values[v].producer) is not None:
                    live[producer] = True
            for a in op.after:
                live[a] = True
    return live


def solve_network(network: Network, a: int = 1, b: int = 1) -> tuple[int | float, NetworkCut]:
    """(a * weight + b * cost, cut) of the cut that minimises it.

    Of all minimum cuts it is the one that has the least on the sink's side: no useless run.

    Raises:
        NoPlan: no cut of finite capacity exists.
        OverflowError: a * (sum of weights) + b * (sum of costs) reaches 2**61 in whole numbers.
    """
    total = a * network.weight.sum().item() + b * network.cost.sum().item()
    if network.weight.dtype.kind == "i" and total >= MAX_TOTAL:
        raise OverflowError(f"capacities sum up to {total:.3g}, 2**61 or more: use a coarser unit of weight or cost")
    capacity = a * network.weight + b * network.cost
    cut = minimum_cut(network.tail, network.head, capacity, network.unlimited, nodes=network.nodes)
    if isinstance(cut, InfinitePath):
        raise NoPlan(_explain(network, cut))
    return cut.value, NetworkCut.of(network, cut.largest)


def _explain(network: Network, path: InfinitePath) -> str:
    """What stands on a path of unlimited arcs: values that may not be saved, ops that may not run where they have to."""
    graph = network.graph
    parts: list[str] = []
    for label in dict.fromkeys(network.label[list(path.arcs)].tolist()):
        item: Value | Op = graph.values[label] if label >= 0 else graph.ops[~label]
        verb = (
            f"value {item.name!r} may not be saved"
            if label >= 0
            else f"op {item.name!r} may not run where it would have to"
        )
        parts.append(verb + (f" ({item.reason})" if item.reason else ""))
        if label >= 0 and (producer := graph.values[label].producer) is not None and network.run[producer] == SOURCE:
            op = graph.ops[producer]
            parts.append(f"op {op.name!r} may not run again" + (f" ({op.reason})" if op.reason else ""))
    return "nothing can give the backward what it needs: " + "; ".join(parts)
