"""A budget under Inductor: does the measured peak hold, and what does a step take, beside PyTorch's memory budget?

For each of PyTorch's budgets the step is compiled by Inductor, and its peak is measured.  That peak is our budget.
Kernels fuse, and what is inside one has no storage: PyTorch's peak can lie below the smallest peak of any plan that runs
op by op.  Then our budget is the smallest peak that is found, and ``reachable`` is false.  Both steps are compiled in
one process and run in turns; ``time_ratio`` is the median of ours over PyTorch's, run by run.  ``held`` says whether the
plan's order was held; the row without shows what Inductor does by itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from experiments.common import TIME_LIMIT, as_text, load, mib, name_of, percent
from experiments.registry import Experiment, Row, Table, TextRow, median, number
from optpart import torch_private as tp
from optpart.liveness import simulate
from optpart.measuring import training_step
from optpart.partitioner import Partitioner
from optpart.solver.base import InfeasibleBudget

MODELS = (("gpt", "layers=4"), ("llama", "layers=4"), ("unet", ""), ("twice", ""))
BUDGETS = (0.6, 0.3, 0.1, 0.0)
RUNS = 15


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.context = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        x = x if context is None else x + self.context(context)
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


class Twice(nn.Module):
    """Checkpointed blocks that run twice in one graph (pytorch/pytorch issue 193193): the recomputes of the second branch
    depend on nothing that the backward of the first one makes."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def once(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, context, use_reentrant=False)
        return x

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.once(x).mean() + self.once(x, context).square().mean()


def model_of(case: Row) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if case["model"] != "twice":
        return load(case)
    blocks, width, tokens = (2, 16, 32) if case["preset"] == "tiny" else (8, 64, 256)
    torch.manual_seed(0)
    return Twice(blocks, width), (torch.randn(tokens, width), torch.randn(tokens, width))


class MinCut(tp.CustomPartitionerFn):
    """PyTorch's min-cut with its memory budget, where Inductor takes a partitioner."""

    def __init__(self, budget: float) -> None:
        self.budget = budget

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        with tp.pytorch_budget(self.budget):
            return tp.min_cut_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> bytes:
        return f"min-cut at {self.budget}".encode()


def run(case: Row) -> Row:
    model, batch = model_of(case)
    compiled = functools.partial(tp.compiler_backend, "inductor")
    theirs = MinCut(float(case["pytorch_budget"] or 0))
    # a partitioner that Inductor's cache answers for does not run, and says nothing
    fresh: dict[str, Any] = {"options": {"force_disable_caches": True}}
    with training_step(model, batch, functools.partial(compiled(theirs), **fresh)) as pytorch:
        peak = pytorch.resident_bytes + pytorch.peak()
        settings = {"time_limit": TIME_LIMIT, "on_failure": "raise", "threads": 1, "hold_order": bool(case["held"])}
        budgets: tuple[int | float, ...] = (peak, 0.0)
        for budget in budgets:
            part = Partitioner(memory_budget=budget, **settings)
            try:
                with training_step(model, batch, functools.partial(compiled(part), **fresh)) as mine:
                    return {"pytorch_measured_peak_bytes": peak, **_compare(part, mine, pytorch, budget == peak)}
            except Exception as e:
                if budget == 0.0 or not isinstance(getattr(e, "inner_exception", e), InfeasibleBudget):
                    raise
    raise AssertionError("a fraction of 0 is always feasible")


def _compare(part: Partitioner, mine: Any, pytorch: Any, reachable: bool) -> Row:
    found = part.partitions[-1]
    assert found.result is not None  # on_failure="raise"
    assert found.result.plan is not None
    assert found.problem is not None
    times: list[tuple[float, float]] = []
    for i in range(RUNS):
        pair = {}
        for step in (mine, pytorch) if i % 2 else (pytorch, mine):
            step.clear()
            start = time.perf_counter()
            step.run()
            pair[step is mine] = time.perf_counter() - start
        times.append((pair[True], pair[False]))
    measured = mine.resident_bytes + mine.peak()
    return {
        "reachable": reachable,
        "budget_bytes": found.result.budget_bytes,
        "overhead": found.result.overhead,
        "bound": found.result.bound,
        "peak_bytes": simulate(found.problem, found.result.plan).peak_bytes,
        "measured_peak_bytes": measured,
        "peak_over_budget": measured / (found.result.budget_bytes or 1),
        "step_seconds": median([a for a, _ in times]),
        "pytorch_step_seconds": median([b for _, b in times]),
        "time_ratio": median([a / b for a, b in times]),
    }


def table(rows: Sequence[TextRow]) -> Table:
    header = "model held budget PyTorch's_MiB our_limit_MiB measured_MiB over_limit overhead_% bound_% time_ratio"
    lines = (
        (
            name_of(r),
            r["held"],
            r["pytorch_budget"],
            mib(number(r, "pytorch_measured_peak_bytes")),
            mib(number(r, "budget_bytes")) + ("" if r["reachable"] == "true" else " (smallest)"),
            mib(number(r, "measured_peak_bytes")),
            f"{float(r['peak_over_budget']):.3f}",
            percent(number(r, "overhead")),
            percent(number(r, "bound")),
            f"{float(r['time_ratio']):.3f}",
        )
        for r in rows
    )
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    said = []
    for held in ("true", "false"):
        mine = [r for r in rows if r["held"] == held]
        if mine:
            worst = max(float(r["peak_over_budget"]) for r in mine)
            ratios = [float(r["time_ratio"]) for r in mine if r["reachable"] == "true"]
            times = (
                f"; step, PyTorch's = 1, where its peak is our budget: median {median(ratios):.3f}" if ratios else ""
            )
            said.append(f"  held {held}: largest measured peak over the limit {worst:.3f}{times}")
    return "\n".join([as_text(table(rows)), *said])


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    held = [r for r in rows if r["held"] == "true"]
    free = [r for r in rows if r["held"] == "false"]
    reachable = [r for r in held if r["reachable"] == "true"]
    found = {"Held": str(len(held)), "Free": str(len(free)), "Reachable": str(len(reachable))}
    for name, some in (("Held", held), ("Free", free)):
        if some:
            over = [float(r["peak_over_budget"]) for r in some]
            found[f"{name}Worst"] = f"{max(over):.3f}"
            found[f"{name}Over"] = str(sum(x > 1 for x in over))
    if reachable:
        times = [float(r["time_ratio"]) for r in reachable]
        found |= {
            "Time": f"{median(times):.3f}",
            "TimeBest": f"{min(times):.3f}",
            "TimeWorst": f"{max(times):.3f}",
        }
    return found


def _case(model: str, config: str, budget: float, held: bool, preset: str = "default") -> Row:
    return {"model": model, "preset": preset, "config": config, "pytorch_budget": budget, "held": held}


SPEC = Experiment(
    name="inductor_peak",
    label="Table 9",
    title="A budget under Inductor: measured peak and step time, against PyTorch's memory budget at the same peak",
    cases=tuple(_case(m, c, b, True) for m, c in MODELS for b in BUDGETS)
    + tuple(_case(m, c, 0.0, False) for m, c in MODELS),
    smoke=(_case("twice", "", 0.0, True, "tiny"),),
    results=(
        *("pytorch_measured_peak_bytes", "reachable", "budget_bytes", "overhead", "bound", "peak_bytes"),
        *("measured_peak_bytes", "peak_over_budget", "step_seconds", "pytorch_step_seconds", "time_ratio"),
    ),
    run=run,
    summary=summary,
    minutes=30,
    table=table,
    numbers=numbers,
)
