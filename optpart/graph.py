"""The joint graph as data: values are storages, ops are calls that create at least one.

This is what every formulation, solver, checker and report reads.  It imports no torch, is frozen,
and has a JSON form, so a captured Llama, a random graph and a peer's published instance are one type.

    a0 ──mm──> v1 ──view──> . ──gelu──> v2          two ops (mm, gelu), three values (a0, v1, v2):
                                                    the view shares v1's storage, so it is neither.

Definitions (they hold everywhere in this package):

* **Value**: one storage.  Views, ``getitem`` and ``detach`` share their base's storage: they cost
  nothing to redo, add no bytes, and keep the base alive.
* **Op**: one call.  It ``reads`` and ``writes`` values; a call with several outputs is one op with
  several values, recomputed together and saved one by one.
* **Region** of an op: FORWARD (a forward output needs it: runs once in the forward, and again in the
  backward if ``recomputable``), BACKWARD (depends on a tangent or must run there: runs once, in the
  backward), EITHER (only the backward needs it, but no tangent goes in: it may run in the forward, so
  that its result is saved, or in the backward; running it in both is a recompute).
* ``after``: ops that have to be executed earlier although no value flows (the order of random draws,
  a buffer's update after its last read).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from optpart.units import Bytes


class Region(StrEnum):
    """Where an op may run; see the module's docstring."""

    FORWARD = "forward"
    BACKWARD = "backward"
    EITHER = "either"


class ValueKind(StrEnum):
    """Where a value comes from, which decides how long it lives when nobody in the graph reads it."""

    STATIC = "static"  # parameters, buffers, constants: resident before, during and after the step
    INPUT = "input"  # other forward inputs: held by the caller for the whole step
    TANGENT = "tangent"  # gradients of the outputs: there when the backward starts
    COMPUTED = "computed"  # written by an op of this graph


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a cost model may know of a tensor argument.  ``stride`` is in elements; ``dtype`` is "float32"."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str


# A call's argument in JSON form: None, bool, int, float, str, a TensorSpec, or a list of these.
Argument = Any


