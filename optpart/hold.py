"""Inductor's view of a plan: what fuses, and which emitted nodes it has to keep in order.

Which values vanish inside kernels is decided in ``fusion`` and which steps wait for which in ``order``, both free of
torch.  Here the calls are classified by torch's own tags, and the waits become Inductor's control dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.fusion import Fused, fuse
from optpart.order import waits
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.rewrite import OP_META, emitted_nodes


def _tagged(node: fx.Node, *tags: torch.Tag) -> bool:
    return isinstance(node.target, tp.OpOverload) and any(tag in node.target.tags for tag in tags)


def as_kernels(capture: Capture, problem: Problem) -> Fused:
    """The problem with pointwise ops merged into the kernels that read them."""
    pointwise = [_tagged(core, torch.Tag.pointwise) for core in capture.cores]
    return fuse(problem, pointwise, [_tagged(core, torch.Tag.pointwise, torch.Tag.reduction) for core in capture.cores])


def hold_order(
    modules: tuple[fx.GraphModule, fx.GraphModule],
    capture: Capture,
    fused: Fused,
    plan: Plan,
    steps: Sequence[Sequence[int]],
    limit: int,
) -> int:
    """Make emitted nodes wait, in place, so that no reordering exceeds ``limit`` bytes.

    Args:
        modules: forward and backward, as they were emitted for the expanded plan.
        fused: the merged problem.
        plan: of the merged problem.
        steps: for each step of ``plan`` the steps of its members in the expanded plan, the last one last.

    Returns:
        How many waits there are.
    """
    nodes = [node for module in modules for node in emitted_nodes(module)]
    finals = [capture.cores[inside[-1]] for inside in fused.members]
    fusible = [_tagged(core, torch.Tag.pointwise, torch.Tag.reduction) for core in finals]
    found = waits(fused.problem, plan, fusible, limit)
    split = len(plan.forward)
    for module, side in zip(modules, (range(split), range(split, len(steps)))):
        waiting: dict[fx.Node, list[fx.Node]] = {}
        for j in side:
            first = _first({i: nodes[i] for i in steps[j]}) if j in found else []
            for death in (steps[i][-1] for i in found.get(j, ())):
                # in the forward a member may stand ahead of what the step waits for; then the last one waits
                for i in {at if death < at else steps[j][-1] for at in first}:
                    waiting.setdefault(nodes[i], []).append(nodes[death])
        tp.hold(module, waiting)
    return sum(map(len, found.values()))


def _first(members: Mapping[int, fx.Node]) -> list[int]:
    """Those that read nothing of the others: what waits gets its operands in storages, so it has to wait at its start."""
    inside: set[fx.Node] = set()
    first = []
    for at, node in members.items():
        stack, seen = list(node.all_input_nodes), set[fx.Node]()
        while stack and not inside.intersection(stack):
            n = stack.pop()
            if n not in seen and OP_META not in n.meta:  # a view or an accessor: look behind it
                seen.add(n)
                stack += n.all_input_nodes
        if not stack:
            first.append(at)
        inside.add(node)
    return first
