"""LaTeX tables and numbers of the paper, from the CSVs: nothing in ``paper/tables`` is typed.

    results/NAME.csv, .meta.json ──> tables/NAME.tex     a floating table; without results a line that says so
                                 ──> tables/numbers.tex  ``\\newcommand{\\NameRows}{36}`` and so on: what the text may quote

A table stands under the number that its experiment is called by, so that the paper, the README's map and the command
agree.  Below it stand how many of the cases are there, the failures with their reasons, and what it was made with.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common import mib, percent
from experiments.registry import NAMES, Experiment, Table, TextRow, get, number
from experiments.run import RESULTS, failed, skipped

PAPER = Path(__file__).parents[1] / "paper"
HEAD = "% Made by `python -m experiments tables`; do not edit.\n"
SPECIAL = {c: f"\\{c}" for c in "%&_#${}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
FRACTIONS = ("overhead", "bound", "gap")


def write_tables(results: Path = RESULTS, folder: Path = PAPER / "tables", names: Sequence[str] = NAMES) -> list[Path]:
    """All tables and the numbers; the files, in order.

    Raises:
        ImportError: pandas or jinja2 is not installed (extra ``paper``).
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [(get(name), rows_of(results, name)) for name in names]
    texts = {e.name: latex(e, rows, _meta(results, e.name)) for e, rows in chosen if not e.is_figure}
    texts["numbers"] = "".join(_macros(e, rows) for e, rows in chosen)
    for name, text in texts.items():
        (folder / f"{name}.tex").write_text(HEAD + text)
    return [folder / f"{name}.tex" for name in texts]


def rows_of(results: Path, name: str) -> list[TextRow]:
    """The rows of an experiment's CSV; none if there is none."""
    path = results / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _meta(results: Path, name: str) -> list[dict[str, Any]]:
    path = results / f"{name}.meta.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


# ------------------------------------------------------------------------------------------------ tables


def latex(experiment: Experiment, rows: Sequence[TextRow], runs: Sequence[Mapping[str, Any]] = ()) -> str:
    """One table as a float."""
    good = [row for row in rows if not row["reason"]]
    if good:
        table = (experiment.table or (lambda some: every_column(experiment, some)))(good)
        body = _tabular(table)
    else:
        body = f"\\emph{{No results yet: \\texttt{{python -m experiments run {escape(experiment.name)}}}.}}\n"
    return (
        "\\begin{table}[tbp]\n"
        f"\\renewcommand{{\\thetable}}{{{experiment.label.split()[-1]}}}\n"
        f"\\caption{{{escape(experiment.title)}.}}\\label{{tab:{experiment.name}}}\n"
        f"\\centering\\small\n{body}{_note(experiment, rows, runs)}\\end{{table}}\n"
    )


def every_column(experiment: Experiment, rows: Sequence[TextRow]) -> Table:
    """Key columns that differ between the rows, and all results, in units that their names tell."""
    keys = [k for k in experiment.keys if len({row[k] for row in rows}) > 1]
    results = [c for c in experiment.results if any(row[c] for row in rows)]
    header = (*keys, *(_unit(c) for c in results))
    return Table(header, tuple((*(r[k] for k in keys), *(_cell(r, c) for c in results)) for r in rows))


def _unit(column: str) -> str:
    if column.endswith("_bytes"):
        return f"{column.removesuffix('_bytes')}_MiB"
    return f"{column}_%" if _fraction(column) else column


def _fraction(column: str) -> bool:
    return column.rpartition("_")[2] in FRACTIONS


def _cell(row: TextRow, column: str) -> str:
    if column.endswith("_bytes"):
        return mib(number(row, column))
    if _fraction(column):
        return percent(number(row, column))
    return f"{float(row[column]):.4g}" if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", row[column]) else row[column]


def _tabular(table: Table) -> str:
    import pandas

    frame = pandas.DataFrame(list(table.lines), columns=list(table.header))
    frame[table.header[0]] = _once(line[0] for line in table.lines)
    style = frame.style.hide(axis="index").format(escape).format_index(_stacked, axis="columns")
    text: str = style.to_latex(column_format="l" + "r" * (len(table.header) - 1), hrules=True)
    return f"\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}{{!}}{{%\n{text.rstrip()}}}\n"


def _once(names: Any) -> list[str]:
    """What stands in the line above is not said again."""
    found, before = [], None
    for name in names:
        found.append("" if name == before else name)
        before = name
    return found


def _stacked(title: str) -> str:
    """A column's title, one word below the other."""
    words = r" \\ ".join(map(escape, title.split("_")))
    return rf"\begin{{tabular}}[b]{{@{{}}c@{{}}}}{words}\end{{tabular}}"


def _note(experiment: Experiment, rows: Sequence[TextRow], runs: Sequence[Mapping[str, Any]]) -> str:
    """Below the table: how much of it is there, what failed, what it was made with."""
    said = []
    if len(rows) < len(experiment.cases):
        said.append(f"\\textbf{{{len(rows)} of {len(experiment.cases)} rows are there.}}")
    if absent := skipped(rows):
        said.append(f"\\textbf{{{len(absent)} of these rows were not run}} ({escape(absent[0]['reason'])}).")
    for row in failed(rows):
        said.append(f"Failed: {escape(' '.join(row[k] for k in experiment.keys if row[k]))}: {escape(row['reason'])}.")
    for run in runs:
        versions = run["versions"]
        said.append(
            f"{run['rows']} rows: commit \\texttt{{{run['commit']}}}, torch {versions['torch']}, "
            f"OR-Tools {versions['ortools']}, {run['threads']} thread, {run['cores']} cores with a load of {run['load']}."
        )
    return f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {' '.join(said)}}}\n" if said else ""


def escape(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(SPECIAL.get(c, c) for c in text)


# ----------------------------------------------------------------------------------------------- numbers


def _macros(experiment: Experiment, rows: Sequence[TextRow]) -> str:
    """Nothing without a row that has results: then the text, which asks for them, says nothing either."""
    prefix = "".join(word.capitalize() for word in experiment.name.split("_"))
    good = [row for row in rows if not row["reason"]]
    if not good:
        return ""
    numbers = {"Rows": str(len(good)), "Cases": str(len(experiment.cases)), "Failed": str(len(failed(rows)))}
    if experiment.numbers:
        numbers |= experiment.numbers(good)
    lines = []
    for name, value in numbers.items():
        if not re.fullmatch("[A-Za-z]+", prefix + name):
            raise ValueError(f"{experiment.name} names a number {name!r}; a name has letters only")
        lines.append(f"\\newcommand{{\\{prefix}{name}}}{{{escape(value)}}}\n")
    return f"% {experiment.label}: {experiment.name}\n{''.join(lines)}"
