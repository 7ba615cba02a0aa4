"""PyTorch's own partitions as Plans of ours: the same problem, the same simulator, the same checker.

    Capture ──copy──> PyTorch's partitioner ──> forward, backward graph ──node names──> op ids ──> Plan

``default`` keeps what autograd would keep, ``min-cut`` is the default of ``torch.compile``, ``budget`` is
min-cut under ``activation_memory_budget``, PyTorch's fraction of the bytes that its cut saves.  All three
keep the names of the joint graph's nodes, so the call behind a node, and with it the op, is known by name.
A random op that is redone is wrapped (``run_and_save_rng_state`` in the forward, ``run_with_rng_state`` in
the backward) and loses its name; it is found by the call that it wraps.
Capture's copies of inputs that the step overwrites are ours: PyTorch is given the graph without them.  In its
Plan they run at the start of the forward, and take no bytes in its numbers.

PyTorch is not the yardstick for what is right.  Its partition may recompute what must run once, re-read
an input that was overwritten, draw new random numbers, or fail: then the answer says so in words.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.capture_sides import COPY_OF
from optpart.graph import ValueKind
from optpart.liveness import simulate
from optpart.measuring import measure_backend
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes
from optpart.validate import validate

logger = logging.getLogger(__name__)

METHODS = ("default", "min-cut", "budget")


class NoPlan(RuntimeError):
    """PyTorch's partitioner failed, or made graphs that no Plan describes; the message says which."""


@dataclass(frozen=True)
class PytorchAnswer:
    """One of PyTorch's partitions, in our terms.  Sizes in bytes, ``overhead`` a fraction, ``seconds`` wall time.

    ``plan`` is None if there is none, and then so are the numbers.  ``problem`` says what is wrong: why there
    is no plan, or what in it breaks a rule ("" = nothing).  ``saved_bytes`` counts what the backward graph is
    handed; should an op run again although its value is saved, ``peak_bytes`` takes the reruns' values.
    ``measured_peak_bytes``: the allocator's, everything resident included, if a step was run.
    """

    method: str
    budget: float | None
    plan: Plan | None
    peak_bytes: Bytes | None
    saved_bytes: Bytes | None
    overhead: float | None
    problem: str
    seconds: float
    measured_peak_bytes: Bytes | None = None


def pytorch_plan(capture: Capture, method: str, budget: float | None = None) -> Plan:
    """The plan that one of PyTorch's partitioners makes of a captured graph.

    Args:
        capture: the graph; its joint module is copied, not changed.
        method: "default", "min-cut" or "budget".
        budget: PyTorch's ``activation_memory_budget``, 0.0 to 1.0, for "budget" and for nothing else.

    Raises:
        ValueError: no such method, or a budget where there must be none.
        NoPlan: PyTorch fails, or makes graphs that no Plan describes.
    """
    return _read(capture, *_partition(capture, method, budget))


def pytorch_answer(capture: Capture, problem: Problem, method: str, budget: float | None = None) -> PytorchAnswer:
    """:func:`pytorch_plan` with its numbers and its faults; never raises for what PyTorch does.

    Raises:
        ValueError: as :func:`pytorch_plan`.
    """
    start, graph = time.perf_counter(), capture.graph
    try:
        forward, backward = _partition(capture, method, budget)
        plan = _read(capture, forward, backward)
    except NoPlan as e:
        return PytorchAnswer(method, budget, None, None, None, None, str(e), time.perf_counter() - start)
    seconds = time.perf_counter() - start
    redrawn = _redrawn(capture, plan, backward)
    names = ", ".join(repr(capture.cores[o].name) for o in redrawn)
    faults = [f"the backward draws other random numbers than the forward: {names}"] if redrawn else []
    faults += [f"{node!r} in the backward reads {read!r}, which is overwritten" for node, read in _too_late(capture, backward)]
    faults += validate(problem, plan).faults
    not_kept = {graph.ops[o].rng_state for o in redrawn} | {v for o in _copies(capture) for v in graph.ops[o].writes}
    numbers = simulate(_without(problem, not_kept), plan)
    again = (graph.ops[o].rng_state for o in plan.recomputes() if o not in redrawn)
    saved = (_handed_over(capture, backward) | {v for v in again if v is not None}) - {*graph.forward_outputs}
    return PytorchAnswer(
        method=method,
        budget=budget,
        plan=plan,
        peak_bytes=numbers.peak_bytes,
        saved_bytes=Bytes(sum(problem.sizes[v] for v in saved)),
        overhead=numbers.overhead,
        problem="; ".join(faults[:3]),
        seconds=seconds,
    )


