"""Do predicted step times agree with the clock?  Many plans of one model, near each other, each predicted and measured.

**Plans.**  Plan i recomputes about i % of the step, by profiled costs: of the values that are saved where nothing is
recomputed, some are dropped in random order (seed i) until so much is recomputed.  So neighbours differ by about 1 %
in predicted time and by much in what they recompute, and no solver has chosen them.  Under Inductor they are plans of
the merged problem, where pointwise ops are part of the kernels that read them.

**Predicted** is the sum of the run times of all steps of a plan, by each cost model.  Profiled times are taken anew, at
the start of each model's run.  The device of roofline and FLOPs is a row of a table, not this machine: what counts of
theirs is the rank correlation, and the error that is left when all predictions are scaled by one number.

**Measured.**  All plans of a model are compiled in one process and run in turns, in a new random order each round.  A
time counts as a fraction of its round's median, so that a machine that slows down slows all plans down alike;
``measured_seconds`` is the median over rounds, times the median round.  The noise stands beside it: ``spread`` is half
the interquartile range of one plan's repeated runs (relative), and ``ceiling`` about the rank correlation that a perfect
prediction could hope for: sqrt(2 r / (1 + r)), where r is that of the medians of even rounds with those of odd rounds
(Spearman, Brown 1910: the reliability of a measurement from that of its halves).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from experiments.common import as_text, load, percent
from experiments.registry import Experiment, Row, Table, TextRow, median
from optpart import torch_private as tp
from optpart.capture import capture
from optpart.cost.cache import Cache
from optpart.cost.machine import present_device
from optpart.cost.model import CostModel, build_problem, get_cost_model
from optpart.cost.profiled import Profiled
from optpart.hold import as_kernels
from optpart.liveness import simulate
from optpart.measuring import Step, training_step
from optpart.plans import Plan, baseline, just_in_time
from optpart.problem import Problem
from optpart.rewrite import rewrite
from optpart.validate import validate

MODELS = (("gpt", "layers=6"), ("llama", "layers=4"), ("resnet", ""), ("unet", ""))
COMPILERS = ("aot_eager", "inductor")
COST_MODELS = ("profiled", "roofline", "flops")
PLANS = 24
DISTANCE = 0.01  # of neighbours, in predicted time as a fraction of the step
ROUNDS = 20


def plan_at(problem: Problem, overhead: float, seed: int) -> Plan:
    """A random plan whose recomputes take about ``overhead`` of the step, or as much of it as can be reached."""
    graph, rng = problem.graph, random.Random(seed)
    plan = baseline(graph)
    saved = frozenset(v for v in plan.saved(graph) if graph.values[v].producer is not None)
    order = sorted(saved)
    rng.shuffle(order)
    for v in order:
        if predicted(problem, plan) >= (1 + overhead - DISTANCE / 2) * problem.total_time:
            break
        changed = just_in_time(graph, saved - {v})
        if all(graph.ops[o].recomputable for o in changed.recomputes()):
            if predicted(problem, changed) <= (1 + overhead + DISTANCE / 2) * problem.total_time:
                saved, plan = saved - {v}, changed
    if faults := validate(problem, plan).faults:
        raise RuntimeError(f"the plan is not valid: {faults[0]}")
    return plan


def predicted(problem: Problem, plan: Plan) -> float:
    """Microseconds of all steps of a plan."""
    return math.fsum(n * problem.runtime[o] for o, n in plan.counts.items())


class Given(tp.CustomPartitionerFn):
    """Partitions by one of these plans; ``results`` are the columns that are known before anything runs."""

    def __init__(self, number: int, models: Mapping[str, CostModel]) -> None:
        self.number, self.models = number, models
        self.results: dict[str, Any] = {}

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        inductor = kwargs.get("compiler") == "inductor"
        static = kwargs.get("static_lifetime_input_indices")
        captured = capture(
            gm,
            num_fwd_outputs=kwargs["num_fwd_outputs"],
            static_lifetime_input_indices=static,
            redo_random=not inductor,
        )
        whole = {name: build_problem(captured.graph, m, measure_memory=True) for name, m in self.models.items()}
        fused = {name: as_kernels(captured, problem) for name, problem in whole.items()} if inductor else {}
        problems = {name: f.problem for name, f in fused.items()} or whole
        problem = problems["profiled"]
        plan = plan_at(problem, self.number * DISTANCE, self.number)
        live = simulate(problem, plan)
        self.results = {"overhead": live.overhead, "peak_bytes": live.peak_bytes}
        self.results |= {f"{name}_seconds": predicted(p, plan) * 1e-6 for name, p in problems.items()}
        return rewrite(captured, fused["profiled"].expand(plan)[0] if inductor else plan)

    def uuid(self) -> None:
        """Never from a cache: the plan has to be made to be predicted."""


@functools.lru_cache(maxsize=1)
def measured(model: str, preset: str, config: str, compiler: str, plans: int) -> tuple[Row, ...] | Exception:
    """The results of all plans of a model; an exception is kept too, since each of its plans would raise it again."""
    try:
        return _measured({"model": model, "preset": preset, "config": config}, compiler, plans)
    except Exception as e:
        return e


def _measured(case: Row, compiler: str, plans: int) -> tuple[Row, ...]:
    device = present_device()
    model, batch = load(case, device)
    models = {name: get_cost_model(name, device) for name in COST_MODELS} | {"profiled": Profiled(Cache())}
    options: dict[str, Any] = {"options": {"force_disable_caches": True}} if compiler == "inductor" else {}
    with contextlib.ExitStack() as stack:
        parts = [Given(i, models) for i in range(plans)]
        steps = []
        for part in parts:
            backend = functools.partial(tp.compiler_backend(compiler, part), **options)
            steps.append(stack.enter_context(training_step(model, batch, backend)))
        peaks = [step.resident_bytes + step.peak() for step in steps]
        times = _in_turns(steps)
    rounds = [median(row) for row in times]
    scaled = [[row[i] / middle for row, middle in zip(times, rounds)] for i in range(plans)]
    middle = median(rounds)
    return tuple(
        {
            **part.results,
            "device": device,
            "measured_peak_bytes": peak,
            "measured_seconds": median(own) * middle,
            "even_seconds": median(own[::2]) * middle,
            "odd_seconds": median(own[1::2]) * middle,
            "spread": _spread(own),
        }
        for part, peak, own in zip(parts, peaks, scaled)
    )


def _in_turns(steps: Sequence[Step]) -> list[list[float]]:
    """Seconds of each step, by rounds."""
    times = []
    for i in range(ROUNDS):
        order = list(range(len(steps)))
        random.Random(i).shuffle(order)
        row = [0.0] * len(steps)
        gc.collect()
        for j in order:
            wait: Callable[[], Any] = torch.cuda.synchronize if steps[j].device.startswith("cuda") else (lambda: None)
            steps[j].clear()
            wait()
            start = time.perf_counter()
            steps[j].run()
            wait()
            row[j] = time.perf_counter() - start
        times.append(row)
    return times


def _spread(numbers: Sequence[float]) -> float:
    """Half the interquartile range as a fraction of the median."""
    low, middle, high = statistics.quantiles(numbers, n=4)
    return (high - low) / 2 / middle


def run(case: Row) -> Row:
    found = measured(
        *(str(case[k] or "") for k in ("model", "preset", "config", "compiler")), plans=int(case["plans"] or 0)
    )
    if isinstance(found, Exception):
        raise found
    return found[int(case["plan"] or 0)]


# ------------------------------------------------------------------------------------------------- summary


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one side is constant."""
    from scipy.stats import spearmanr

    return None if len(set(xs)) < 2 or len(set(ys)) < 2 else float(spearmanr(xs, ys).statistic)


