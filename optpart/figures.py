"""Figures as files: how they look, and the memory timeline.  The file's suffix says which kind: svg, pdf, png.

They can be read without colour: areas differ in brightness and hatching, lines in their dashes, points in
their shape.  The same data give the same file, byte for byte.  matplotlib comes with the extra ``paper``
and is imported when something is drawn.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpart.liveness import simulate
from optpart.report import GraphReport
from optpart.timelines import Band, Timeline, timeline
from optpart.units import format_bytes

SUFFIXES = (".svg", ".pdf", ".png")
# face colour, hatch; brightness and hatching of neighbours in the stack differ
LOOK = {
    Band.PARAMETERS: ("#c9cdd2", ""),
    Band.INPUTS: ("#eceef0", ""),
    Band.OUTPUTS: ("#ffffff", "...."),
    Band.GRADIENTS: ("#8d949c", ""),
    Band.SAVED: ("#2f6690", ""),
    Band.FORWARD: ("#a9cbe4", ""),
    Band.RECOMPUTED: ("#f6ae5b", "////"),
    Band.BACKWARD: ("#e6dcc8", ""),
    Band.WORKSPACE: ("#3b3b3b", "xxxx"),
}
INK, FAINT, RED, BLUE = "#22262a", "#6b737b", "#9d1c20", "#2f6690"
OTHER = {"color": RED, "linewidth": 1.1, "linestyle": (0, (4, 1.6))}
LIMIT = {"color": INK, "linewidth": 0.9, "linestyle": (0, (1, 2))}
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "optpart",
    "savefig.dpi": 160.0,
}


class NoFigure(RuntimeError):
    """A figure cannot be drawn; the message says what to do."""


def check_figure(*files: str | Path | None) -> None:
    """Refuse what cannot be drawn, before minutes are spent on what should be in it.

    Raises:
        NoFigure: matplotlib is not installed, or a file's suffix is none that is known.
    """
    for file in files:
        if file is None:
            continue
        if Path(file).suffix.lower() not in SUFFIXES:
            raise NoFigure(f"cannot draw {file}: the name has to end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        if importlib.util.find_spec("matplotlib") is None:
            raise NoFigure("figures need matplotlib, which is not installed; it comes with: pip install 'optpart[paper]'")


@contextlib.contextmanager
def canvas(file: str | Path, width: float, height: float) -> Iterator[Any]:
    """A figure in inches, written when the block is left."""
    check_figure(file)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        yield figure
        kind = Path(file).suffix.lower()
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(file, metadata=dated, facecolor="white")


def unit_of(largest: float) -> tuple[float, str]:
    """The unit in which the largest number of bytes is at least 1."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if largest >= size:
            return float(size), name
    return 1.0, "bytes"


# -------------------------------------------------------------------------------------------- timeline


@dataclass(frozen=True)
class Line:
    """Another plan of the same problem, as a line: live bytes by step, the first ``split`` of them in the forward."""

    label: str
    total: Sequence[int]
    split: int
    overhead: float


def draw_plan(file: str | Path, report: GraphReport, title: str = "") -> None:
    """The timeline of a reported plan; beside it PyTorch's partition whose peak is nearest, if there is one.

    Raises:
        NoFigure: no matplotlib, or an unknown suffix.
    """
    other = None
    wanted = "min-cut" if report.memory_budget is None else "budget"
    for answer in report.pytorch:
        if answer.method == wanted and answer.plan is not None:
            live = simulate(report.problem, answer.plan)
            name = "PyTorch, min-cut" if answer.budget is None else f"PyTorch, budget {answer.budget:g}"
            other = Line(name, live.timeline, len(answer.plan.forward), live.overhead)
    found = timeline(report.problem, report.plan, report.liveness)
    draw_timeline(file, found, report.liveness.overhead, title=title, budget_bytes=report.budget_bytes, other=other)


