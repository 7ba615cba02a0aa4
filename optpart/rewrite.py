"""(Capture, Plan) -> forward and backward GraphModules that run exactly the plan.

Two steps:

1. **Extraction** (PyTorch's own, ``torch_private.extract``): which tensors, sizes and objects are handed
   over, in which order, with which descriptors and symbol bindings.  It is told what the plan saves.
2. **Emission** (ours): the bodies are written anew in the plan's order.  Every execution is a node of its
   own; an op that runs twice stands there twice, and each reader reads the newest run before it.  Views
   and sizes are written next to their first reader after each run, ``getitem`` right behind its op, so
   that nothing keeps a dead storage alive.

Random ops that are recomputed run from the state of the generator that the forward saved
(``run_and_save_rng_state`` / ``run_with_rng_state``), as often as the plan says.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.graph import ValueKind
from optpart.plans import Plan

OP_META = "optpart_op"  # node.meta key of an emitted op: its id in the Graph


class RewriteError(RuntimeError):
    """The emitted graphs would not be the plan's: a fault of ours, never of the user's."""


def rewrite(capture: Capture, plan: Plan) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward modules for a valid plan.

    Raises:
        RewriteError: the graphs cannot be emitted as planned (nothing wrong is returned).
    """
    graph = capture.graph
    saved = set(plan.saved(graph))
    _refuse_unsafe(capture, plan, saved)
    states = [graph.values[v].producer for v in sorted(saved) if _is_state(capture, v)]
    kept: list[fx.Node] = []
    known = _sizes(capture, plan)
    forward, backward, sizes = _extract(capture, saved, known, kept)
    if kept := _missing(capture, plan, saved, known, backward):
        forward, backward, sizes = _extract(capture, saved, known, kept)
    random = [o for o in states if o is not None]
    forward = _Emitter(capture, forward, random, replay=False).run(plan.forward, sizes_at_end=sizes)
    backward = _Emitter(capture, backward, random, replay=True).run(plan.backward, extra_outputs=len(kept))
    for node in backward.graph.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True
    _check(forward, plan.forward, "forward")
    _check(backward, plan.backward, "backward")
    tp.offload(forward, backward, capture.num_fwd_outputs, capture.static_nodes)
    return (
        tp.thread_rng_from_regions(forward, is_backward=False),
        tp.thread_rng_from_regions(backward, is_backward=True),
    )


def _refuse_unsafe(capture: Capture, plan: Plan, saved: set[int]) -> None:
    """A second run of what must run once, or a saved value that may not be saved, gives wrong gradients."""
    graph = capture.graph
    for o in plan.recomputes():
        if not graph.ops[o].recomputable:
            raise RewriteError(f"op {graph.ops[o].name!r} may not be recomputed: {graph.ops[o].reason}")
    for v in saved:
        if not graph.values[v].savable:
            raise RewriteError(f"value {graph.values[v].name!r} may not be saved: {graph.values[v].reason}")


def emitted_ops(module: fx.GraphModule) -> tuple[int, ...]:
    """The op ids that an emitted module runs, in order."""
    return tuple(n.meta[OP_META] for n in module.graph.nodes if OP_META in n.meta and n.op == "call_function")


def _check(module: fx.GraphModule, planned: tuple[int, ...], side: str) -> None:
    found = emitted_ops(module)
    if found != planned:
        at = next((i for i, (a, b) in enumerate(zip(found, planned)) if a != b), min(len(found), len(planned)))
        raise RewriteError(f"the {side} graph leaves the plan at step {at} ({len(found)} ops, planned {len(planned)})")


# ------------------------------------------------------------------------------------ what is saved


def _is_state(capture: Capture, v: int) -> bool:
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
        if value.kind is ValueKind.COMPUTED and not _is_state(capture, v):
            if not capture.roots[v]:
                raise RewriteError(f"value {value.name!r} is saved, but no node of the graph holds it alone")
            nodes += capture.roots[v]
    return nodes


