"""Runs an experiment into a CSV, one row at a time, so that it can be stopped and taken up again.

The file is written anew after every row and put in its place at once, so it is whole at any moment.  Rows that it
already has are not run again, unless they were interrupted or skipped.  Beside it a ``.meta.json`` says what each run
was made with.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.registry import Cell, Experiment, Row, Skipped, TextRow

RESULTS = Path(__file__).parent / "results"
INTERRUPTED = "interrupted"
SKIPPED = "skipped: "
PACKAGES = ("torch", "ortools", "networkx", "scipy", "numpy")


def run(experiment: Experiment, folder: Path, *, smoke: bool = False, fresh: bool = False) -> list[TextRow]:
    """All rows of an experiment, those of an earlier run included; what fails is a row with its reason.

    Args:
        folder: where the CSV is, or will be.
        smoke: the small cases instead of the real ones.
        fresh: run the rows again that are there.

    Raises:
        ValueError: the CSV that is there has other columns.
        KeyboardInterrupt: the row that was running says so, and runs again next time.
    """
    import torch

    torch.set_num_threads(1)  # timings that compare, and sums in one order
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{experiment.name}.csv"
    cases = experiment.smoke if smoke else experiment.cases
    done = {} if fresh or not path.exists() else _read(path, experiment)
    missing = [case for case in cases if _key(case) not in done]
    earlier, here = [] if fresh else _earlier_runs(path), surroundings()
    begun = time.perf_counter()
    for new, case in enumerate(missing, 1):
        start = time.perf_counter()
        done[_key(case)] = row = _row(experiment, case)
        _write(path, experiment, cases, done)
        _write_meta(path, experiment, [*earlier, {"rows": new, "load": load(), **here}])
        left = (time.perf_counter() - begun) / new * (len(missing) - new)
        _progress(case, row, f"{new}/{len(missing)}", time.perf_counter() - start, left)
        if row["reason"] == INTERRUPTED:
            raise KeyboardInterrupt
    return [done[_key(case)] for case in cases]


def _row(experiment: Experiment, case: Row) -> TextRow:
    import torch

    results: Row = {}
    reason = ""
    try:
        torch.compiler.reset()
        results = experiment.run(case)
    except KeyboardInterrupt:
        reason = INTERRUPTED
    except Skipped as e:
        reason = f"{SKIPPED}{e}"
    except Exception as e:  # a row that failed is a result too
        reason = f"{type(e).__name__}: {' '.join(str(e).split())}"[:300]
    unknown = results.keys() - set(experiment.results)
    if unknown:
        raise ValueError(f"{experiment.name} returned {sorted(unknown)}, which are no columns of it")
    row = {**case, **results, "reason": reason}
    return {column: text(row.get(column)) for column in experiment.columns}


def _progress(case: Row, row: TextRow, count: str, seconds: float, left: float) -> None:
    asked = " ".join(f"{k}={v}" for k, v in case.items() if v not in ("", None))
    came = row["reason"] or "ok"
    print(f"  [{count}] {asked}: {came} ({seconds:.1f} s, about {left / 60:.0f} min left)", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------- files


def text(cell: Cell) -> str:
    """A cell as it stands in the CSV; a float to its last digit."""
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _key(row: Row) -> str:
    """What identifies a case.  Rows from the CSV come with their key columns only."""
    return "\t".join(f"{k}={text(v)}" for k, v in row.items())


def _read(path: Path, experiment: Experiment) -> dict[str, TextRow]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if tuple(reader.fieldnames or ()) != experiment.columns:
        raise ValueError(f"{path.name} has other columns than {experiment.name} writes: move it away, or use --fresh")
    return {_key({k: row[k] for k in experiment.keys}): row for row in rows if not _again(row)}


def _again(row: TextRow) -> bool:
    """Is the row of a case that the next run tries again?"""
    return row["reason"] == INTERRUPTED or row["reason"].startswith(SKIPPED)


def _write(path: Path, experiment: Experiment, cases: Iterable[Row], done: dict[str, TextRow]) -> None:
    """The rows that there are, in the order of the cases."""
    part = path.with_suffix(".csv.part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, experiment.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(done[key] for case in cases if (key := _key(case)) in done)
    part.replace(path)


def _earlier_runs(path: Path) -> list[Any]:
    meta = path.with_suffix(".meta.json")
    runs: list[Any] = json.loads(meta.read_text())["runs"] if meta.exists() else []
    return runs


def _write_meta(path: Path, experiment: Experiment, runs: list[Any]) -> None:
    """One entry for each run that added rows: a table that was made in pieces says so."""
    what = {"experiment": experiment.name, "label": experiment.label, "seed": experiment.seed, "runs": runs}
    path.with_suffix(".meta.json").write_text(json.dumps(what, indent=1) + "\n")


def surroundings() -> dict[str, Any]:
    """What a result depends on beside its case."""
    import torch

    from optpart.cost.machine import cpu_name

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "versions": {"python": sys.version.split()[0]} | {p: importlib.metadata.version(p) for p in PACKAGES},
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def load() -> float:
    """The mean number of running processes over the last 15 minutes.

    Above the number of threads, others were at work on the machine, and times are worth less.
    """
    return round(os.getloadavg()[2], 1)


def _commit() -> str:
    """The checkout's commit, with a "+" if files differ from it."""

    def git(*args: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", "../optpart", "../models", ":!results")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def failed(rows: Sequence[TextRow]) -> list[TextRow]:
    """The rows with a reason other than that something is absent here."""
    return [row for row in rows if row["reason"] and not row["reason"].startswith(SKIPPED)]


def skipped(rows: Sequence[TextRow]) -> list[TextRow]:
    """The rows whose case cannot be run here."""
    return [row for row in rows if row["reason"].startswith(SKIPPED)]
