"""(Capture, Plan) -> forward and backward GraphModules that run exactly the plan.

Two steps:

1. **Extraction** (``handover``): which tensors, sizes and objects cross, in which order, with which
   descriptors and symbol bindings.
2. **Emission** (ours): the bodies are written anew in the plan's order.  Every execution is a node of its
   own; an op that runs twice stands there twice, and each reader reads the newest run before it.  Views
   and sizes are written next to their first reader after each run, ``getitem`` right behind its op, so
   that nothing keeps a dead storage alive.

Random ops that are recomputed run from the state of the generator that the forward saved
(``run_and_save_rng_state`` / ``run_with_rng_state``), as often as the plan says.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.handover import RewriteError, hand_over, is_state
from optpart.plans import Plan

OP_META = "optpart_op"  # node.meta key of an emitted op: its id in the Graph


def rewrite(capture: Capture, plan: Plan) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward modules for a valid plan.

    Raises:
        RewriteError: the graphs cannot be emitted as planned (nothing wrong is returned).
    """
    graph = capture.graph
    saved = set(plan.saved(graph))
    _refuse_unsafe(capture, plan, saved)
    handed = hand_over(capture, plan, saved)
    random = [p for v in sorted(saved) if is_state(capture, v) and (p := graph.values[v].producer) is not None]
    forward = _Emitter(capture, handed.forward, random, replay=False).run(plan.forward, sizes_at_end=handed.sizes)
    backward = _Emitter(capture, handed.backward, random, replay=True).run(plan.backward, extra_outputs=handed.kept)
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


def emitted_nodes(module: fx.GraphModule) -> tuple[fx.Node, ...]:
    """The nodes of an emitted module that run an op, in order."""
    return tuple(n for n in module.graph.nodes if OP_META in n.meta and n.op == "call_function")


def emitted_ops(module: fx.GraphModule) -> tuple[int, ...]:
    """The op ids that an emitted module runs, in order."""
    return tuple(n.meta[OP_META] for n in emitted_nodes(module))


def _check(module: fx.GraphModule, planned: tuple[int, ...], side: str) -> None:
    found = emitted_ops(module)
    if found != planned:
        at = next((i for i, (a, b) in enumerate(zip(found, planned)) if a != b), min(len(found), len(planned)))
        raise RewriteError(f"the {side} graph leaves the plan at step {at} ({len(found)} ops, planned {len(planned)})")


# ---------------------------------------------------------------------------------------- emission


class _Emitter:
    """Writes one side anew.  ``env`` maps a joint node to the node of its newest run."""

    def __init__(self, capture: Capture, extracted: fx.GraphModule, random: list[int], *, replay: bool) -> None:
        self.capture, self.extracted, self.replay = capture, extracted, replay
        self.by_name = {n.name: n for n in capture.joint.graph.nodes}
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.named: set[str] = set()
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
            self.named.add(joint.name)
        if self.replay and not placed:
            self._state_inputs()

    def _state_inputs(self) -> None:
        for i, o in enumerate(self.random):
            self.states[o] = self.graph.placeholder(f"rng_state_output_{i}")
            self.states[o].meta["val"] = tp.fake_rng_state(self.capture.cores[o])

    def _name(self, joint: fx.Node) -> str:
        """The joint node's own name for its first run (names are how PyTorch finds nodes again), else a new one."""
        again = joint.name in self.named
        self.named.add(joint.name)
        return f"{joint.name}_again" if again else joint.name

    def _write(self, joint: fx.Node, target: Any, args: Any, kwargs: Any) -> fx.Node:
        new = self.graph.create_node(joint.op, target, args, kwargs, self._name(joint), joint.type)
        new.meta = tp.copy_node_meta(joint)
        return new

    def _arguments(self, joint: fx.Node) -> Any:
        return fx.map_arg((joint.args, joint.kwargs), self.env.__getitem__)

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
                self._enter(node, self._write(node, node.target, *self._arguments(node)))
                stack.pop()
        return self.env[joint]

    def _execute(self, o: int) -> None:
        core = self.capture.cores[o]
        for node in core.all_input_nodes:
            self._need(node)
        args, kwargs = self._arguments(core)
        for v in self.capture.graph.ops[o].writes:  # what shared the storages of the last run is out of date
            for node in self.sharing.pop(v, ()):
                self.env.pop(node, None)
        if o not in self.random:
            new = self._write(core, core.target, args, kwargs)
        elif self.replay:
            new = self._write(core, tp.run_with_rng_state(), (self.states[o], core.target, *args), kwargs)
        else:
            new = self._draw_and_keep_state(core, o, args, kwargs)
        new.meta[OP_META] = o
        self._enter(core, new)
        for accessor in self.accessors.get(o, ()):
            self._need(accessor)

    def _draw_and_keep_state(self, core: fx.Node, o: int, args: Any, kwargs: Any) -> fx.Node:
        create = functools.partial(self.graph.create_node, "call_function")
        arguments: Any = (core.target, *args)  # an operator as an argument
        both = create(tp.run_and_save_rng_state(), arguments, kwargs, f"{core.name}_and_state")
        state = create(operator.getitem, (both, 0), {}, f"{core.name}_state")
        state.meta["val"] = tp.fake_rng_state(core)
        both.meta["val"] = (state.meta["val"], core.meta["val"])
        new = self._write(core, operator.getitem, (both, 1), {})
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
