"""What AOTAutograd relies on in the two modules that a ``partition_fn`` returns, as assertions.

It finds everything by position and by ``meta``, and fails late and far away, or not at all, if one of
these rules is broken.  They are stated for modules, without a word of how ours are made, so PyTorch's own
partitions can be checked too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp


def outputs_of(module: fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])


def names(nodes: Sequence[Any]) -> list[Any]:
    return [n.name if isinstance(n, fx.Node) else n for n in nodes]


def is_state(node: fx.Node) -> bool:
    """The generator's state, as a placeholder of the backward."""
    return node.op == "placeholder" and str(node.target).startswith("rng_state_output")


def check_conventions(
    joint: fx.GraphModule, forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int
) -> None:
    joint_outputs = tp.tree_leaves(joint.graph.output_node().args)
    given = list(joint.graph.find_nodes(op="placeholder"))
    primals = [n for n in given if tp.is_primal(n)]
    first, saved = outputs_of(forward)[:num_fwd_outputs], outputs_of(forward)[num_fwd_outputs:]

    # forward: all primals in order; the joint's first outputs untouched; then tensors, states, sizes
    assert names(forward.graph.find_nodes(op="placeholder")) == names(primals)
    if num_fwd_outputs:
        assert len(first) == num_fwd_outputs
        kinds = [type(n) for n in first]
        assert kinds == [type(n) for n in joint_outputs[:num_fwd_outputs]]
        assert [n for n in first if not isinstance(n, fx.Node)] == [
            n for n in joint_outputs[:num_fwd_outputs] if not isinstance(n, fx.Node)
        ]
    assert all(isinstance(n, fx.Node) for n in saved), "something is saved that is no node"
    assert len(set(saved)) == len(saved), f"saved twice: {names(saved)}"
    sizes = [n for n in saved if tp.is_sym_node(n)]
    assert saved[len(saved) - len(sizes) :] == sizes, f"sizes come last: {names(saved)}"
    for n in saved:
        value = n.meta["val"]
        assert tp.is_sym_node(n) or isinstance(value, torch.Tensor) or tp.is_opaque(n) or tp.is_script_object(n), n.name

    # backward: sizes, tensors, states, then tangents; all of them read
    placeholders = list(backward.graph.find_nodes(op="placeholder"))
    handed_over = [n for n in placeholders if not tp.is_tangent(n) and not tp.is_backward_input(n)]
    states = [n for n in handed_over if is_state(n)]
    order = ["size" if tp.is_sym_node(n) else "state" if is_state(n) else "tensor" for n in handed_over]
    assert order == sorted(order, key=["size", "tensor", "state"].index), order
    assert len(handed_over) == len(saved)
    cut = len(saved) - len(sizes) - len(states)
    assert names(handed_over) == names(sizes) + names(saved[:cut]) + names(states)
    assert [n.meta["val"].shape for n in states] == [n.meta["val"].shape for n in saved[cut : cut + len(states)]]
    assert len(set(names(placeholders))) == len(placeholders)
    tangents = [n for n in given if tp.is_tangent(n) or tp.is_backward_input(n)]
    assert names([n for n in placeholders if n not in handed_over]) == names(tangents)
    unread = [n.name for n in handed_over if not n.users and not tp.is_sym_node(n) and not tp.is_backward_state(n)]
    assert not unread, f"saved, and not read: {unread}"

    # gradients: as many as the joint's, Nones kept
    gradients = joint_outputs[num_fwd_outputs:]
    assert [n is None for n in outputs_of(backward)] == [n is None for n in gradients]
    for module in (forward, backward):
        module.graph.lint()
        desc = module.graph.output_node().meta.get("desc")
        assert desc is None or len(desc) == len(outputs_of(module))
        for n in module.graph.nodes:
            if n.op == "call_function":
                assert "val" in n.meta or not n.users, f"{n.name} has no fake value"
    symbols_are_bound(joint, backward)


def symbols_are_bound(joint: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Every symbol in the shape of an input is an input of its own, if the joint graph has a node for it."""

    def expressions(module: fx.GraphModule) -> set[Any]:
        values = (n.meta.get("val") for n in module.graph.nodes)
        return {v.node.expr for v in values if isinstance(v, torch.SymInt)}

    placeholders = [n for n in backward.graph.find_nodes(op="placeholder") if not tp.is_tangent(n)]
    shapes = [n.meta["val"].shape for n in placeholders if isinstance(n.meta.get("val"), torch.Tensor)]
    used = {s for shape in shapes for d in shape if isinstance(d, torch.SymInt) for s in d.node.expr.free_symbols}
    bound = {n.meta["val"].node.expr for n in placeholders if isinstance(n.meta.get("val"), torch.SymInt)}
    missing = (used & expressions(joint)) - bound
    assert not missing, f"symbols {missing} are not bound by an input"
