"""What the forward hands over to the backward, by PyTorch's own extraction (``torch_private.extract``).

Extraction knows AOTAutograd's conventions: the order of saved tensors, objects and sizes, descriptors, symbol
bindings.  It is told what a plan saves, and hands back a forward and a backward; only their inputs and outputs
count here, since the bodies are written anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.graph import ValueKind
from optpart.plans import Plan


class RewriteError(RuntimeError):
    """The emitted graphs would not be the plan's: a fault of ours, never of the user's."""


@dataclass(frozen=True)
class Handover:
    """Extracted modules.  The forward's last ``sizes`` outputs are sizes; the backward's last ``kept`` outputs are
    none of the user's: they stand for what extraction would have dropped."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    sizes: int
    kept: int


def hand_over(capture: Capture, plan: Plan, saved: set[int]) -> Handover:
    """Extract with the values that a plan saves.

    Raises:
        RewriteError: a value cannot be saved.
    """
    sizes = _sizes(capture, plan)
    first = _extract(capture, saved, sizes, [])
    missing = _missing(capture, plan, saved, sizes, first.backward)
    return _extract(capture, saved, sizes, missing) if missing else first


def _extract(capture: Capture, saved: set[int], sizes: list[fx.Node], kept: list[fx.Node]) -> Handover:
    with tp.more_outputs(capture.joint, kept), tp.lazy_modules():
        forward, backward, n = tp.extract(
            capture.joint,
            _saved_nodes(capture, saved),
            list(sizes),
            [n for n in _inputs(capture) if tp.is_opaque(n) and not tp.is_script_object(n)],
            num_fwd_outputs=capture.num_fwd_outputs,
            static_nodes=capture.static_nodes,
        )
    return Handover(forward, backward, n, len(kept))


def is_state(capture: Capture, v: int) -> bool:
    """Is this value the state of the generator from before an op?"""
    producer = capture.graph.values[v].producer
    return producer is not None and capture.graph.ops[producer].rng_state == v


def _inputs(capture: Capture) -> list[fx.Node]:
    return [n for n in capture.joint.graph.find_nodes(op="placeholder") if tp.is_primal(n)]


def _saved_nodes(capture: Capture, saved: set[int]) -> list[fx.Node]:
    """Candidates for saved tensors; extraction drops those that the backward does not read."""
    nodes: list[fx.Node] = []
    for node in _inputs(capture):
        held = isinstance(node.meta.get("val"), torch.Tensor) and node not in capture.overwritten
        if held or tp.is_script_object(node) or tp.is_backward_state(node):
            nodes.append(node)
    for v in sorted(saved):
        value = capture.graph.values[v]
        if value.kind is ValueKind.COMPUTED and not is_state(capture, v):
            if not capture.roots[v]:
                raise RewriteError(f"value {value.name!r} is saved, but no node of the graph holds it alone")
            nodes += capture.roots[v]
    return nodes


def _missing(
    capture: Capture, plan: Plan, saved: set[int], sizes: list[fx.Node], backward: fx.GraphModule
) -> list[fx.Node]:
    """What the plan's backward reads and extraction dropped.

    Extraction knows one run of each op.  It drops a value whose only readers are runs that it does not
    know of: of an op that also runs from its saved value, or whose result nobody reads.
    """
    handed_over = {n.name for n in backward.graph.find_nodes(op="placeholder")}
    given = {n for v in saved for n in capture.roots[v]} | set(sizes)
    given |= {n for n in _inputs(capture) if capture.storages[n] and n not in capture.overwritten}
    missing: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    stack = [n for o in reversed(plan.backward) for n in reversed(capture.cores[o].all_input_nodes)]
    while stack:  # from the ops' arguments through views and sizes up to what crosses
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in given:
            stack += [] if node in capture.op_of else node.all_input_nodes
        elif node.name not in handed_over and node.op != "get_attr":
            missing[node] = None
    return list(missing)


def _sizes(capture: Capture, plan: Plan) -> list[fx.Node]:
    """Sizes that the forward knows: from its inputs, or from tensors that it computes anyway."""
    run = set(plan.forward)
    values, op_of = capture.graph.values, capture.op_of
    early = {v.id for v in values if (v.kind is not ValueKind.TANGENT if v.producer is None else v.producer in run)}
    known: dict[fx.Node, bool] = {}
    found = []
    for node in capture.joint.graph.nodes:
        there = op_of[node] in run if node in op_of else set(capture.storages.get(node, ())) <= early
        known[node] = there and not tp.is_tangent(node) and all(known[i] for i in node.all_input_nodes)
        if known[node] and node.op != "output" and tp.is_sym_node(node) and not tp.only_asserted(node):
            if isinstance(node.meta["val"], torch.SymInt) or node.op == "placeholder" or node in op_of:
                found.append(node)
    return found