def measured_answer(
    answer: PytorchAnswer, model: Callable[..., Any], args: Sequence[Any], *, compiler: str = "aot_eager", seed: int = 0
) -> PytorchAnswer:
    """The answer with the peak of a step that runs PyTorch's own two graphs, not ours of the same plan.

    Under Inductor there is no "default": the answer comes back as it is, and so it does if the step fails.
    """
    if compiler == "inductor":
        if answer.method == "default":
            return answer
        backend = tp.compiler_backend(compiler, None)
    else:
        partition = tp.default_partition if answer.method == "default" else tp.min_cut_partition
        backend = tp.compiler_backend(compiler, partition)
    try:
        with tp.pytorch_budget(1.0 if answer.budget is None else answer.budget):
            found = measure_backend(model, args, backend, seed=seed, repeats=1)
    except Exception as e:  # what PyTorch's partition trips over is no failure of ours
        logger.info("PyTorch's %s partition does not run: %s", answer.method, e)
        return answer
    return replace(answer, measured_peak_bytes=found.measured_peak_bytes)


# ----------------------------------------------------------------------------------------- partitioning


def _partition(capture: Capture, method: str, budget: float | None) -> tuple[fx.GraphModule, fx.GraphModule]:
    if method not in METHODS:
        raise ValueError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    if (budget is None) == (method == "budget") or not 0.0 <= (budget or 0.0) <= 1.0:
        raise ValueError(f"budget={budget!r} with method {method!r}: 'budget' takes a number from 0.0 to 1.0, the others none")
    module = tp.copy_module(capture.joint)
    _without_copies(module)
    primals = [n for n in module.graph.find_nodes(op="placeholder") if tp.is_parameter_like(n)]
    static = {n.name for n in capture.static_nodes}
    partition = tp.default_partition if method == "default" else tp.min_cut_partition
    try:
        with _fake_mode(module), tp.pytorch_budget(1.0 if budget is None else budget):
            return partition(
                module,
                (),
                num_fwd_outputs=capture.num_fwd_outputs,
                static_lifetime_input_indices=[i for i, n in enumerate(primals) if n.name in static],
            )
    except Exception as e:  # whatever it trips over is its answer
        raise NoPlan(f"PyTorch's partitioner failed: {type(e).__name__}: {str(e).partition(chr(10))[0]}") from e


@contextlib.contextmanager
def _fake_mode(module: fx.GraphModule) -> Iterator[None]:
    """The mode that the graph was traced in, active as it is when AOTAutograd calls a partitioner."""
    values = (n.meta.get("val") for n in module.graph.nodes)
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    with mode or contextlib.nullcontext():
        yield


# ---------------------------------------------------------------------------------------------- reading


def _read(capture: Capture, forward: fx.GraphModule, backward: fx.GraphModule) -> Plan:
    """Execution lists in the order of the two graphs.

    A rerun whose result nobody reads is left out.  PyTorch keeps some (random ops and assertions survive
    its removal of dead code), which costs time under aot_eager and is no decision to recompute.
    """
    early = _executed(capture, forward)
    late = _executed(capture, backward)
    first = set(early.values())
    used = {n for n in backward.graph.nodes if n.op == "output" or (n in late and late[n] not in first)}
    for node in reversed(backward.graph.nodes):
        if node in used:
            used.update(node.all_input_nodes)
    copies = [o for o in _copies(capture) if o not in first]
    return Plan((*copies, *early.values()), tuple(o for node, o in late.items() if node in used))