def draw_timeline(
    file: str | Path,
    found: Timeline,
    overhead: float,
    *,
    title: str = "",
    budget_bytes: int | None = None,
    other: Line | None = None,
    names: int = 10,
) -> None:
    """Live bytes of a plan at every step, stacked by kind; beside it what is alive at the peak.

    Args:
        file: its suffix says which kind of file.
        found: the plan's timeline.
        overhead: of the plan, a fraction.
        title: over the figure.
        budget_bytes: drawn as a horizontal line.
        other: another plan.  Steps are counted from the border of forward and backward, so the two borders meet.
        names: how many of the largest values alive at the peak are named.

    Raises:
        NoFigure: no matplotlib, or an unknown suffix.
    """
    theirs = [*other.total, other.total[-1]] if other and other.total else []
    highest = max(found.peak_bytes, budget_bytes or 0, *theirs, 1)
    scale, unit = unit_of(highest)
    ours = [j - found.split for j in range(len(found.ops) + 1)]
    with canvas(file, 10.0, 5.2) as figure:
        axes = figure.add_axes((0.065, 0.11, 0.625, 0.78))
        floor = [0.0] * len(ours)
        for band, row in found.bands.items():
            face, hatch = LOOK[band]
            top = [f + r / scale for f, r in zip(floor, [*row, *row[-1:]])]
            edge = INK if hatch else face
            axes.fill_between(ours, floor, top, step="post", facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.0)
            floor = top
        axes.step(ours, floor, where="post", color=INK, linewidth=0.9)
        if other is not None:
            steps = range(-other.split, len(theirs) - other.split)
            axes.step(steps, [b / scale for b in theirs], where="post", **OTHER)
        if budget_bytes is not None:
            axes.axhline(budget_bytes / scale, **LIMIT)
        _border(axes)
        at = (found.peak_step - found.split + 0.5, found.peak_bytes / scale)
        axes.annotate("▼", at, xytext=(0, 1), textcoords="offset points", ha="center", va="bottom", annotation_clip=False)
        axes.set_xlim(min(ours[0], -other.split if other else 0), max(ours[-1], len(theirs) - 1 - other.split if other else 0))
        axes.set_ylim(0, 1.08 * highest / scale)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("steps (each runs one op), counted from the start of the backward")
        axes.set_ylabel(f"live bytes ({unit})")
        axes.set_title(title, loc="left", fontsize=11, pad=18)
        _peak_panel(figure, found, overhead, budget_bytes, other, names)


def _border(axes: Any) -> None:
    """Between forward and backward."""
    from matplotlib.transforms import blended_transform_factory

    where = blended_transform_factory(axes.transData, axes.transAxes)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.annotate("forward  ", (0, 1.01), xycoords=where, ha="right", va="bottom", color=FAINT)
    axes.annotate("  backward", (0, 1.01), xycoords=where, ha="left", va="bottom", color=FAINT)


def _peak_panel(
    figure: Any, found: Timeline, overhead: float, budget_bytes: int | None, other: Line | None, names: int
) -> None:
    """The legend, which says at the same time what is alive at the peak: kinds from the top of the stack, and names."""
    from matplotlib.patches import Rectangle

    panel = figure.add_axes((0.715, 0.03, 0.275, 0.94))
    panel.set_axis_off()
    panel.set_xlim(0, 1)
    named = found.alive[:names]
    y = 1.0

    def write(left: str, right: str, small: bool = False, **how: Any) -> None:
        if small:
            how = {"color": FAINT, "fontsize": 7.5, **how}
        panel.text(0.13 if small else 0.09, y, left, va="center", **how)
        panel.text(1.0, y, right, va="center", ha="right", **how)

    panel.text(0.03, y, "▼", ha="center", va="center")
    write("peak", format_bytes(found.peak_bytes), weight="bold")
    y += 0.9
    step = _short(found.ops[found.peak_step], 28) if found.ops else "nothing"
    write(f"while {step} runs", "", small=True)
    y += 1.2
    for band in (b for b in reversed(Band) if any(found.bands[b])):
        face, hatch = LOOK[band]
        panel.add_patch(Rectangle((0.0, y - 0.36), 0.062, 0.72, facecolor=face, edgecolor=INK, hatch=hatch, linewidth=0.5))
        write(band.value, format_bytes(found.bands[band][found.peak_step]))
        holders = [h for h in named if h.band is band]
        for holder in holders:
            y += 0.85
            write(_short(holder.name, 28), format_bytes(holder.nbytes), small=True)
        y += 1.1 if holders else 1.0
    y += 0.4
    write("overhead", f"{overhead:.2%}", weight="bold")
    y += 1
    if budget_bytes is not None:
        panel.plot([0.0, 0.07], [y, y], **LIMIT)
        write("memory budget", format_bytes(budget_bytes))
        y += 1
    if other is not None:
        panel.plot([0.0, 0.07], [y, y], **OTHER)
        write(other.label, format_bytes(max(other.total, default=0)))
        y += 0.85
        write("overhead", f"{other.overhead:.2%}", small=True)
    panel.set_ylim(max(y, 25) + 0.5, 0.5)


def _short(name: str, letters: int) -> str:
    """The middle of a long name is left out: its end has the number."""
    return name if len(name) <= letters else f"{name[: letters - 8]}…{name[-7:]}"
