"""What several experiments do: load a model, have PyTorch partition it, have ours fit a peak, measure both.

Both sides are counted alike.  Overheads are of the same problem, under the same cost model; peaks are measured by
``optpart.measure`` under aot_eager, where nothing re-orders a plan, and include all that is resident.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optpart
from experiments.registry import Cell, Row, Table, TextRow
from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.cost.model import build_problem
from optpart.partitioner import Partitioner
from optpart.planning import capture_joint
from optpart.problem import Problem
from optpart.pytorch_plans import PytorchAnswer, pytorch_answer
from optpart.solver.base import Result

Model = Callable[..., Any]
TIME_LIMIT = 60.0  # seconds for one solve

# Columns of a partition of PyTorch's, each with a prefix.  "problem" says what is wrong with it, if anything is.
THEIRS = ("peak_bytes", "measured_peak_bytes", "overhead", "problem")
# Columns of a plan of ours that had to fit into "budget_bytes".
OURS = (
    "budget_bytes",
    "status",
    "overhead",
    "bound",
    "gap",
    "peak_bytes",
    "measured_peak_bytes",
    "seconds",
    "deterministic",
)


def load(case: Row, device: str = "cpu") -> tuple[Model, tuple[Any, ...]]:
    """The model of a case ("model", and perhaps "preset" and "config": "layers=12 batch=16") and its batch, on a device."""
    import optpart_models

    overrides = dict(item.split("=", 1) for item in str(case.get("config") or "").split())
    loaded = optpart_models.load(
        str(case["model"]), str(case.get("preset", "default")), overrides, seed=0, device=device
    )
    return loaded.model, loaded.batch


def problem_of(model: Model, batch: tuple[Any, ...]) -> tuple[Capture, Problem]:
    """The model's joint graph and its problem, workspaces measured.

    Raises:
        ValueError: the model breaks into several graphs.
    """
    joints = tp.trace_joint(model, batch)
    if len(joints) != 1:
        raise ValueError(f"the model breaks into {len(joints)} joint graphs, one is expected")
    captured = capture_joint(joints[0], "model")
    return captured, build_problem(captured.graph, measure_memory=True)


@functools.lru_cache(maxsize=1)
def _problem_named(model: str, preset: str, config: str) -> tuple[Capture, Problem]:
    return problem_of(*load({"model": model, "preset": preset, "config": config}))


def problem_for(case: Row) -> tuple[Capture, Problem]:
    """The problem of a case's model, made once for cases that follow each other."""
    return _problem_named(str(case["model"]), str(case["preset"]), str(case["config"]))


def pytorch_partition(method: str, budget: float | None = None) -> Callable[..., Any]:
    """The ``partition_fn`` behind the same words in ``optpart.pytorch_plans``."""
    if method == "default":
        return tp.default_partition

    @functools.wraps(tp.min_cut_partition)
    def partition(*args: Any, **kwargs: Any) -> Any:
        with tp.pytorch_budget(1.0 if budget is None else budget):
            return tp.min_cut_partition(*args, **kwargs)

    return partition


def theirs(model: Model, batch: tuple[Any, ...], answer: PytorchAnswer, prefix: str) -> tuple[int, Row]:
    """What a step under a partition of PyTorch's takes at most, and the columns ``prefix`` + ``THEIRS``."""
    partition = pytorch_partition(answer.method, answer.budget)
    peak = optpart.measure(model, batch, partitioner=partition, repeats=1).measured_peak_bytes
    cells = (answer.peak_bytes, peak, answer.overhead, answer.problem)
    return peak, {prefix + name: cell for name, cell in zip(THEIRS, cells)}


def answer_of(captured: Capture, problem: Problem, budget: float) -> PytorchAnswer:
    """PyTorch's partition at a memory budget of its own."""
    return pytorch_answer(captured, problem, "budget", budget)


def solved(result: Result) -> dict[str, Cell]:
    """The columns of a solve that say how far it came."""
    return {
        "status": result.status.name.lower(),
        "overhead": result.overhead,
        "bound": result.bound,
        "gap": result.gap,
        "seconds": round(result.seconds, 3),
        "deterministic": result.deterministic,
    }


def ours(model: Model, batch: tuple[Any, ...], budget: int | float) -> Row:
    """The columns ``OURS`` of our plan within a budget, in bytes or as a fraction.

    Raises:
        InfeasibleBudget: there is no plan that fits.
        RuntimeError: the solver's plan is not valid.
    """
    partitioner = Partitioner(memory_budget=budget, time_limit=TIME_LIMIT, on_failure="raise", threads=1)
    measured = optpart.measure(model, batch, partitioner=partitioner, repeats=1)
    partition = partitioner.partitions[-1]
    result = partition.result
    assert result is not None  # on_failure="raise"
    return {
        **solved(result),
        "budget_bytes": budget if isinstance(budget, int) else result.budget_bytes,
        "peak_bytes": measured.predicted_peak_bytes,
        "measured_peak_bytes": measured.measured_peak_bytes,
        "seconds": round(partition.seconds, 3),  # capture and check of the plan included
    }


def mib(nbytes: float | None) -> str:
    """Bytes for the eye."""
    return "-" if nbytes is None else f"{nbytes / 2**20:.2f}"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def as_text(table: Table) -> str:
    """A table for a terminal."""
    lines = [tuple(word.replace("_", " ") for word in table.header), *table.lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    return "\n".join("  " + "  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths)) for line in lines)


def name_of(row: TextRow) -> str:
    """A row's model, and the settings that are not its preset's: "gpt,layers=12"."""
    return ",".join(filter(None, (row["model"], row["config"])))