def _extract(
    capture: Capture, saved: set[int], sizes: list[fx.Node], kept: list[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule, int]:
    """Forward, backward and how many sizes cross; ``kept`` crosses too, as if the backward returned it."""
    with tp.more_outputs(capture.joint, kept), tp.lazy_modules():
        return tp.extract(
            capture.joint,
            _saved_nodes(capture, saved),
            list(sizes),
            [n for n in _inputs(capture) if tp.is_opaque(n) and not tp.is_script_object(n)],
            num_fwd_outputs=capture.num_fwd_outputs,
            static_nodes=capture.static_nodes,
        )


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


# ---------------------------------------------------------------------------------------- emission


class _Emitter:
    """Writes one side anew.  ``env`` maps a joint node to the node of its newest run."""

    def __init__(self, capture: Capture, extracted: fx.GraphModule, random: list[int], *, replay: bool) -> None:
        self.capture, self.extracted, self.replay = capture, extracted, replay
        self.by_name = {n.name: n for n in capture.joint.graph.nodes}
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.sharing: dict[int, set[fx.Node]] = {}  # value -> joint nodes in env whose result shares its storage
        self.random = random
        self.states: dict[int, fx.Node] = {}
        self.accessors: dict[int, list[fx.Node]] = {}
        for node in capture.joint.graph.nodes:
            if tp.is_getitem(node) and (o := self._op_behind(node)) is not None:
                self.accessors.setdefault(o, []).append(node)

    def _op_behind(self, node: fx.Node) -> int | None:
        while tp.is_getitem(node):
            node = node.args[0]  # type: ignore[assignment]  # a getitem's first argument is a node
        return self.capture.op_of.get(node)

    def run(self, sequence: Iterable[int], sizes_at_end: int = 0, extra_outputs: int = 0) -> fx.GraphModule:
        self._placeholders()
        for o in sequence:
            self._execute(o)
        self._output(sizes_at_end, extra_outputs)
        self._drop_unread()
        self.graph.lint()
        return tp.make_graph_module(self.capture.joint, self.graph)

    def _placeholders(self) -> None:
        placed = False
        for node in self.extracted.graph.find_nodes(op="placeholder"):
            joint = self.by_name[node.name]
            if self.replay and not placed and tp.is_tangent(joint):
                self._state_inputs()
                placed = True
            self._enter(joint, self.graph.node_copy(node))
        if self.replay and not placed:
            self._state_inputs()

    def _state_inputs(self) -> None:
        for i, o in enumerate(self.random):
            self.states[o] = self.graph.placeholder(f"rng_state_output_{i}")
            self.states[o].meta["val"] = tp.fake_rng_state(self.capture.cores[o])

    def _enter(self, joint: fx.Node, new: fx.Node) -> None:
        self.env[joint] = new
        for v in self.capture.storages.get(joint, ()):
            self.sharing.setdefault(v, set()).add(joint)

    def _need(self, joint: fx.Node) -> fx.Node:
        """The newest run of a node; views, sizes and attributes are written here if they are missing."""
        stack = [joint]
        while stack:
            node = stack[-1]
            if node in self.env:
                stack.pop()
                continue
            if node in self.capture.op_of or node.op == "placeholder":
                raise RewriteError(f"{joint.name!r} needs {node.name!r}, which the plan neither saves nor runs before it")
            missing = [i for i in node.all_input_nodes if i not in self.env]
            if missing:
                stack += missing
            else:
                self._enter(node, self.graph.node_copy(node, self.env.__getitem__))
                stack.pop()
        return self.env[joint]

    def _execute(self, o: int) -> None:
        core = self.capture.cores[o]
        for node in core.all_input_nodes:
            self._need(node)
        args, kwargs = fx.map_arg((core.args, core.kwargs), self.env.__getitem__)
        for v in self.capture.graph.ops[o].writes:  # what shared the storages of the last run is out of date
            for node in self.sharing.pop(v, ()):
                self.env.pop(node, None)
        if o in self.random and not self.replay:
            new = self._draw_and_keep_state(core, o, args, kwargs)
        elif o in self.random and self.replay:
            arguments: Any = (self.states[o], core.target, *args)  # an operator as an argument
            new = self.graph.create_node("call_function", tp.run_with_rng_state(), arguments, kwargs, name=core.name)
            new.meta = tp.copy_node_meta(core)
        else:
            new = self.graph.create_node("call_function", core.target, args, kwargs, name=core.name)
            new.meta = tp.copy_node_meta(core)
        new.meta[OP_META] = o
        self._enter(core, new)
        for accessor in self.accessors.get(o, ()):
            self._need(accessor)

    def _draw_and_keep_state(self, core: fx.Node, o: int, args: Any, kwargs: Any) -> fx.Node:
        arguments: Any = (core.target, *args)  # an operator as an argument
        both = self.graph.call_function(tp.run_and_save_rng_state(), arguments, kwargs)
        state = self.graph.call_function(operator.getitem, (both, 0))
        state.meta["val"] = tp.fake_rng_state(core)
        both.meta["val"] = (state.meta["val"], core.meta["val"])
        new = self.graph.create_node("call_function", operator.getitem, (both, 1), name=core.name)
        new.meta = tp.copy_node_meta(core)
        self.states[o] = state
        return new

    def _output(self, sizes_at_end: int, extra_outputs: int) -> None:
        old = self.extracted.graph.output_node()
        outputs = list(old.args[0])  # type: ignore[arg-type]  # an output's argument is a tuple
        outputs = outputs[: len(outputs) - extra_outputs]
        new = [self._need(self.by_name[n.name]) if isinstance(n, fx.Node) else n for n in outputs]
        desc = list(old.meta.get("desc") or ())[: len(outputs)]
        if not self.replay and self.random:
            at = len(new) - sizes_at_end
            new[at:at] = [self.states[o] for o in self.random]
            if desc:
                first = len(desc) - self.capture.num_fwd_outputs
                desc[at:at] = [tp.saved_descriptor(first + i) for i in range(len(self.random))]
        output = self.graph.output(tuple(new))
        output.meta = tp.copy_node_meta(old)
        if desc:
            output.meta["desc"] = desc

    def _drop_unread(self) -> None:
        """Accessors, views and sizes that nobody reads."""
        for node in reversed(self.graph.nodes):
            if node.op in ("call_function", "get_attr") and not node.users and OP_META not in node.meta:
                self.graph.erase_node(node)
