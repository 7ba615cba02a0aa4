"""The frontier as a figure: peak memory against overhead, what is proven below it, PyTorch's partitions beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpart.figures import BLUE, INK, OTHER, RED, canvas, unit_of

if TYPE_CHECKING:  # imports torch; its data is only read
    from optpart.frontiers import Frontier

PROVEN = {"color": INK, "linewidth": 0.9, "linestyle": (0, (1, 1.2))}
PYTORCH = {
    "budget": ("x", "PyTorch, memory budget"),
    "min-cut": ("s", "PyTorch, min-cut"),
    "default": ("D", "PyTorch, default"),
}


@dataclass(frozen=True)
class Curves:
    """What is drawn, by rising bytes.  Overheads and bounds are fractions.

    ``ours``: (peak, overhead) of plans, a higher peak with no more overhead.  ``bounds``: (budget, bound), each of
    which holds at all lower budgets too.  ``theirs``: (method, PyTorch's own budget, peak, overhead).
    """

    ours: Sequence[tuple[int, float]]
    bounds: Sequence[tuple[int, float]]
    theirs: Sequence[tuple[str, float | None, int, float]]

    @property
    def highest(self) -> int:
        return max(x for x, *_ in (*self.ours, *self.bounds, *(t[2:] for t in self.theirs)))

    @property
    def lowest(self) -> int:
        return min(x for x, *_ in (*self.ours, *(t[2:] for t in self.theirs)))


def draw_frontier(file: str | Path, found: Frontier, title: str = "") -> None:
    """The frontier of a model as a file.  Peaks are measured where a step was run.

    Raises:
        NoFigure: no matplotlib, or an unknown suffix.
    """
    peaks: list[int] = [m.peak_bytes for m in found.measured] or [p.peak_bytes for p in found.points]
    theirs = [
        (a.method, a.budget, a.measured_peak_bytes or a.peak_bytes, a.overhead)
        for a in found.pytorch
        if a.peak_bytes is not None and a.overhead is not None
    ]
    curves = Curves(
        [(x, p.overhead) for x, p in zip(peaks, found.points)],
        [(p.budget_bytes, p.bound or 0.0) for p in found.points],
        theirs,
    )
    with canvas(file, 8.6, 4.6) as figure:
        axes = figure.add_axes((0.08, 0.125, 0.66, 0.79))
        unit = draw_curves(axes, curves)
        axes.set_xlabel(f"{'measured ' if found.measured else ''}peak ({unit}), everything resident included")
        axes.set_ylabel("overhead: recompute time, % of forward + backward")
        axes.set_title(title, loc="left", fontsize=11)
        figure.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.75, 0.915), labelspacing=0.9, handlelength=2.4)


def draw_curves(axes: Any, curves: Curves) -> str:
    """Draw into axes; returns the unit of the horizontal one.

    Between ours, a staircase, and the bounds lies what is neither reached nor ruled out.
    """
    highest, lowest = curves.highest, curves.lowest
    scale, unit = unit_of(highest)
    margin = max(0.04 * (highest - lowest), 0.001 * highest)
    right = (highest + margin) / scale
    ours = [(x / scale, 100 * y) for x, y in curves.ours]
    bounds = [(x / scale, 100 * y) for x, y in curves.bounds]
    last = (right, ours[-1][1])
    axes.step(*zip(*ours, last), where="post", color=BLUE, linewidth=1.4)
    style = {"color": BLUE, "marker": "o", "markersize": 5, "clip_on": False, "zorder": 4}
    axes.plot(*zip(*ours), linestyle="none", label="optpart", **style)
    axes.step(*zip(*bounds, (right, 0.0)), where="pre", label="proven lower bound", **PROVEN)
    _open(axes, ours, bounds, right)
    for method, (marker, label) in PYTORCH.items():
        dots = [(x / scale, 100 * y) for m, _, x, y in curves.theirs if m == method]
        if dots:
            line = {**OTHER, "linewidth": 0.8} if method == "budget" else {"color": RED, "linestyle": "none"}
            size = {"x": 5.5, "s": 7.0, "D": 9.5}[marker]  # where they meet, one is seen around the other
            style = {"marker": marker, "markersize": size, "markerfacecolor": "none", "clip_on": False, "zorder": 3}
            axes.plot(*zip(*dots), label=label, **line, **style)
    names: dict[tuple[float, float], list[str]] = {}
    for _, budget, x, y in curves.theirs:
        if budget is not None:
            names.setdefault((x / scale, 100 * y), []).append(f"{budget:g}")
    for at, budgets in names.items():
        near = {"textcoords": "offset points", "xytext": (5, 4), "fontsize": 7, "color": RED, "annotation_clip": False}
        axes.annotate(", ".join(budgets), at, **near)
    axes.set_xlim((lowest - margin) / scale, right)
    axes.set_ylim(bottom=0.0)
    return unit


def _open(axes: Any, ours: Sequence[tuple[float, float]], bounds: Sequence[tuple[float, float]], right: float) -> None:
    """Fill what is open: below the staircase of ours, above the bounds, each of which holds at all lower budgets."""
    cuts = sorted({right, *(x for x, _ in (*ours, *bounds))})
    label = "not ruled out"
    for a, b in itertools.pairwise(cuts):
        top = min((y for x, y in ours if x <= a), default=0.0)
        low = max((y for x, y in bounds if x >= b), default=0.0)
        if top > low:
            axes.fill_between([a, b], [low, low], [top, top], facecolor="#dfe7ee", linewidth=0.0, label=label)
            label = "_"  # one entry in the legend is enough
