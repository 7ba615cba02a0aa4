"""PyTorch's min-cut asked again: its weights and its bans, our network.

The partitioner of ``torch.compile`` decides by a minimum cut (``solve_min_cut`` in
torch/_functorch/partitioners.py).  To show that we understand what we replace, its network is recorded and
the same question is put to ours (:mod:`optpart.formulation.network`).  The two values have to be equal.

**Recorded** from a run of its partitioner, at the moment when it calls ``networkx.minimum_cut``.  It splits
each fx node X into X_in and X_out, and says all that it knows of X by arcs with a capacity:

    X_in -> X_out     what saving X costs; infinite: X is no tensor
    source -> X_in    infinite: X may not run in the backward (a ban, or an input)
    X_in -> sink      infinite: X runs in the backward
    X_out -> sink     infinite: the backward needs X itself, as the gradient of something
    X_out -> Y_in     infinite: Y reads X

**Ours**, from the joint graph alone: every fx node is an op with one value, its region is that of
:class:`~optpart.capture_sides.Sides`, what it reads are its arguments, and redoing it costs nothing.  Only the
first two kinds of arc are taken over.  This is not the Graph of :mod:`optpart.capture`, where values are
storages: PyTorch counts by node, a view apart from its base.

The two differ on purpose where the backward itself has effects or draws random numbers: PyTorch's cut may put
such a node into the forward, ours may not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import networkx
from torch import fx

from optpart import torch_private as tp
from optpart.capture_sides import Sides, overwritten_inputs
from optpart.formulation.network import NoPlan, build_network, solve_network
from optpart.graph import Graph, Op, Region, Signature, Value, ValueKind
from optpart.units import Bytes


@dataclass(frozen=True)
class RecordedCut:
    """PyTorch's network, by names of fx nodes.

    ``value`` is its minimum cut, infinite if it has none.  ``weight``: of X_in -> X_out.  ``banned``, ``late``,
    ``needed``: nodes with an arc source -> X_in, X_in -> sink, X_out -> sink.
    """

    value: float
    weight: dict[str, float]
    banned: frozenset[str]
    late: frozenset[str]
    needed: frozenset[str]


class _Recorded(Exception):
    """Ends PyTorch's partitioner once its network is there."""


def record(
    joint: fx.GraphModule, *, num_fwd_outputs: int, static_lifetime_input_indices: Sequence[int] = ()
) -> RecordedCut | None:
    """The network that PyTorch's partitioner cuts for this joint graph; None if it decides without one.

    Arguments as AOTAutograd gives them to a ``partition_fn``; the joint module is copied.
    """
    found: list[RecordedCut] = []

    def stop(minimum_cut: Callable[..., Any], graph: Any, source: str, sink: str) -> None:
        try:
            value = float(minimum_cut(graph, source, sink)[0])
        except networkx.NetworkXUnbounded:
            value = math.inf
        found.append(_read(graph, value, source, sink))
        raise _Recorded

    with _instead_of_minimum_cut(stop), contextlib.suppress(_Recorded):
        tp.min_cut_partition(
            tp.copy_module(joint),
            (),
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=list(static_lifetime_input_indices),
        )
    return found[0] if found else None


@contextlib.contextmanager
def _instead_of_minimum_cut(stop: Callable[..., None]) -> Iterator[None]:
    """PyTorch imports networkx where it needs it, so for a while it finds another ``minimum_cut`` there."""
    original = networkx.minimum_cut
    with mock.patch.object(networkx, "minimum_cut", lambda *args, **_: stop(original, *args)):
        yield


def _read(graph: Any, value: float, source: str, sink: str) -> RecordedCut:
    return RecordedCut(
        value=value,
        weight={
            tail.removesuffix("_in"): data["capacity"]
            for tail, head, data in graph.edges(data=True)
            if tail.endswith("_in") and head == tail.removesuffix("_in") + "_out"
        },
        banned=frozenset(head.removesuffix("_in") for head in graph.successors(source)),
        late=frozenset(n.removesuffix("_in") for n in graph.predecessors(sink) if n.endswith("_in")),
        needed=frozenset(n.removesuffix("_out") for n in graph.predecessors(sink) if n.endswith("_out")),
    )


# ------------------------------------------------------------------------------------------------ ours


@dataclass(frozen=True)
class NodeGraph:
    """A joint graph with one op and one value for each fx node (inputs: a value only), under the node's name.

    ``rerun``: ops that the user's checkpoints make run in the backward.  ``needed``: inputs that are gradients.
    """

    graph: Graph
    rerun: frozenset[int]
    needed: frozenset[int]


def node_graph(joint: fx.GraphModule, *, num_fwd_outputs: int) -> NodeGraph:
    """The joint graph by nodes, after the passes that PyTorch runs before its cut."""
    module = tp.prepare_joint(joint)
    forward_outputs, backward_outputs = tp.split_outputs(module, num_fwd_outputs)
    side = Sides(module, forward_outputs, overwritten_inputs(module))
    values: list[Value] = []
    ops: list[Op] = []
    value_of: dict[fx.Node, int] = {}
    rerun: set[int] = set()
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        v = value_of[node] = len(values)
        if node.op == "placeholder":
            kind = ValueKind.TANGENT if node in side.backward else ValueKind.INPUT
            values.append(Value(v, node.name, Bytes(0), kind))
            continue
        values.append(Value(v, node.name, Bytes(0), ValueKind.COMPUTED, len(ops)))
        region = side.region(node)
        if tp.must_recompute(node) and region is not Region.BACKWARD:
            rerun.add(len(ops))
        reads = tuple(value_of[i] for i in node.all_input_nodes)
        ops.append(Op(len(ops), node.name, Signature(str(node.target)), region, reads, (v,)))

    def returned(outputs: Sequence[Any]) -> dict[int, bool]:
        """Values that are returned, and whether an op computes them."""
        ids = (value_of[n] for n in outputs if isinstance(n, fx.Node))
        return {v: values[v].producer is not None for v in ids}

    forward, backward = returned(forward_outputs), returned(backward_outputs)
    graph = Graph(
        values=tuple(values),
        ops=tuple(ops),
        forward_outputs=tuple(v for v, computed in forward.items() if computed),
        backward_outputs=tuple(v for v, computed in backward.items() if computed),
        name="by nodes",
    )
    return NodeGraph(graph, frozenset(rerun), frozenset(v for v, computed in backward.items() if not computed))


def cut_value(nodes: NodeGraph, recorded: RecordedCut) -> float:
    """The minimum cut of our network under PyTorch's weights and bans; infinite if there is none.

    Raises:
        ValueError: PyTorch cut another graph: a node that it runs or may save in the forward is not in it.
    """
    graph = nodes.graph
    weight = [recorded.weight.get(v.name, math.inf) for v in graph.values]
    unknown = recorded.weight.keys() - {v.name for v in graph.values}
    if unknown:
        raise ValueError(f"PyTorch's network has a node that the joint graph does not have: {min(unknown)!r}")
    whole = [None if w == math.inf else int(w) for w in weight]
    cost = [None if op.name in recorded.banned else 0 for op in graph.ops]
    try:
        return float(solve_network(build_network(graph, whole, cost, rerun=nodes.rerun, needed=nodes.needed))[0])
    except NoPlan:
        return math.inf
