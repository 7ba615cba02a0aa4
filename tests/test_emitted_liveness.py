"""Live bytes of emitted modules, from the fx graphs alone: nothing keeps a dead value alive, nothing is freed early.

This replay knows nothing of values, ops and plans.  It reads nodes, their users and their fake tensors; which results
share a storage it learns from the operators' schemas.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import pytest
import torch
from steps import PLANS, few
from torch import fx

import optpart_models as zoo
from optpart import torch_private as tp
from optpart.cost.model import build_problem
from optpart.liveness import resident_bytes, simulate
from optpart.planning import capture_joint
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.rewrite import OP_META, rewrite
from optpart.solver.base import Limits
from optpart.strategy import solve


def shares(node: fx.Node) -> list[fx.Node]:
    """The operands whose storage the result of a call is (part of)."""
    if node.target is operator.getitem:
        return [node.args[0]]
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    if node.target is torch.ops.aten._unsafe_view.default:  # a view whose schema does not say so
        return [node.args[0]]
    arguments = node.target._schema.arguments
    return [a for a, s in zip(node.args, arguments) if isinstance(a, fx.Node) and s.alias_info is not None]


Storage = tuple[fx.Node, int]  # the node that made it, and which of its results it is


def storages(node: fx.Node, known: dict[fx.Node, set[Storage]], size: dict[Storage, int]) -> set[Storage]:
    """Names of the storages that a node's result lies in; new ones get their bytes in ``size``."""
    behind = [s for n in shares(node) for s in known[n]]
    if node.target is operator.getitem:
        mine = [s for s in behind if s[1] == node.args[1]]
        return set(mine) if mine else set(behind)
    if behind:
        return set(behind)
    value = node.meta.get("val")
    found = set()
    for i, tensor in enumerate(value if isinstance(value, (tuple, list)) else [value]):
        if isinstance(tensor, torch.Tensor):
            found.add((node, i))
            size[node, i] = tensor.untyped_storage().nbytes()
    return found


def levels(forward: fx.GraphModule, backward: fx.GraphModule) -> Iterator[int]:
    """Bytes alive while each op of the forward, then of the backward, runs; what the caller passes in left out."""
    size: dict[Storage, int] = {}
    outside: set[Storage] = set()
    crossing: dict[str, set[Storage]] = {}
    kept: set[Storage] = set()
    for module in (forward, backward):
        known: dict[fx.Node, set[Storage]] = {}
        alive: set[Storage] = set(kept)
        for node in module.graph.find_nodes(op="placeholder"):
            if module is backward and node.name in crossing:
                known[node] = crossing[node.name]
            else:
                known[node] = storages(node, known, size)
                if module is forward:
                    outside |= known[node]
                else:
                    kept |= known[node]  # a tangent: autograd holds it
            alive |= known[node]
        output = module.graph.output_node()
        nodes = [n for n in module.graph.nodes if n.op in ("call_function", "get_attr")]
        for node in nodes:
            known[node] = storages(node, known, size)
        last = {s: i for i, n in enumerate(nodes) for m in (n, *n.all_input_nodes) for s in known[m]}
        returned = {s for n in output.all_input_nodes for s in known[n]}
        for i, node in enumerate(nodes):
            alive |= known[node]
            if OP_META in node.meta:
                results = {s for u in node.users if u.target is operator.getitem for s in known[u]}
                yield sum(size[s] for s in alive | results if s not in outside)
            alive = {s for s in alive if last.get(s, -1) > i or s in returned or s in kept}
        if module is forward:
            crossing = {n.name: known[n] for n in output.all_input_nodes}
            first = output.args[0]
            assert isinstance(first, tuple)
            kept = {s for n in first[: module.meta["outputs"]] if isinstance(n, fx.Node) for s in known[n]}


def solved(problem: Problem) -> Plan:
    plan = solve(problem, 0.2, Limits(time_limit=10)).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("name", zoo.names())
def test_the_emitted_graphs_hold_what_the_plan_holds(name: str) -> None:
    loaded = zoo.load(name, "tiny")
    [joint] = tp.trace_joint(loaded.model, loaded.batch)
    captured = capture_joint(joint)
    problem = build_problem(captured.graph)
    for plan in (*(PLANS[kind](captured.graph) for kind in few(name)), solved(problem)):
        forward, backward = rewrite(captured, plan)
        forward.meta["outputs"] = joint.num_fwd_outputs
        live = simulate(problem, plan)
        planned = [
            n - problem.workspace[o] - resident_bytes(problem)
            for n, o in zip(live.timeline, plan.sequence, strict=True)
        ]
        assert list(levels(forward, backward)) == planned
