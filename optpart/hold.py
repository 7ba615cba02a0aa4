"""Emitted modules whose order a code generator keeps where the plan's peak depends on it.

Which steps wait for which is decided in ``order``, free of torch; here the steps are found again as the nodes of the
forward and the backward module, and the waits become Inductor's control dependencies.
"""

from __future__ import annotations

from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.order import waits
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.rewrite import emitted_nodes


def hold_order(
    modules: tuple[fx.GraphModule, fx.GraphModule], capture: Capture, problem: Problem, plan: Plan, limit: int
) -> int:
    """Make the emitted nodes of a plan wait, in place, so that no reordering exceeds ``limit`` bytes; how many waits."""
    nodes = [node for module in modules for node in emitted_nodes(module)]
    split = len(plan.forward)
    cheap = tp.cheap_to_redo()  # PyTorch's list of what Inductor fuses
    fusible = [isinstance(core.target, tp.OpOverload) and cheap(core) for core in capture.cores]
    found = waits(problem, plan, fusible, limit)
    for module, side in zip(modules, (range(split), range(split, len(nodes)))):
        tp.hold(module, {nodes[j]: [nodes[i] for i in found[j]] for j in side if j in found})
    return sum(map(len, found.values()))