@dataclass(frozen=True, slots=True)
class Signature:
    """A call without its data: all that a cost model reads.

    ``target`` is the operator's qualified name ("aten.mm.default"); ``outputs`` has one TensorSpec for
    each tensor that the call returns, in order (None where it returns something else).
    """

    target: str
    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[TensorSpec | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """One storage.  ``savable`` is False with a ``reason`` ("tagged MUST_RECOMPUTE", ...); ``kind`` and
    ``producer`` say where it comes from (``producer`` is None unless ``kind`` is COMPUTED)."""

    id: int
    name: str
    nbytes: Bytes
    kind: ValueKind = ValueKind.COMPUTED
    producer: int | None = None
    savable: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One call that creates storage or has an effect.

    ``recomputable`` is False with a ``reason`` ("random", "MUST_SAVE", "collective", ...).  ``cheap``
    says that redoing it is taken for free by default (PyTorch's own list of such ops).
    ``rng_state`` is the value that holds the state of the generator from before the call: written by
    the forward run and read by every run in the backward, so a recompute draws the same numbers.
    """

    id: int
    name: str
    signature: Signature
    region: Region
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    recomputable: bool = True
    reason: str = ""
    cheap: bool = True
    after: tuple[int, ...] = ()
    rng_state: int | None = None

    @property
    def target(self) -> str:
        return self.signature.target

    @property
    def creates(self) -> tuple[int, ...]:
        """``writes``, and the generator's state if there is one."""
        return self.writes if self.rng_state is None else (*self.writes, self.rng_state)

    @property
    def reads_again(self) -> tuple[int, ...]:
        """What a run in the backward reads."""
        return self.reads if self.rng_state is None else (*self.reads, self.rng_state)


@dataclass(frozen=True)
class Graph:
    """Values and ops by id (``values[i].id == i``), ops in program order.

    ``forward_outputs`` and ``backward_outputs`` are the values that the caller receives, without
    duplicates and without inputs handed through.  A *bare* graph (``joint`` False: a published
    instance, a random graph) has no forward and backward: one list of ops, each repeatable.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    forward_outputs: tuple[int, ...] = ()
    backward_outputs: tuple[int, ...] = ()
    joint: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        check_graph(self)

    @functools.cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value the ops that read it, in program order."""
        readers: list[list[int]] = [[] for _ in self.values]
        for op in self.ops:
            for value in dict.fromkeys(op.reads):
                readers[value].append(op.id)
        return tuple(tuple(r) for r in readers)

    def in_region(self, *regions: Region) -> tuple[Op, ...]:
        """The ops of these regions in program order."""
        return tuple(op for op in self.ops if op.region in regions)


def check_graph(graph: Graph) -> None:
    """Raise ValueError with the first broken rule of a Graph: ids, producers, program order, regions."""
    for i, value in enumerate(graph.values):
        if value.id != i:
            raise ValueError(f"value {value.name!r} has id {value.id} at position {i}")
        if (value.producer is None) == (value.kind is ValueKind.COMPUTED):
            raise ValueError(f"value {value.name!r}: kind {value.kind} with producer {value.producer}")
        if value.nbytes < 0:
            raise ValueError(f"value {value.name!r} has {value.nbytes} bytes")
    written: set[int] = {v.id for v in graph.values if v.kind is not ValueKind.COMPUTED}
    for i, op in enumerate(graph.ops):
        if op.id != i:
            raise ValueError(f"op {op.name!r} has id {op.id} at position {i}")
        missing = [v for v in op.reads if v not in written]
        if missing:
            raise ValueError(f"op {op.name!r} reads {graph.values[missing[0]].name!r} before it is written")
        if any(a >= i for a in op.after):
            raise ValueError(f"op {op.name!r} has to run after a later op")
        for v in op.creates:
            if v in written or graph.values[v].producer != i:
                raise ValueError(f"op {op.name!r} writes {graph.values[v].name!r}, which is not its own")
            written.add(v)
        if graph.joint and op.region is not Region.BACKWARD:
            for v in op.reads:
                producer = graph.values[v].producer
                wrong = producer is not None and graph.ops[producer].region is Region.BACKWARD
                if wrong or graph.values[v].kind is ValueKind.TANGENT:
                    raise ValueError(f"{op.region} op {op.name!r} reads {graph.values[v].name!r} of the backward")
                if op.region is Region.FORWARD and producer is not None and graph.ops[producer].region is Region.EITHER:
                    raise ValueError(f"forward op {op.name!r} reads {graph.values[v].name!r}, whose op is not in the forward")
    unwritten = [v.name for v in graph.values if v.id not in written]
    if unwritten:
        raise ValueError(f"value {unwritten[0]!r} is written by no op")


# ---------------------------------------------------------------------------------------------- JSON


def _argument_to_json(arg: Argument) -> Any:
    if isinstance(arg, TensorSpec):
        return {"shape": list(arg.shape), "stride": list(arg.stride), "dtype": arg.dtype, "device": arg.device}
    if isinstance(arg, (list, tuple)):
        return [_argument_to_json(a) for a in arg]
    return arg


def _argument_from_json(data: Any) -> Argument:
    if isinstance(data, Mapping):
        return TensorSpec(tuple(data["shape"]), tuple(data["stride"]), data["dtype"], data["device"])
    if isinstance(data, list):
        return tuple(_argument_from_json(d) for d in data)
    return data


def signature_to_json(s: Signature) -> dict[str, Any]:
    return {
        "target": s.target,
        "args": [_argument_to_json(a) for a in s.args],
        "kwargs": {k: _argument_to_json(a) for k, a in s.kwargs},
        "outputs": [_argument_to_json(o) for o in s.outputs],
    }


def signature_from_json(d: Mapping[str, Any]) -> Signature:
    return Signature(
        target=d["target"],
        args=tuple(_argument_from_json(a) for a in d.get("args", ())),
        kwargs=tuple((k, _argument_from_json(a)) for k, a in d.get("kwargs", {}).items()),
        outputs=tuple(_argument_from_json(o) for o in d.get("outputs", ())),
    )


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """A JSON object; fields at their default are left out, so that small graphs stay readable."""
    values = []
    for v in graph.values:
        item: dict[str, Any] = {"name": v.name, "nbytes": v.nbytes}
        item |= {"kind": v.kind.value} if v.kind is not ValueKind.COMPUTED else {}
        item |= {"savable": False, "reason": v.reason} if not v.savable else {}
        values.append(item)
    ops = []
    for op in graph.ops:
        item = {"name": op.name, "signature": signature_to_json(op.signature), "region": op.region.value}
        item |= {"reads": list(op.reads), "writes": list(op.writes)}
        item |= {"recomputable": False, "reason": op.reason} if not op.recomputable else {}
        item |= {"cheap": False} if not op.cheap else {}
        item |= {"after": list(op.after)} if op.after else {}
        item |= {"rng_state": op.rng_state} if op.rng_state is not None else {}
        ops.append(item)
    return {
        "format": "optpart-graph-1",
        "name": graph.name,
        "joint": graph.joint,
        "values": values,
        "ops": ops,
        "forward_outputs": list(graph.forward_outputs),
        "backward_outputs": list(graph.backward_outputs),
    }


def graph_from_json(data: Mapping[str, Any]) -> Graph:
    """The inverse of :func:`graph_to_json`.

    Raises:
        ValueError: another format, or a graph that breaks a rule of :func:`check_graph`.
    """
    if data.get("format") != "optpart-graph-1":
        raise ValueError(f"not a graph of this package: format is {data.get('format')!r}, expected 'optpart-graph-1'")
    producer = {v: i for i, op in enumerate(data["ops"]) for v in _writes(op)}
    values = tuple(
        Value(
            id=i,
            name=v["name"],
            nbytes=Bytes(v["nbytes"]),
            kind=ValueKind(v.get("kind", ValueKind.COMPUTED)),
            producer=producer.get(i),
            savable=v.get("savable", True),
            reason=v.get("reason", ""),
        )
        for i, v in enumerate(data["values"])
    )
    ops = tuple(
        Op(
            id=i,
            name=op["name"],
            signature=signature_from_json(op["signature"]),
            region=Region(op["region"]),
            reads=tuple(op["reads"]),
            writes=tuple(op["writes"]),
            recomputable=op.get("recomputable", True),
            reason=op.get("reason", "") if not op.get("recomputable", True) else "",
            cheap=op.get("cheap", True),
            after=tuple(op.get("after", ())),
            rng_state=op.get("rng_state"),
        )
        for i, op in enumerate(data["ops"])
    )
    return Graph(
        values=values,
        ops=ops,
        forward_outputs=tuple(data["forward_outputs"]),
        backward_outputs=tuple(data["backward_outputs"]),
        joint=data["joint"],
        name=data["name"],
    )


def _writes(op: Mapping[str, Any]) -> Sequence[int]:
    state = op.get("rng_state")
    return op["writes"] if state is None else [*op["writes"], state]
