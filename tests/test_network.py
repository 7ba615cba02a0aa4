"""The merged network of the cut against a network by the book."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import networkx
import pytest
from cases import BACKWARD, EITHER, FORWARD
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds

from optpart.formulation.cut import banned_ops, charged_bytes
from optpart.formulation.network import NoPlan, build_network, solve_network
from optpart.graph import Graph, ValueKind
from optpart.random_graphs import random_joint


def by_the_book(
    graph: Graph,
    weight: Sequence[float | None],
    cost: Sequence[int | None],
    a: int,
    b: int,
    rerun: set[int],
    needed: set[int],
) -> float:
    """Value of the minimum cut of the docstring's network, nothing merged, by networkx."""
    net: networkx.DiGraph[object] = networkx.DiGraph()
    net.add_nodes_from(["source", "sink"])

    def arc(tail: object, head: object, capacity: float | None = None) -> None:
        known = net.get_edge_data(tail, head, {"capacity": 0}).get("capacity", math.inf)
        total = math.inf if capacity is None else known + capacity
        net.add_edge(tail, head, **({} if total == math.inf else {"capacity": total}))

    waiting = [op.id for op in graph.ops if op.region is not EITHER or not op.writes] + sorted(rerun)
    waiting += [p for v in (*graph.backward_outputs, *needed) if (p := graph.values[v].producer) is not None]
    live: set[int] = set()
    while waiting:
        if (o := waiting.pop()) not in live:
            live.add(o)
            waiting += graph.ops[o].after
            waiting += [p for v in graph.ops[o].reads if (p := graph.values[v].producer) is not None]
    for op in graph.ops:
        run, early, o = ("r", op.id), ("x", op.id), op.id
        if o not in live:
            continue
        if op.region is BACKWARD:
            arc(run, "sink")
            arc(early, "sink")
        if op.region is FORWARD:
            arc("source", early)
        if o in rerun:
            arc(run, "sink")
        if op.region is not BACKWARD:
            price = cost[o]
            arc(early, run, None if price is None else b * price)
            arc(run, early)
        for v in op.reads:
            arc(("d", v), run)
            producer = graph.values[v].producer
            if producer is not None:
                arc(early, ("x", producer))
        for earlier in op.after:
            arc(early, ("x", earlier))
        if op.rng_state is not None:
            arc(("d", op.rng_state), run)
    for v in graph.values:
        if v.kind is not ValueKind.TANGENT and (v.producer is None or graph.ops[v.producer].region is not BACKWARD):
            state = v.producer is not None and graph.ops[v.producer].rng_state == v.id
            tail = "source" if v.producer is None else ("x" if state else "r", v.producer)
            price = weight[v.id]
            arc(tail, ("d", v.id), None if price is None or price == math.inf else a * price)
            if v.id in graph.backward_outputs or v.id in needed:
                arc(("d", v.id), "sink")
    value: float = networkx.minimum_cut_value(net, "source", "sink")
    return value


@settings(max_examples=60)
@given(seeds, st.booleans(), st.booleans())
def test_merged_network_has_the_cut_of_the_whole_one(seed: int, floats: bool, forced: bool) -> None:
    """With foreign weights, floats as well, bans, ops that must run again and values that must be there."""
    rng = random.Random(seed)
    problem = random_joint(seed, rng.randint(20, 60))
    graph = problem.graph
    weight = [None if w is None else w * 1.1 ** rng.randint(0, 9) if floats else w for w in charged_bytes(problem)]
    cost = [None if o in banned_ops(graph, False) else rng.randint(0, 9) for o in range(len(graph.ops))]
    rerun, needed = set(), set()
    if forced:
        rerun = {op.id for op in graph.in_region(FORWARD) if cost[op.id] is not None and rng.random() < 0.1}
        needed = {v for op in graph.in_region(FORWARD) for v in op.writes if rng.random() < 0.05}
    a, b = rng.randint(1, 5), rng.randint(0, 5)
    network = build_network(graph, weight, cost, rerun=rerun, needed=needed)
    try:
        expected = by_the_book(graph, weight, cost, a, b, rerun, needed)
    except networkx.NetworkXUnbounded:
        with pytest.raises(NoPlan):
            solve_network(network, a, b)
        return
    value, cut = solve_network(network, a, b)
    assert value == pytest.approx(expected, rel=1e-12) if floats else value == expected
    assert rerun <= cut.rerun
    assert network.nodes < 2 + 3 * len(graph.ops)
