"""Joint fx graph -> torch-free Graph on storages, and the map back.

    joint GraphModule ──prepare──> copy ──clones of overwritten inputs──> storages ──> regions ──> Graph
                      (PyTorch's own passes)                      (views resolved)  (who runs where)

Every fx node is one of

* an **op** (it creates a storage, or has an effect): a node of the Graph;
* an **accessor** (``getitem`` of an op): the *root* of one of the op's values, what is saved;
* a **view** of one or more storages: re-run next to its reader, never saved when its base can be;
* a **size** (SymInt arithmetic): saved as it is when the backward reads it;
* an input, an attribute, or the output.

What may be redone, and why not (``Op.reason``), follows section 1.7 of AOTAutograd's contract: random
draws need the generator's state, effects and collectives run once, nothing that reads an input which
is overwritten later is run again, and the user's checkpoint tags win.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.capture_sides import (
    Sides,
    is_effect,
    overwritten_inputs,
    read_from_clones,
    read_inputs_directly,
    result_of,
    schema_alias,
    storage_bytes,
    storage_key,
    tensors_in,
    written_in_forward,
)
from optpart.graph import Graph, Op, Region, Value, ValueKind
from optpart.signatures import Signatures
from optpart.units import Bytes


@dataclass(frozen=True)
class Capture:
    """A Graph and where its parts stand in the (prepared, own) copy of the joint module.

    ``cores[o]`` is the fx node of op o; ``roots[v]`` the nodes that hold value v's whole storage as the
    op returned it (an input's placeholder, the call, or its getitems); ``storages[n]`` the values whose
    storage node n's result shares.  ``overwritten``: inputs that do not hold any more what the forward read.
    """

    graph: Graph
    joint: fx.GraphModule
    num_fwd_outputs: int
    static_nodes: tuple[fx.Node, ...]
    cores: tuple[fx.Node, ...]
    roots: tuple[tuple[fx.Node, ...], ...]
    storages: dict[fx.Node, tuple[int, ...]]
    overwritten: frozenset[fx.Node]

    @functools.cached_property
    def op_of(self) -> dict[fx.Node, int]:
        """Core node -> op id."""
        return {node: o for o, node in enumerate(self.cores)}


def capture(
    joint: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    redo_random: bool = True,
    name: str = "",
) -> Capture:
    """Capture a joint module as AOTAutograd hands it to a ``partition_fn``.

    Args:
        joint: the joint module; it keeps its graph (dead code is removed).
        num_fwd_outputs: how many of its outputs are the forward's.
        static_lifetime_input_indices: which primals (by position) are parameters and buffers.
        redo_random: random ops may be recomputed from the generator's saved state.
    """
    module = tp.prepare_joint(joint)
    read_inputs_directly(module)
    forward_outputs, backward_outputs = tp.split_outputs(module, num_fwd_outputs)
    written = overwritten_inputs(module)
    side = Sides(module, forward_outputs, written)
    read_from_clones(module, written, side)
    overwritten = {n for n, writers in written.items() if written_in_forward(writers)}
    primals = [n for n in module.graph.find_nodes(op="placeholder") if tp.is_parameter_like(n)]
    static = tuple(primals[i] for i in static_lifetime_input_indices or () if i < len(primals))
    builder = _Builder(module, side, frozenset(static), frozenset(written), frozenset(overwritten), redo_random)
    builder.run()
    graph = builder.graph(forward_outputs, backward_outputs, name)
    return Capture(
        graph=graph,
        joint=module,
        num_fwd_outputs=num_fwd_outputs,
        static_nodes=static,
        cores=tuple(builder.cores),
        roots=tuple(tuple(r.values()) for r in builder.roots),
        storages=builder.storages,
        overwritten=frozenset(overwritten),
    )


class _Builder:
    """One pass over the nodes in order: storages, values, ops."""

    def __init__(
        self,
        module: fx.GraphModule,
        side: Sides,
        static: frozenset[fx.Node],
        written: frozenset[fx.Node],
        overwritten: frozenset[fx.Node],
        redo_random: bool,
    ) -> None:
        self.module, self.side, self.static = module, side, static
        self.written, self.overwritten = written, overwritten
        self.redo_random = redo_random
        self.cheap = tp.cheap_to_redo()
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.cores: list[fx.Node] = []
        self.roots: list[dict[int, fx.Node]] = []  # value -> position in the op's result -> node
        self.storages: dict[fx.Node, tuple[int, ...]] = {}
        self.leaves: dict[fx.Node, Any] = {}  # nested result of an op, with a value id at each tensor
        self.keys: dict[int, int] = {}  # storage of a fake tensor -> value
        self.signatures = Signatures()
        self.waits: dict[fx.Node, tuple[int, ...]] = {}  # a size, or a number from a tensor -> the ops it waits for
        self.touched: set[int] = set()  # values that an overwritten input's storage is
        self.last_random: dict[Region, int] = {}
        self.last_effect: int | None = None

    def run(self) -> None:
        for node in self.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._input(node)
            elif node.op == "call_function":
                if tp.is_getitem(node) and isinstance(node.args[0], fx.Node) and node.args[0] in self.leaves:
                    self._accessor(node)
                else:
                    self._call(node)

    def _input(self, node: fx.Node) -> None:
        self.storages[node] = ()
        tensor = node.meta.get("val")
        if node.op == "get_attr" and tensor is None:
            tensor = getattr(self.module, str(node.target), None)
        if not isinstance(tensor, torch.Tensor):
            return
        kind = ValueKind.STATIC if node in self.static or node.op == "get_attr" else ValueKind.INPUT
        key = storage_key(tensor)
        v = self.keys.get(key)
        if node in self.side.backward:  # its fake tensor may be that of the input whose new contents it belongs to
            kind, v = ValueKind.TANGENT, None
        if v is None:
            fixed = node in self.overwritten
            reason = "overwritten before the backward" if fixed else ""
            v = self._value(node.name, storage_bytes(tensor), kind, None, not fixed, reason)
            self.keys.setdefault(key, v)
        self.roots[v][len(self.roots[v])] = node
        self.storages[node] = (v,)
        if node in self.written:
            self.touched.add(v)

    def _value(self, name: str, nbytes: int, kind: ValueKind, producer: int | None, savable: bool, reason: str) -> int:
        self.values.append(Value(len(self.values), name, Bytes(nbytes), kind, producer, savable, reason))
        self.roots.append({})
        return len(self.values) - 1

    def _accessor(self, node: fx.Node) -> None:
        """``getitem`` of an op: the position in the op's result says which storage, whatever ``val`` is."""
        parent, index = node.args
        leaf = self.leaves[parent][index]  # type: ignore[index]  # a getitem's arguments are (node, position)
        ids = tuple(dict.fromkeys(v for v in tp.tree_leaves(leaf) if v is not None))
        self.storages[node] = ids
        if isinstance(leaf, (list, tuple)):
            self.leaves[node] = leaf
        elif leaf is not None and self.values[leaf].producer is not None:
            roots = self.roots[leaf]
            roots.setdefault(len(roots), node)

    def _call(self, node: fx.Node) -> None:
        reads = tuple(dict.fromkeys(v for i in node.all_input_nodes for v in self.storages[i]))
        tensors = tensors_in(node.meta.get("val"))
        shared = {storage_key(t): v for i in node.all_input_nodes for t in tensors_in(i.meta.get("val")) for v in self._held(i, t)}
        alias = schema_alias(node)
        waits = tuple(dict.fromkeys(w for i in node.all_input_nodes for w in self.waits.get(i, ())))
        region = tp.is_higher_order(node)
        fresh = [t for t in tensors if alias is None and (region or storage_key(t) not in shared)]
        effect = is_effect(node)
        reads_data = not tensors and bool(reads) and torch.Tag.data_dependent_output in getattr(node.target, "tags", ())
        if not fresh and not effect and not reads_data:
            found = self.storages[alias] if alias is not None else [shared[storage_key(t)] for t in tensors]
            self.storages[node] = tuple(dict.fromkeys(found))
            if not tensors:  # a size is known once the tensor is there, also to those that do not read the tensor
                waits = tuple(dict.fromkeys((*waits, *(p for v in reads if (p := self.values[v].producer) is not None))))
            if waits:
                self.waits[node] = waits
            return
        self._op(node, reads, alias, waits, reads_data)

    def _held(self, node: fx.Node, tensor: torch.Tensor) -> tuple[int, ...]:
        """The value of one tensor of an input node: by its place if the node is one tensor, else by key."""
        ids = self.storages[node]
        if len(ids) == 1:
            return ids
        key = storage_key(tensor)
        return (self.keys[key],) if self.keys.get(key) in ids else ()

    def _op(
        self,
        node: fx.Node,
        reads: tuple[int, ...],
        alias: fx.Node | None,
        waits: tuple[int, ...],
        reads_data: bool,
    ) -> None:
        o = len(self.ops)
        region = self.side.region(node)
        recomputable, reason, with_state = self._may_rerun(node, region, reads, reads_data)
        savable, why = self._may_save(node, region, recomputable)
        writes: dict[int, int] = {}

        def place(leaf: Any, result: Any) -> Any:
            if isinstance(leaf, (list, tuple)):
                return [place(*both) for both in zip(leaf, result)]
            if not isinstance(leaf, torch.Tensor):
                return None
            if alias is not None:
                return next(iter(self.storages[alias]), None)
            key = storage_key(result)
            if key not in writes:
                name = node.name if not writes else f"{node.name}.{len(writes)}"
                writes[key] = self._value(name, storage_bytes(leaf), ValueKind.COMPUTED, o, savable, why)
                self.keys[key] = writes[key]
            return writes[key]

        leaves = place(node.meta.get("val"), result_of(self.module, node))
        self.storages[node] = tuple(dict.fromkeys(v for v in tp.tree_leaves(leaves) if v is not None))
        if isinstance(leaves, list):
            self.leaves[node] = leaves
        elif isinstance(leaves, int) and leaves in writes.values():
            self.roots[leaves][0] = node
        state = None
        if with_state:
            nbytes = storage_bytes(tp.fake_rng_state(node))
            state = self._value(f"{node.name}.rng_state", nbytes, ValueKind.COMPUTED, o, True, "")
        if reads_data:
            self.waits[node] = (o,)
        self.ops.append(
            Op(
                id=o,
                name=node.name,
                signature=self.signatures.of(node),
                region=region,
                reads=reads,
                writes=tuple(writes.values()),
                recomputable=recomputable,
                reason=reason,
                cheap=recomputable and not with_state and (self.cheap(node) or tp.must_recompute(node)),
                after=self._after(node, o, region, waits),
                rng_state=state,
            )
        )
        self.cores.append(node)

    def _after(self, node: fx.Node, o: int, region: Region, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Draws stay in order, effects stay in order, and a write waits for what ran before it."""
        after = set(waits)
        if tp.is_random(node):
            if region in self.last_random:
                after.add(self.last_random[region])
            self.last_random[region] = o
        elif is_effect(node):
            if self.last_effect is not None:
                after.add(self.last_effect)
            self.last_effect = o
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.is_mutable and node.args and isinstance(node.args[0], fx.Node):
                target = set(self.storages[node.args[0]])
                after |= {op.id for op in self.ops if target & set(op.reads) and op.region is region}
        return tuple(sorted(after))

    # ------------------------------------------------------------------- what may be redone or saved

    def _may_rerun(self, node: fx.Node, region: Region, reads: tuple[int, ...], reads_data: bool) -> tuple[bool, str, bool]:
        """(recomputable, why not, needs the generator's state)."""
        if region is Region.BACKWARD:
            return False, "runs in the backward", False
        tagged = tp.must_recompute(node)
        if tp.is_random(node):
            if tp.has_own_generator(node) or not (tagged or self.redo_random) or self._tagged_save(node):
                return False, "random", False
            if any(v in self.touched for v in reads):
                return False, "reads an input that is overwritten", False
            return True, "", True
        if tp.has_effect_token(node):
            return False, "has an effect", False
        if tp.is_collective(node) and not tagged:
            return False, "collective", False
        if node.is_impure(impure_random=False) and not tp.is_collective(node):
            return False, "mutates or has an effect", False
        if any(v in self.touched for v in reads):
            return False, "reads an input that is overwritten", False
        if reads_data or "unbacked_bindings" in node.meta:
            return False, "its shape or value depends on data", False
        if self._tagged_save(node):
            return False, "tagged MUST_SAVE", False
        if tp.is_higher_order(node) and not tagged:
            return False, "higher-order op", False
        if tp.is_custom(node) and not tagged:
            return False, "custom op of unknown cost", False
        return True, "", False

    def _tagged_save(self, node: fx.Node) -> bool:
        tags = [node.meta.get("recompute"), *(u.meta.get("recompute") for u in node.users if tp.is_getitem(u))]
        return tp.CheckpointPolicy.MUST_SAVE in tags

    def _may_save(self, node: fx.Node, region: Region, recomputable: bool) -> tuple[bool, str]:
        if region is Region.BACKWARD:
            return False, "computed in the backward"
        if tp.must_recompute(node) and recomputable and not tp.is_random(node):
            return False, f"tagged {node.meta['recompute'].name}"
        if tp.is_opaque(node):
            return False, "not a tensor"
        return True, ""

    # ------------------------------------------------------------------------------------------ graph

    def _hoist(self) -> None:
        """Move ops that are free to run on both sides right behind the last op that they wait for.

        AOTAutograd traces most of them in the middle of the backward.  If one runs in the forward, so
        that its small result is saved (a mask, say), it should run while its large input is still there.
        """
        place: list[tuple[int, ...]] = []
        for op in self.ops:
            if op.region is not Region.EITHER:
                place.append((op.id,))
                continue
            producers = [p for v in op.reads if (p := self.values[v].producer) is not None]
            place.append((*max((place[p] for p in (*producers, *op.after)), default=(-1,)), op.id))
        order = sorted(range(len(self.ops)), key=place.__getitem__)
        new = {old: i for i, old in enumerate(order)}
        self.cores = [self.cores[o] for o in order]
        self.ops = [
            replace(self.ops[o], id=new[o], after=tuple(sorted(new[a] for a in self.ops[o].after))) for o in order
        ]
        self.values = [v if v.producer is None else replace(v, producer=new[v.producer]) for v in self.values]

    def graph(self, forward_outputs: Iterable[Any], backward_outputs: Iterable[Any], name: str) -> Graph:
        self._hoist()

        def computed(outputs: Iterable[Any]) -> tuple[int, ...]:
            ids = dict.fromkeys(v for n in outputs if isinstance(n, fx.Node) for v in self.storages[n])
            return tuple(v for v in ids if self.values[v].producer is not None)

        return Graph(
            values=tuple(self.values),
            ops=tuple(self.ops),
            forward_outputs=computed(forward_outputs),
            backward_outputs=computed(backward_outputs),
            name=name,
        )
