"""The experiments by name, as frozen data: what each runs, which columns it fills, what it is called in the paper.

    case (what is asked) ──run──> results (what came out) ──> one row of the CSV ──summary──> a few lines of text
                                                                       ├── table ────> a table of the paper
                                                                       └── numbers ──> what its text may quote

An experiment is a file in this folder with a ``SPEC``.  One case is one row: one solve or one measurement.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
TextRow = Mapping[str, str]  # a row as it is read back from the CSV: "" for None, "true" and "false"

NAMES = (
    "models",
    "gradients",
    "equal_peak",
    "smallest_peak",
    "cost_models",
    "partition_time",
    "inductor_peak",
    "instances",
    "ablation",
    "frontier",
    "timeline",
    "time_limit",
)


class Skipped(Exception):
    """A case cannot be run here; the message says what is absent.  It is tried again by the next run."""


@dataclass(frozen=True)
class Table:
    """What a person reads of a CSV: lines of text under a header, in which "_" is a space.  The first column is text."""

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    ``cases`` are the rows in order, each with the same keys, which identify it; ``smoke`` are other, small ones that
    take seconds and run the same code.  ``results`` are the columns that ``run`` fills in, with units in their
    names: sizes in bytes, ``seconds`` wall time, overhead, bound and gap as fractions.  ``seed`` is of weights,
    batches and searches.  ``minutes`` is about what all cases take on two cores.

    ``table`` and ``numbers`` are for the paper, and like ``summary`` are given the rows without a failure, at least
    one.  Without a ``table`` all columns are shown.  ``numbers`` have names of letters: "Median" of the experiment
    "equal_peak" is the macro ``\\EqualPeakMedian``.  Nothing in them but what follows from the rows.
    """

    name: str
    label: str
    title: str
    cases: tuple[Row, ...]
    smoke: tuple[Row, ...]
    results: tuple[str, ...]
    run: Callable[[Row], Row]
    summary: Callable[[Sequence[TextRow]], str]
    minutes: int
    seed: int = 0
    table: Callable[[Sequence[TextRow]], Table] | None = None
    numbers: Callable[[Sequence[TextRow]], Mapping[str, str]] | None = None

    @property
    def is_figure(self) -> bool:
        return self.label.startswith("Figure")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(self.cases[0])

    @property
    def columns(self) -> tuple[str, ...]:
        """The CSV's header.  ``reason`` is empty, or says why a case has no results ("skipped: ..." is no failure)."""
        return (*self.keys, *self.results, "reason")


def get(name: str) -> Experiment:
    """The experiment called ``name``; imports its file.

    Raises:
        ValueError: there is none; names the closest.
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"no experiment is called {name!r}{hint} (there is: {', '.join(NAMES)})")
    spec: Experiment = importlib.import_module(f"experiments.{name}").SPEC
    return spec


def number(row: TextRow, column: str) -> float | None:
    """A cell as a number; None if it is empty."""
    return float(row[column]) if row[column] else None


def median(numbers: Sequence[float]) -> float:
    """The middle one, or the mean of the middle two."""
    ordered, n = sorted(numbers), len(numbers)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
