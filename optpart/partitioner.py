"""Where all of it meets: ``partition`` and ``Partitioner`` are what torch is given.

    gm ──capture──> Graph ──price──> Problem ──strategy──> Result ──validate──> rewrite ──> (forward, backward)

Every failure on the way ends in a partition all the same: PyTorch's min-cut, with a warning that says
why, or the exception itself if the user asked for it (``on_failure="raise"``).  An impossible budget is
never papered over: it raises :class:`~optpart.solver.base.InfeasibleBudget`.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.capture import Capture, capture
from optpart.cost.model import build_problem
from optpart.fusion import Fused
from optpart.graph import Region
from optpart.hold import as_kernels, hold_order
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.rewrite import rewrite
from optpart.settings import Settings
from optpart.settings import names as setting_names
from optpart.solver.base import InfeasibleBudget, Result, result_to_json
from optpart.strategy import solve
from optpart.validate import validate

logger = logging.getLogger(__name__)

Modules = tuple[fx.GraphModule, fx.GraphModule]
# Keywords that torch itself passes to a partition_fn, beside the two that we name.
FROM_TORCH = ("compiler", "static_lifetime_input_nodes")


class FallbackWarning(UserWarning):
    """A graph was partitioned by PyTorch's min-cut (or its default partition); the message says why."""


@dataclass(frozen=True)
class Partition:
    """What became of one joint graph.  ``fallback`` is None, or why PyTorch's min-cut was taken."""

    problem: Problem | None
    result: Result | None
    fallback: str | None
    seconds: float


def partition(
    joint: fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **given: Any,
) -> Modules:
    """AOTAutograd's ``partition_fn``.  Settings of :class:`~optpart.settings.Settings` may be bound as keywords.

    Args:
        joint: the joint graph: primals and tangents in, forward outputs and gradients out.
        joint_inputs: (primals, tangents), or empty for a nested region.
        num_fwd_outputs: how many of the joint outputs are the forward's.
        static_lifetime_input_indices: which primals are parameters and buffers.

    Raises:
        InfeasibleBudget: no plan fits the memory budget.
        ValueError: a setting is wrong.
    """
    names = setting_names()
    settings = {k: v for k, v in given.items() if k in names}
    for name in given.keys() - set(names) - set(FROM_TORCH):
        if difflib.get_close_matches(name, names, 1, cutoff=0.8):
            Settings.of({name: given[name]})  # raises: a setting with a typo
        logger.debug("partition: keyword %r is not ours, ignored", name)
    return Partitioner(**settings)(
        joint,
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
        compiler=given.get("compiler", ""),
    )