def _executed(capture: Capture, module: fx.GraphModule) -> dict[fx.Node, int]:
    """The calls of a module of PyTorch's, in its order, and the ops that they are."""
    by_name = {n.name: n for n in capture.joint.graph.nodes}
    unseen = {n: o for n, o in capture.op_of.items() if n.name not in {m.name for m in module.graph.nodes}}
    wrapped: dict[fx.Node, fx.Node] = {}  # a wrapper, and the results taken out of it -> the joint node they stand for
    ops: dict[fx.Node, int] = {}

    def original(node: fx.Node) -> fx.Node | None:
        return wrapped.get(node, by_name.get(node.name))

    def uncopied(node: fx.Node) -> fx.Node:
        found: fx.Node = by_name[node.meta.get(COPY_OF, node.name)]
        return found

    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if tp.is_getitem(node) and node.args[0] in wrapped:
            wrapped[node] = wrapped[node.args[0]]
            continue
        joint = by_name.get(node.name)
        if joint is None or joint.target != node.target:
            call = _wrapped_call(node)
            if call is None:
                raise NoPlan(f"PyTorch's graph has a node {node.name!r} that the joint graph does not have")
            call = (call[0], *fx.map_arg(call[1:], original))
            joint = next((n for n in unseen if (n.target, *fx.map_arg((n.args, n.kwargs), uncopied)) == call), None)
            if joint is None:
                raise NoPlan(f"PyTorch wraps a random call as {node.name!r}; no node of the joint graph is that call")
            del unseen[joint]
            wrapped[node] = joint
        if joint in capture.op_of:
            ops[node] = capture.op_of[joint]
    return ops


def _wrapped_call(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(target, args, kwargs) of the call inside a wrapper that sets or keeps the generator's state."""
    at = next((i for i, a in enumerate(node.args) if isinstance(a, tp.OpOverload)), None)
    if at is None or not tp.is_higher_order(node):
        return None
    return node.args[at], node.args[at + 1 :], {k: a for k, a in node.kwargs.items() if k != "rng_state"}


def _handed_over(capture: Capture, backward: fx.GraphModule) -> set[int]:
    """The values that the backward graph takes from the forward, static inputs left out."""
    by_name = {n.name: n for n in capture.joint.graph.nodes}
    given = [by_name[n.name] for n in backward.graph.find_nodes(op="placeholder") if n.name in by_name and n.users]
    held = {v for n in given if not tp.is_sym_node(n) for v in capture.storages[n]}
    return {v for v in held if capture.graph.values[v].kind in (ValueKind.COMPUTED, ValueKind.INPUT)}


def _redrawn(capture: Capture, plan: Plan, backward: fx.GraphModule) -> list[int]:
    """Random ops that the backward runs again without the state that the generator had in the forward."""
    plain = {n.name for n in backward.graph.nodes if n.op == "call_function"}
    return [o for o in plan.recomputes() if tp.is_random(capture.cores[o]) and capture.cores[o].name in plain]


def _without(problem: Problem, values: Set[int | None]) -> Problem:
    """The problem with these values at 0 bytes: PyTorch does not keep them."""
    graph = problem.graph
    smaller = tuple(replace(v, nbytes=Bytes(0)) if v.id in values else v for v in graph.values)
    return replace(problem, graph=replace(graph, values=smaller))


# ------------------------------------------------------------------------------------ overwritten inputs


def _without_copies(module: fx.GraphModule) -> None:
    """The joint graph as it was: readers of a copy read the original."""
    by_name = {n.name: n for n in module.graph.nodes}
    for node in reversed(module.graph.nodes):
        if COPY_OF in node.meta:
            node.replace_all_uses_with(by_name[node.meta[COPY_OF]])
            module.graph.erase_node(node)


def _copies(capture: Capture) -> list[int]:
    """The ops that are copies of ours."""
    return [o for o, core in enumerate(capture.cores) if COPY_OF in core.meta]


def _too_late(capture: Capture, backward: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """(node, input): what the backward reads although it was overwritten since, and its results depend on it."""
    copied = {n.meta[COPY_OF] for n in capture.joint.graph.nodes if COPY_OF in n.meta}
    for node in backward.graph.nodes:
        if node.op == "call_function":
            reads = (n.name for n in node.all_input_nodes if n not in tp.unused_statistics(node))
            yield from ((node.name, name) for name in reads if name in copied)
