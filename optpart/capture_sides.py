"""What capture needs to know of single fx nodes: storages, effects, sides, overwritten inputs.

**Sides.** Backward: the users' closure of tangents, of ``must_be_in_backward`` nodes, and of effects that
were traced in the backward.  Forward: the ancestors of forward outputs and of all other effects.  What is
neither is free to run on both (Region.EITHER).

An input that only the backward overwrites is read where the read was traced: a second forward may run, or
another backward overwrite it, in between.

**Overwritten inputs.** A buffer or input that the step writes to (``copy_`` in the graph, or the runtime
after the forward) no longer holds what the forward read.  Its readers could only run again from a copy
taken before, so we insert that copy where it pays: the backward reads the input, or a reader is much
larger than the input (batch norm reads two small running statistics).  Otherwise its readers are saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.graph import Region

# A reader this many times larger than the overwritten input makes the copy worth its bytes.  PyTorch's
# own threshold for "the output is small against the inputs" (should_ban_recomputation) is 4 as well.
CLONE_PAYS = 4
# In the meta of the nodes that we insert for that: the name of the node that each is a copy of.
COPY_OF = "optpart_copy_of"


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage; a sparse or opaque tensor has none, and is its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # how torch says that there is no storage; no attribute of the tensor says it
        return id(tensor)


def storage_bytes(tensor: torch.Tensor) -> int:
    """What its storage takes; of a tensor without one, what it would take if it were dense."""
    try:
        return tp.size_hint(tensor.untyped_storage().nbytes())
    except NotImplementedError:  # as above
        return tp.size_hint(tensor.numel()) * tensor.element_size()


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested result; the common case, one tensor, without a tree walk."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for t in tp.tree_leaves(value) if isinstance(t, torch.Tensor)]


def is_effect(node: fx.Node) -> bool:
    """Runs once, on its own side: a mutation, an assert, an effect token, a random draw, a collective."""
    return node.op == "call_function" and (
        node.is_impure(impure_random=False) or tp.is_random(node) or tp.has_effect_token(node) or tp.is_collective(node)
    )


_aliased_argument: dict[Any, int] = {}  # operator -> position of the argument that its result shares, or -1


def schema_alias(node: fx.Node) -> fx.Node | None:
    """The argument whose storage the result is declared to share, if there is one."""
    target = node.target
    if not isinstance(target, tp.OpOverload):
        return None
    if target not in _aliased_argument:
        _aliased_argument[target] = _find_aliased_argument(target)
    i = _aliased_argument[target]
    if i < 0:
        return None
    given = node.args[i] if i < len(node.args) else node.kwargs.get(target._schema.arguments[i].name)
    return given if isinstance(given, fx.Node) else None


def _find_aliased_argument(target: tp.OpOverload) -> int:
    for returned in target._schema.returns:
        if returned.alias_info is not None:
            for i, argument in enumerate(target._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.before_set & returned.alias_info.before_set:
                    return i
    return -1


def result_of(module: fx.GraphModule, node: fx.Node) -> Any:
    """The node's result as fake tensors that tell which parts of it share storage.

    That is ``node.meta["val"]``, but for the call of a nested region: there ``val`` belongs to one call of the
    region and stands at all of them, so the region's own graph is asked.
    """
    region = tp.region_body(module, node)
    if region is None:
        return node.meta.get("val")
    return [n.meta.get("val") if isinstance(n, fx.Node) else n for n in region[0].output_node().args[0]]  # type: ignore[union-attr]


def read_inputs_directly(module: fx.GraphModule) -> None:
    """Lead the readers of what a nested region only hands through (for its backward) to the region's operand,
    and the readers of one result that is returned twice to one of the two.

    As a result of the region it could only be had by running or saving the region's call; as what it is, it
    may be there anyway.  And Inductor (2.13) mixes up such results of two calls of one region: wrong gradients.
    """
    for node in module.graph.nodes:
        region = tp.region_body(module, node)
        if region is None:
            continue
        graph, operands = region
        source = dict(zip(graph.find_nodes(op="placeholder"), operands))  # node of the region -> the same tensor here
        results = graph.output_node().args[0]
        for accessor in sorted(u for u in node.users if tp.is_getitem(u)):
            result = results[accessor.args[1]]  # type: ignore[index]  # a region returns a tuple
            same = source.setdefault(result, accessor) if isinstance(result, fx.Node) else None
            if isinstance(same, fx.Node) and same is not accessor:
                accessor.replace_all_uses_with(same, delete_user_cb=lambda user: user.op != "output")
                if not accessor.users:
                    module.graph.erase_node(accessor)


class Sides:
    """Which nodes have to run in the forward, and which in the backward (see the module's docstring)."""

    def __init__(
        self, module: fx.GraphModule, forward_outputs: Iterable[Any], written: Mapping[fx.Node, tuple[fx.Node, ...]]
    ) -> None:
        self.backward: set[fx.Node] = set()
        self.forward: set[fx.Node] = set()
        seeds: list[fx.Node] = [n for n in forward_outputs if isinstance(n, fx.Node)]
        stale = set(written)  # the inputs and their views
        moving = {n for n, writers in written.items() if not written_in_forward(writers)}  # and those of the backward
        began = False  # AOTAutograd traces all of the forward first, and leaves some nodes of the backward untagged
        for node in module.graph.nodes:
            if node.op == "output":
                continue
            effect = is_effect(node) or "unbacked_bindings" in node.meta  # a size that data decides: known on one side
            late = tp.is_tangent(node) or tp.is_backward_input(node) or tp.must_be_in_backward(node)
            traced_late = tp.tagged_backward(node) or (began and not tp.tagged(node))
            reads_moving = any(i in moving for i in node.all_input_nodes)
            late = late or (traced_late and (effect or reads_moving) and not tp.must_be_in_forward(node))
            late = late or any(i in self.backward for i in node.all_input_nodes)
            began = began or (node.op == "call_function" and (late or tp.tagged_backward(node)))
            if late:
                self.backward.add(node)
                continue
            reads_stale = any(i in stale for i in node.all_input_nodes)
            if effect or reads_stale:
                seeds.append(node)
            if reads_stale and is_view_of(node, stale):
                stale.add(node)
                if reads_moving and is_view_of(node, moving):
                    moving.add(node)
        while seeds:
            node = seeds.pop()
            if node not in self.forward and node not in self.backward:
                self.forward.add(node)
                seeds += node.all_input_nodes

    def region(self, node: fx.Node) -> Region:
        if node in self.backward:
            return Region.BACKWARD
        return Region.FORWARD if node in self.forward else Region.EITHER


def written_in_forward(writers: Iterable[fx.Node]) -> bool:
    """Does the forward overwrite the input that these nodes write (none: the runtime does, after the forward)?"""
    writers = tuple(writers)
    return not writers or not all(map(tp.must_be_in_backward, writers))


def is_view_of(node: fx.Node, bases: set[fx.Node]) -> bool:
    """Does the node's result share storage with one of these nodes, which it reads?"""
    if schema_alias(node) in bases:
        return True
    if tp.is_higher_order(node):  # may not return a view of an input, and its fake result is not to be trusted
        return False
    keys = {storage_key(t) for i in node.all_input_nodes if i in bases for t in tensors_in(i.meta.get("val"))}
    return any(storage_key(t) in keys for t in tensors_in(node.meta.get("val")))


def overwritten_inputs(module: fx.GraphModule) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """Placeholders whose contents change during the step -> the nodes that write them.

    No node at all: the runtime writes it, after the forward.
    """
    replayed = tp.replayed_mutations(module)
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    if replayed:
        for n in module.graph.find_nodes(op="placeholder"):
            if n.meta.get("desc") in replayed:
                found[n] = ()
    for node in module.graph.nodes:
        for base in _written_bases(node):
            if base.op == "placeholder":
                found[base] = (*found.get(base, ()), node)
    return found


def _written_bases(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose storage a call writes in place, views resolved."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for argument, given in zip(schema.arguments, node.args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for base in tp.tree_leaves(given):
                while isinstance(base, fx.Node) and (further := schema_alias(base)) is not None:
                    base = further
                if isinstance(base, fx.Node):
                    yield base


def read_from_clones(module: fx.GraphModule, written: Mapping[fx.Node, tuple[fx.Node, ...]], side: Sides) -> None:
    """Insert the copies that pay, and lead all readers of these inputs to them."""
    for node, writers in written.items():
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        views = _views_of(module, node)
        readers = [u for n in views for u in n.users if u not in views and u not in writers and u.op != "output"]
        in_forward = written_in_forward(writers)
        large = CLONE_PAYS * storage_bytes(value)
        backward_reads = in_forward and any(u in side.backward for u in readers)
        if not backward_reads and all(sum(map(storage_bytes, tensors_in(u.meta.get("val")))) <= large for u in readers):
            continue
        with module.graph.inserting_before(min((*readers, *views[1:], *writers))):
            clone = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        clone.meta["val"] = value.clone()
        clone.meta[COPY_OF] = node.name
        side.forward.add(clone)
        _lead_to(module, {node: clone}, views, writers)


def _views_of(module: fx.GraphModule, base: fx.Node) -> list[fx.Node]:
    """The base and everything that is a view of it, in program order."""
    views = [base]
    for node in module.graph.nodes:
        if node.op == "call_function" and any(i in views for i in node.all_input_nodes):
            if not is_effect(node) and is_view_of(node, set(views)):
                views.append(node)
    return views


def _lead_to(
    module: fx.GraphModule, copies: dict[fx.Node, fx.Node], views: list[fx.Node], writers: tuple[fx.Node, ...]
) -> None:
    """Rebuild the views on the copy of their base, and let their readers read those."""
    for view in views[1:]:
        with module.graph.inserting_after(view):
            copies[view] = module.graph.node_copy(view, lambda n: copies.get(n, n))
        copies[view].meta[COPY_OF] = view.name
        arguments = fx.map_arg((view.args, view.kwargs), lambda n: copies.get(n, n).meta["val"])
        copies[view].meta["val"] = view.target(*arguments[0], **arguments[1])  # type: ignore[operator]  # call_function
    new = set(copies.values())
    for old, copy in copies.items():
        for reader in list(old.users):
            if reader not in new and reader not in writers and reader not in copies and reader.op != "output":
                reader.replace_input_with(old, copy)