class Partitioner(tp.CustomPartitionerFn):
    """A ``partition_fn`` with settings, and Inductor's ``custom_partitioner_fn``.

    ``Partitioner(memory_budget=0.5, cost_model="roofline", time_limit=30)``; the settings are those of
    :class:`~optpart.settings.Settings`.  ``partitions`` holds what became of each graph, newest last.

    Raises:
        ValueError: a setting is unknown or out of range.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings.of(settings)
        self.partitions: list[Partition] = []

    @property
    def options(self) -> dict[str, Any]:
        """Options for ``torch.compile(model, options=partitioner.options)``: this partitioner, on a CPU what keeps
        Inductor's gradients right, and with a budget on the peak what keeps it from allocating beyond the plan.  Our own
        backends add them by themselves."""
        safe = {} if torch.cuda.is_available() else tp.CPU_OPTIONS
        holding = tp.HOLDING_OPTIONS if self.settings.holds_order else {}
        return {**safe, **holding, "custom_partitioner_fn": self}

    @property
    def fallbacks(self) -> int:
        """How many graphs PyTorch's min-cut had to partition."""
        return sum(p.fallback is not None for p in self.partitions)

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Modules:
        start = time.perf_counter()
        found: Partition
        try:
            modules, found = self._partition(gm, joint_inputs, start, **kwargs)
        except InfeasibleBudget:
            raise
        except Exception as e:  # whatever went wrong, a compile must not die of it
            if self.settings.on_failure == "raise":
                raise
            logger.warning("fallback to PyTorch's own partition", exc_info=e)
            modules, reason = _pytorchs_own(gm, joint_inputs, f"{type(e).__name__}: {e}", **_torch_keywords(kwargs))
            found = Partition(None, None, reason, time.perf_counter() - start)
        self.partitions.append(found)
        return modules

    def _partition(
        self, gm: fx.GraphModule, joint_inputs: Any, start: float, **kwargs: Any
    ) -> tuple[Modules, Partition]:
        inductor = kwargs.get("compiler") == "inductor" or tp.inside_inductor()
        captured = capture(
            gm,
            num_fwd_outputs=kwargs["num_fwd_outputs"],
            static_lifetime_input_indices=kwargs.get("static_lifetime_input_indices"),
            redo_random=not inductor,
        )
        if not captured.graph.in_region(Region.BACKWARD) and not captured.graph.backward_outputs:
            modules = tp.default_partition(gm, joint_inputs, **_torch_keywords(kwargs))
            return modules, Partition(None, None, None, time.perf_counter() - start)
        problem = build_problem(captured.graph, self.settings.cost_model, measure_memory=self.settings.measure_memory)
        budget = self.settings.budget_for(problem)
        if budget is not None and not joint_inputs and not isinstance(budget, float):
            logger.warning("a nested region takes no memory budget in bytes; it is partitioned without one")
            budget = None
        checkpointed = self.settings.hold_order and any(map(tp.must_recompute, captured.cores))
        if not inductor or (budget is None and not checkpointed):
            result = solve(problem, budget, self.settings.limits)
            modules = emit(captured, problem, result, check=budget is not None)
        else:  # memory is asked for, by a budget or by the user's own checkpoints: the peak that counts is the kernels'
            fused = as_kernels(captured, problem)
            problem = fused.problem
            result = solve(problem, budget, self.settings.limits)
            modules = emit_kernels(captured, fused, result, hold=self.settings.hold_order)
        return modules, Partition(problem, result, None, time.perf_counter() - start)

    def uuid(self) -> bytes:
        """Everything that decides a plan: settings, cost tables, this package's files, versions."""
        versions = {name: metadata.version(name) for name in ("torch", "ortools", "networkx", "scipy")}
        key = json.dumps({"settings": self.settings.key(), "versions": versions}, sort_keys=True, default=repr)
        return hashlib.sha256(package_hash() + key.encode()).digest()

    def __getstate__(self) -> dict[str, Any]:
        """What a cache key may see: the settings' digest, not what happened so far."""
        return {"settings": self.settings, "uuid": self.uuid()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings = state["settings"]
        self.partitions = []


def emit(captured: Capture, problem: Problem, result: Result, *, check: bool = True) -> Modules:
    """The modules of a result's plan.

    ``check`` runs the independent checker first, which is quadratic: a second for thousands of ops.  The
    rewrite itself refuses every plan that would read what is not there or redo what must run once.

    Raises:
        RuntimeError: there is no plan, or it is not valid.
    """
    return rewrite(captured, _checked(problem, result, check))


def emit_kernels(captured: Capture, fused: Fused, result: Result, *, hold: bool) -> Modules:
    """The modules of a result's plan for a problem whose pointwise ops are merged; ``hold`` keeps its order.

    Raises:
        RuntimeError: there is no plan, or it is not valid, merged or op by op.
    """
    plan = _checked(fused.problem, result)
    whole, steps = fused.expand(plan)
    verdict = validate(fused.whole, whole)
    if not verdict.ok:
        raise RuntimeError(f"the plan is not valid op by op: {'; '.join(verdict.faults[:3])}")
    modules = rewrite(captured, whole)
    if hold:
        hold_order(modules, captured, fused, plan, steps, result.budget_bytes or 0)
    return modules


def _checked(problem: Problem, result: Result, check: bool = True) -> Plan:
    """The result's plan, past the independent checker; logged."""
    if result.plan is None:
        raise RuntimeError(f"no plan: {result.status.value}")
    if check:
        verdict = validate(problem.with_budget(result.budget_bytes), result.plan)
        if not verdict.ok:
            raise RuntimeError(f"the plan is not valid: {'; '.join(verdict.faults[:3])}")
    tp.log_artifact("optpart_plan", lambda: json.dumps(result_to_json(result), indent=1))
    return result.plan


def _pytorchs_own(gm: fx.GraphModule, joint_inputs: Any, reason: str, **kwargs: Any) -> tuple[Modules, str]:
    """PyTorch's min-cut, or its default partition where that fails too; warns, and says why."""
    try:
        modules, taken = tp.min_cut_partition(gm, joint_inputs, **kwargs), "min-cut"
    except Exception as e:  # it fails on graphs that the default partition takes
        reason = f"{reason} (and its min-cut failed: {type(e).__name__}: {e})"
        modules, taken = tp.default_partition(gm, joint_inputs, **kwargs), "default partition"
    warnings.warn(FallbackWarning(f"partitioned by PyTorch's {taken} instead, because of {reason}"), stacklevel=4)
    return modules, reason


def _torch_keywords(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: kwargs[k] for k in ("num_fwd_outputs", "static_lifetime_input_indices") if k in kwargs}


@functools.cache
def package_hash() -> bytes:
    """Of this package's sources: what it computes depends on them."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()


# ------------------------------------------------------------------------------------------ backends


def backend(*, compiler: str = "inductor", **settings: Any) -> Callable[..., Any]:
    """A ``torch.compile`` backend that partitions with these settings.

    ``compiler``: "inductor" (code generation) or "aot_eager" (none: the graphs run as they are).

    Raises:
        ValueError: an unknown compiler or setting.
    """
    return tp.compiler_backend(compiler, Partitioner(**settings))


def dynamo_backend(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], **kwargs: Any) -> Any:
    """The backend named "optpart" (an entry point): ``torch.compile(m, backend="optpart", options={...})``.

    Options that are settings of ours go to the partitioner, ``compiler`` picks what is below, and all
    others are Inductor's.
    """
    options = dict(kwargs.get("options") or {})
    ours = {*setting_names(), "compiler"}
    mine = {k: options.pop(k) for k in list(options) if k in ours}
    compiler = mine.pop("compiler", "inductor")
    if compiler == "inductor":
        return tp.compile_with_inductor(gm, example_inputs, partitioner=Partitioner(**mine), options=options)
    return backend(compiler=compiler, **mine)(gm, example_inputs)
