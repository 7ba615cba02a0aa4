"""The paper's figures, from the CSVs: ``paper/figures/NAME.pdf``.  Equal results give equal files, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import frontier as f1
from experiments import timeline as f2
from experiments.common import name_of, percent
from experiments.registry import TextRow, number
from experiments.run import RESULTS
from experiments.tables import PAPER, rows_of
from optpart.figures import BLUE, FAINT, INK, LIMIT, LOOK, OTHER, canvas, unit_of
from optpart.frontier_figure import PROVEN, Curves, draw_curves

WIDTH, TALL, LEGEND = 9.0, 2.9, 0.2  # inches: the figure, a row of panels, a line of the legend
LABELS = 5  # in a line of it


def write_figures(results: Path = RESULTS, folder: Path = PAPER / "figures") -> list[Path]:
    """Every figure that has results.

    Raises:
        NoFigure: matplotlib is not installed (extra ``paper``).
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in DRAWN.items():
        by_model: dict[str, list[TextRow]] = {}
        for row in rows_of(results, name):
            if not row["reason"]:
                by_model.setdefault(name_of(row), []).append(row)
        if by_model:
            draw(folder / f"{name}.pdf", by_model)
            files.append(folder / f"{name}.pdf")
    return files


@contextmanager
def _panels(file: Path, names: Sequence[str], columns: int = 2) -> Iterator[dict[str, Any]]:
    """Axes by name, two in a row; the legend of the first stands above all."""
    columns = min(columns, len(names))
    rows = math.ceil(len(names) / columns)
    with canvas(file, WIDTH, TALL * rows) as figure:
        axes = dict(zip(names, figure.subplots(rows, columns, squeeze=False).flat))
        yield axes
        for unused in list(figure.axes)[len(names) :]:
            unused.set_axis_off()
        for name, one in axes.items():
            one.set_title(name, loc="left", fontsize=10)
        entries: dict[str, Any] = {}
        for one in axes.values():
            entries |= {label: line for line, label in zip(*one.get_legend_handles_labels()) if label not in entries}
        above = LEGEND * (1 + math.ceil(len(entries) / LABELS))
        height = TALL * rows + above
        figure.set_figheight(height)
        figure.tight_layout(rect=(0, 0, 1, 1 - above / height))
        figure.legend(entries.values(), entries.keys(), frameon=False, loc="upper center", ncols=LABELS)


def draw_frontiers(file: Path, by_model: Mapping[str, Sequence[TextRow]]) -> None:
    """Figure 1: what was found, what is proven, what PyTorch does."""
    curves = {model: curves_of(rows) for model, rows in by_model.items()}
    with _panels(file, [model for model, found in curves.items() if found.ours]) as panels:
        for model, axes in panels.items():
            unit = draw_curves(axes, curves[model])
            axes.set_xlabel(f"peak ({unit})")
            axes.set_ylabel("overhead (%)")


def curves_of(rows: Sequence[TextRow]) -> Curves:
    """At each budget the best plan of all that fit, and the largest bound that is proven there or above."""
    mine = [r for r in rows if r["who"] == f1.OURS]
    plans = [(int(r["peak_bytes"]), float(r["overhead"])) for r in mine]
    budgets = sorted({int(r["budget_bytes"]) for r in mine})
    best = {
        min(((x, y) for x, y in plans if x <= b), key=lambda p: (p[1], p[0])) for b in budgets if b >= min(plans)[0]
    }
    proven = [(int(r["budget_bytes"]), number(r, "bound") or 0.0) for r in mine]
    bounds = [(b, max(y for x, y in proven if x >= b)) for b in budgets]
    theirs = [
        ("budget", float(r["memory_budget"]), int(r["peak_bytes"]), float(r["overhead"]))
        for r in rows
        if r["who"] == f1.THEIRS
    ]
    return Curves(sorted(best), bounds, theirs)


def draw_timelines(file: Path, by_model: Mapping[str, Sequence[TextRow]]) -> None:
    """Figure 2: our plan by kind of memory; the two others as lines.  Steps are counted from the start of the backward."""
    with _panels(file, list(by_model)) as panels:
        for model, axes in panels.items():
            rows = {r["who"]: {band: _series(r[column]) for band, column in f2.SERIES.items()} for r in by_model[model]}
            start = {r["who"]: int(r["forward_steps"]) for r in by_model[model]}
            over = {r["who"]: percent(float(r["overhead"])) for r in by_model[model]}
            total = {who: [*map(sum, zip(*bands.values()))] for who, bands in rows.items()}
            scale, unit = unit_of(max(max(t) for t in total.values()))
            if f2.OURS in rows:
                steps = [j - start[f2.OURS] for j in range(len(total[f2.OURS]))]
                floor = [0.0] * len(steps)
                for band, row in rows[f2.OURS].items():
                    face, hatch = LOOK[band]
                    top = [f + r / scale for f, r in zip(floor, row)]
                    how = {"facecolor": face, "edgecolor": INK if hatch else face, "hatch": hatch, "linewidth": 0.0}
                    axes.fill_between(steps, floor, top, step="post", label=band.value if any(row) else "_", **how)
                    floor = top
            for who, style in ((f2.THEIRS, OTHER), (f2.NOTHING, LIMIT)):
                if who in total:
                    steps = [j - start[who] for j in range(len(total[who]))]
                    axes.step(steps, [b / scale for b in total[who]], where="post", label=who, **style)
            axes.axvline(0, color=FAINT, linewidth=0.8)
            axes.set_ylim(bottom=0.0)
            axes.set_xlabel(f"steps from the start of the backward; overheads {_said(over)}")
            axes.set_ylabel(f"live bytes ({unit})")


def _series(cell: str) -> list[int]:
    return [int(word) for word in cell.split()]


def _said(over: Mapping[str, str]) -> str:
    return ", ".join(f"{who} {over[who]} %" for who in (f2.THEIRS, f2.OURS) if who in over)


def draw_time_limits(file: Path, by_model: Mapping[str, Sequence[TextRow]]) -> None:
    """Figure 3: overhead and bound against the limit on a logarithmic axis."""
    with _panels(file, list(by_model)) as panels:
        for model, axes in panels.items():
            rows = sorted(by_model[model], key=lambda r: float(r["limit_seconds"]))
            seconds = [float(r["limit_seconds"]) for r in rows]
            over, bounds = ([100 * (number(r, column) or 0.0) for r in rows] for column in ("overhead", "bound"))
            axes.fill_between(seconds, bounds, over, facecolor="#dfe7ee", linewidth=0.0, label="not ruled out")
            axes.plot(seconds, over, color=BLUE, marker="o", markersize=5, linewidth=1.4, label="best plan")
            axes.plot(seconds, bounds, marker="v", markersize=4, label="proven lower bound", **PROVEN)
            axes.set_xscale("log")
            axes.set_xticks(seconds, [f"{s:g}" for s in seconds])
            axes.minorticks_off()
            axes.set_ylim(bottom=0.0)
            axes.set_xlabel("time limit (s)")
            axes.set_ylabel("overhead (%)")


DRAWN: dict[str, Callable[[Path, Mapping[str, Sequence[TextRow]]], None]] = {
    "frontier": draw_frontiers,
    "timeline": draw_timelines,
    "time_limit": draw_time_limits,
}
