"""The protocol of cost models, their names, and the way from a Graph to a Problem.

A cost model is a pure function of a call's :class:`~optpart.graph.Signature`: two calls with the same
target, shapes, strides, dtypes and scalars cost the same, so a graph is priced by pricing each distinct
signature once.  Views are no ops of a Graph and cost nothing.

================  =========================================================================================
name              run time of a call
================  =========================================================================================
``roofline``      max(FLOPs / peak rate, bytes / bandwidth) on a device: the default
``bytes``         bytes moved / bandwidth
``flops``         FLOPs / peak rate (torch's counter)
``unit``          1, whatever the call: number of recomputes, published tables
``profiled``      measured on the machine at hand, and kept (``profiled:FILE``: a profile of another machine)
================  =========================================================================================

``roofline:h100`` names a device; without one it is the device that the graph's tensors are on.  ``roofline:here`` takes
the ceilings of this machine, measured on request (``cost.calibrate``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from optpart.cost.bytes import BytesModel, tensors
from optpart.cost.calibrate import find_device
from optpart.cost.devices import Device, default_device, unknown_name
from optpart.cost.flops import FlopsModel
from optpart.cost.profiled import Profiled, load_profile
from optpart.cost.roofline import Roofline
from optpart.cost.workspace import footprints, with_measured_memory
from optpart.graph import Graph, Signature
from optpart.problem import BARE_RULE, MemoryRule, Problem
from optpart.units import Bytes, Microseconds


class CostModel(Protocol):
    """What a cost model has to offer; ``runtime`` has to be pure."""

    @property
    def name(self) -> str:
        """A short name for reports: "roofline:h100-sxm"."""

    def runtime(self, signature: Signature) -> Microseconds:
        """What one run of the call takes; finite and not negative."""

    def key(self) -> str:
        """All that the run times depend on beside the signature (model, version, device row): for cache keys."""


@dataclass(frozen=True, slots=True)
class UnitModel:
    """Every op costs 1 (an abstract unit, not a microsecond)."""

    name: str = "unit"

    def runtime(self, signature: Signature) -> Microseconds:
        return Microseconds(1.0)

    def key(self) -> str:
        return "unit 1"


DEFAULT_COST_MODEL = "roofline"
ON_DEVICE: dict[str, Callable[[Device], CostModel]] = {"roofline": Roofline, "bytes": BytesModel, "flops": FlopsModel}


def get_cost_model(spec: str | CostModel, device: str | None = None) -> CostModel:
    """The cost model called ``spec`` ("roofline", "roofline:h100", "unit"); a model is handed back as it is.

    ``device`` (a row of the device table, or a torch device such as "cuda") counts where ``spec`` names
    none; with neither it is the CPU.

    Raises:
        ValueError: no such model or device, or "here" is not calibrated; the message says which there are.
    """
    if not isinstance(spec, str):
        return spec
    kind, _, row = spec.partition(":")
    if kind == "unit" and not row:
        return UnitModel()
    if kind == "profiled":
        return load_profile(row) if row else Profiled()
    if kind not in ON_DEVICE:
        raise unknown_name("cost model", spec, (*ON_DEVICE, "unit", "profiled"))
    return ON_DEVICE[kind](find_device(row or device or "cpu"))


def cost_key(spec: str | CostModel) -> str:
    """The cache key of a setting before there is a graph.

    A name without a device stands for the CPU's row or that of the card in this machine, depending on
    the graph: the key holds both.

    Raises:
        ValueError: no such cost model.
    """
    if isinstance(spec, str) and spec in ON_DEVICE:
        return " | ".join(get_cost_model(spec, device).key() for device in ("cpu", "cuda"))
    return get_cost_model(spec).key()


def device_of(graph: Graph) -> str:
    """The torch device type of a graph's tensors: the first that is not the CPU, else "cpu"."""
    for op in graph.ops:
        for spec in (*op.signature.outputs, *tensors(op.signature)):
            if spec is not None and not spec.device.startswith("cpu"):
                return spec.device.partition(":")[0]
    return "cpu"


def price(graph: Graph, model: CostModel) -> tuple[Microseconds, ...]:
    """Run times by op id; each distinct signature is priced once."""
    known: dict[Signature, Microseconds] = {}
    for op in graph.ops:
        if op.signature not in known:
            known[op.signature] = model.runtime(op.signature)
    return tuple(known[op.signature] for op in graph.ops)


def build_problem(
    graph: Graph,
    model: str | CostModel = DEFAULT_COST_MODEL,
    rule: MemoryRule | None = None,
    *,
    measure_memory: bool = False,
) -> Problem:
    """The problem of a graph without a budget, with run times from ``model``.

    Args:
        graph: as it was captured.
        model: a name or a cost model.
        rule: how memory is counted, by default ``MemoryRule()``, or ``BARE_RULE`` for a bare graph.
        measure_memory: take workspaces from measurements (``cost.workspace``), else there are none.  A model
            that has a method ``footprints(signatures)`` is asked instead.

    Raises:
        ValueError: no such cost model.
    """
    model = get_cost_model(model, default_device(device_of(graph)).name)
    rule = rule or (MemoryRule() if graph.joint else BARE_RULE)
    problem = Problem(graph, price(graph, model), tuple(Bytes(0) for _ in graph.ops), rule, cost_model=model.name)
    return with_measured_memory(problem, getattr(model, "footprints", footprints)) if measure_memory else problem
