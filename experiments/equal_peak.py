"""Overhead at an equal measured peak: our plan gets the peak that PyTorch's memory budget was measured at.

For each of PyTorch's budgets: its partition, its peak as simulated and as measured, its overhead; then our plan within
that measured peak, its overhead with bound and gap, and its own measured peak.  ``ratio`` is our overhead over
PyTorch's; where PyTorch recomputes nothing there is none, and ours has to be 0 too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.common import OURS, THEIRS, answer_of, as_text, load, mib, name_of, ours, percent, problem_of, theirs
from experiments.registry import Experiment, Row, Table, TextRow, median, number

MODELS = (("gpt", ""), ("gpt", "layers=12"), ("llama", ""), ("vit", ""), ("resnet", ""), ("unet", ""))
BUDGETS = (0.6, 0.4, 0.3, 0.2, 0.1, 0.05)


def run(case: Row) -> Row:
    model, batch = load(case)
    captured, problem = problem_of(model, batch)
    answer = answer_of(captured, problem, float(case["pytorch_budget"] or 0))
    if answer.overhead is None:
        raise RuntimeError(f"PyTorch: {answer.problem}")
    peak, columns = theirs(model, batch, answer, "pytorch_")
    mine = ours(model, batch, peak)
    overhead = mine["overhead"]
    assert isinstance(overhead, float)
    return {**columns, **mine, "ratio": overhead / answer.overhead if answer.overhead else None}


def table(rows: Sequence[TextRow]) -> Table:
    header = "model budget peak_MiB PyTorch's_overhead_% ours_% bound_% our_peak_MiB ratio"
    lines = (
        (
            name_of(r),
            r["pytorch_budget"],
            mib(number(r, "pytorch_measured_peak_bytes")),
            percent(number(r, "pytorch_overhead")),
            percent(number(r, "overhead")),
            percent(number(r, "bound")),
            mib(number(r, "measured_peak_bytes")),
            f"{float(r['ratio']):.3f}" if r["ratio"] else "-",
        )
        for r in rows
    )
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    ratios = [float(r["ratio"]) for r in rows if r["ratio"]]
    free = [r for r in rows if not r["ratio"]]
    over = [r for r in rows if int(r["measured_peak_bytes"]) > int(r["budget_bytes"])]
    said = (
        f"  ratio: median {median(ratios):.3f}, largest {max(ratios):.3f}, of {len(ratios)}" if ratios else "  no ratio"
    )
    said += f"; measured above the budget: {len(over)} of {len(rows)}"
    if free:
        also = sum(float(r["overhead"]) == 0 for r in free)
        said += f"\n  PyTorch recomputes nothing in {len(free)} rows, ours neither in {also} of them"
    return f"{as_text(table(rows))}\n{said}"


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    ratios = [float(r["ratio"]) for r in rows if r["ratio"]] or [1.0]
    gaps = [float(r["gap"]) for r in rows if r["gap"]] or [1.0]
    return {
        "Ratios": str(sum(bool(r["ratio"]) for r in rows)),
        "Median": f"{median(ratios):.2f}",
        "Best": f"{min(ratios):.2f}",
        "Worst": f"{max(ratios):.2f}",
        "Optimal": str(sum(r["status"] == "optimal" for r in rows)),
        "MedianGap": percent(median(gaps)),
        "LargestGap": percent(max(gaps)),
        "LargestGapModel": name_of(max(rows, key=lambda r: float(r["gap"] or 0))),
        "Exact": str(sum(r["measured_peak_bytes"] == r["peak_bytes"] for r in rows)),
        "OverBudget": str(sum(int(r["measured_peak_bytes"]) > int(r["budget_bytes"]) for r in rows)),
        "Faulty": str(sum(bool(r["pytorch_problem"]) for r in rows)),
        "ClockStopped": str(sum(r["deterministic"] == "false" for r in rows)),
    }


SPEC = Experiment(
    name="equal_peak",
    label="Table 3",
    title="Overhead at equal measured peak, against PyTorch's memory budget",
    cases=tuple(
        {"model": m, "preset": "default", "config": c, "pytorch_budget": b} for m, c in MODELS for b in BUDGETS
    ),
    smoke=tuple(
        {"model": m, "preset": "tiny", "config": "", "pytorch_budget": b} for m, b in (("gpt", 0.4), ("mlp", 0.1))
    ),
    results=(*("pytorch_" + name for name in THEIRS), *OURS, "ratio"),
    run=run,
    summary=summary,
    minutes=25,
    table=table,
    numbers=numbers,
)