def ceiling(even: Sequence[float], odd: Sequence[float]) -> float | None:
    """What a perfect prediction's correlation with the truth would be, from that of two halves of the measurements."""
    r = correlation(even, odd)
    return None if r is None else math.sqrt(2 * r / (1 + r)) if r > 0 else 0.0


def errors(predictions: Sequence[float], truth: Sequence[float]) -> tuple[float, float]:
    """Median relative errors: as predicted, and with all predictions scaled by the median of truth / prediction."""
    scale = median([t / p for p, t in zip(predictions, truth)])
    return median([abs(p / t - 1) for p, t in zip(predictions, truth)]), median(
        [abs(scale * p / t - 1) for p, t in zip(predictions, truth)]
    )


def table(rows: Sequence[TextRow]) -> Table:
    lines = []
    for which in dict.fromkeys((r["model"], r["config"], r["compiler"], r["device"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["config"], r["compiler"], r["device"]) == which]
        column = {
            c: [float(r[c]) for r in mine] for c in mine[0] if c.endswith("_seconds") or c in ("spread", "overhead")
        }
        truth = column["measured_seconds"]
        apart = sorted(column["profiled_seconds"])
        for name in COST_MODELS:
            guess = column[f"{name}_seconds"]
            raw, scaled = errors(guess, truth)
            lines.append(
                (
                    ",".join(filter(None, which)),
                    name,
                    str(len(mine)),
                    f"{1e3 * median(truth):.1f}",
                    _or_dash(correlation(guess, truth)),
                    _or_dash(ceiling(column["even_seconds"], column["odd_seconds"])),
                    percent(raw),
                    percent(scaled),
                    percent(median(column["spread"])),
                    percent(max((b / a - 1 for a, b in itertools.pairwise(apart)), default=0.0)),
                )
            )
    header = "model cost_model plans step_ms Spearman ceiling error_% scaled_error_% spread_% farthest_neighbours_%"
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return as_text(table(rows))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    """The range of rank correlations over models and compilers, by cost model."""
    lines = [dict(zip(table(rows).header, line)) for line in table(rows).lines]
    found = {"Plans": str(len(rows)), "Settings": str(len({line["model"] for line in lines}))}
    for name in COST_MODELS:
        ranks = [float(line["Spearman"]) for line in lines if line["cost_model"] == name and line["Spearman"] != "-"]
        if ranks:
            found |= {f"{name.capitalize()}Worst": f"{min(ranks):.2f}", f"{name.capitalize()}Best": f"{max(ranks):.2f}"}
    return found


def _or_dash(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _cases(model: str, config: str, compiler: str, plans: int, preset: str = "default") -> tuple[Row, ...]:
    about: Row = {"model": model, "preset": preset, "config": config, "compiler": compiler, "plans": plans}
    return tuple({**about, "plan": i} for i in range(plans))


SPEC = Experiment(
    name="cost_models",
    label="Table 7",
    title="Predicted against measured step times of plans that are near each other, by cost model",
    cases=tuple(row for compiler in COMPILERS for m, c in MODELS for row in _cases(m, c, compiler, PLANS)),
    smoke=(*_cases("mlp", "", "aot_eager", 4, "tiny"), *_cases("mlp", "", "inductor", 2, "tiny")),
    results=(
        *("device", "overhead", *(f"{name}_seconds" for name in COST_MODELS), "measured_seconds", "even_seconds"),
        *("odd_seconds", "spread", "peak_bytes", "measured_peak_bytes"),
    ),
    run=run,
    summary=summary,
    minutes=90,
    table=table,
    numbers=numbers,
)
