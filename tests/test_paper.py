"""The paper's tables, numbers and figures come from the results, and its text claims nothing else."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import __main__ as command
from experiments import figures, tables
from experiments.frontier import OURS, THEIRS
from experiments.registry import NAMES, Experiment, Table, TextRow, get
from experiments.timeline import SERIES

pytest.importorskip("pandas", reason="the extra 'paper' is not installed")
pytest.importorskip("jinja2", reason="the extra 'paper' is not installed")

EVALUATION = (tables.PAPER / "sections" / "evaluation.tex").read_text()
SECTIONS = {
    f.name: f.read_text() for f in [tables.PAPER / "main.tex", *sorted((tables.PAPER / "sections").glob("*.tex"))]
}


def defined(numbers: str) -> set[str]:
    return set(re.findall(r"\\newcommand\{\\(\w+)\}", numbers))


# ----------------------------------------------------------------------------------------- what is committed


def test_committed_tables_follow_from_the_committed_results(tmp_path: Path) -> None:
    """Fails when a number was typed, and when results came without: python -m experiments tables."""
    made = {f.name: f.read_text() for f in tables.write_tables(folder=tmp_path)}
    assert {f.name: f.read_text() for f in (tables.PAPER / "tables").iterdir()} == made


def test_a_figure_in_the_text_is_a_macro() -> None:
    """No digit in the evaluation but in labels, in the numbers of figures, and in n squared."""
    text = re.sub(r"(?m)%.*$|\\(?:tabled|drawn|ref)\{[^}]*\}(?:\{\d+\})?", "", EVALUATION.replace(r"\%", ""))
    assert re.findall(r".{,30}\d.{,30}", text) == []


def given(text: str, numbers: set[str]) -> str:
    r"""What LaTeX keeps of \given and \lacking."""
    while found := re.search(r"\\(given|lacking)\{(\w+)\}\{", text):
        end, depth = found.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        kept = (found[2] in numbers) == (found[1] == "given")
        text = text[: found.start()] + (text[found.end() : end - 1] if kept else "") + text[end:]
    return text


def test_given() -> None:
    assert given(r"a \given{X}{b {c} \given{Y}{d}}\lacking{Y}{e}\given{Y}{\X{}}", {"X"}) == "a b {c} e"


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_text_quotes_what_is_there(name: str) -> None:
    """Each number that is printed has results; a sentence without them stands in \\given."""
    numbers = defined((tables.PAPER / "tables" / "numbers.tex").read_text())
    prefixes = "|".join("".join(w.capitalize() for w in n.split("_")) for n in NAMES)
    text = re.sub(r"(?m)(?<!\\)%.*$", "", SECTIONS[name])
    assert set(re.findall(rf"\\((?:{prefixes})[A-Z]\w*)", given(text, numbers))) <= numbers


@pytest.mark.parametrize("name", NAMES)
def test_each_experiment_is_in_the_evaluation(name: str) -> None:
    number = get(name).label.split()[-1]
    asked = rf"\drawn{{{name}}}{{{number}}}" if get(name).is_figure else rf"\tabled{{{name}}}"
    assert asked in EVALUATION


def test_citations_have_entries() -> None:
    cited = {
        k for text in SECTIONS.values() for keys in re.findall(r"\\cite[tp]?\{([^}]*)\}", text) for k in keys.split(",")
    }
    entries = re.findall(r"(?m)^@\w+\{(\w+),", (tables.PAPER / "references.bib").read_text())
    assert len(entries) == len(set(entries))
    assert cited == set(entries)


# --------------------------------------------------------------------------------------------------- tables

EXAMPLE = Experiment(
    name="an_example",
    label="Table 7",
    title="Halves & wholes",
    cases=tuple({"model": "gpt", "n": n} for n in range(3)),
    smoke=({"model": "gpt", "n": 9},),
    results=("peak_bytes", "pytorch_overhead", "ratio", "seconds", "note"),
    run=lambda case: {},
    summary=lambda rows: "",
    minutes=1,
)
ROWS: Sequence[TextRow] = [
    {
        "model": "gpt",
        "n": "0",
        "peak_bytes": "1572864",
        "pytorch_overhead": "0.125",
        "ratio": "",
        "seconds": "0.123456",
        "note": "a_b",
        "reason": "",
    },
    {
        "model": "gpt",
        "n": "1",
        "peak_bytes": "",
        "pytorch_overhead": "",
        "ratio": "",
        "seconds": "",
        "note": "",
        "reason": "E: 100 %",
    },
]


def test_without_a_table_all_columns_are_shown() -> None:
    """But keys that say the same in all rows, and results that are nowhere; in the units of the columns' names."""
    second = {**ROWS[0], "n": "1", "seconds": "12"}
    table = tables.every_column(EXAMPLE, [ROWS[0], second])
    assert table.header == ("n", "peak_MiB", "pytorch_overhead_%", "seconds", "note")
    assert table.lines == (("0", "1.50", "12.50", "0.1235", "a_b"), ("1", "1.50", "12.50", "12", "a_b"))


def test_a_table_says_what_is_missing() -> None:
    text = tables.latex(EXAMPLE, ROWS)
    assert r"\caption{Halves \& wholes.}\label{tab:an_example}" in text
    assert r"\renewcommand{\thetable}{7}" in text
    assert r"a\_b" in text
    assert "2 of 3 rows are there" in text
    assert r"Failed: gpt 1: E: 100 \%." in text
    nothing = tables.latex(EXAMPLE, ROWS[1:])
    assert r"No results yet: \texttt{python -m experiments run an\_example}" in nothing
    skipped = tables.latex(EXAMPLE, [ROWS[0], {**ROWS[1], "reason": "skipped: no file"}])
    assert "1 of these rows were not run" in skipped
    assert "Failed" not in skipped


def test_a_name_is_said_once() -> None:
    table = Table(("name", "x"), (("a", "1"), ("a", "2"), ("b", "3")))
    text = tables.latex(replace(EXAMPLE, table=lambda rows: table), ROWS)
    assert [line.split("&")[0].strip() for line in text.splitlines() if re.search(r"& \d \\\\$", line)] == [
        "a",
        "",
        "b",
    ]


def test_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_one = replace(EXAMPLE, numbers=lambda rows: {"Largest": f"{len(rows)} %"})
    _write(tmp_path / "an_example.csv", ROWS)
    for spec in (with_one, replace(EXAMPLE, numbers=lambda rows: {"Top5": "1"})):
        monkeypatch.setattr(tables, "get", lambda name, spec=spec: spec)
        if spec is with_one:
            tables.write_tables(tmp_path, tmp_path / "tables", ["an_example"])
            text = (tmp_path / "tables" / "numbers.tex").read_text()
            assert defined(text) == {f"AnExample{name}" for name in ("Rows", "Cases", "Failed", "Largest")}
            assert r"\newcommand{\AnExampleLargest}{1 \%}" in text
        else:
            with pytest.raises(ValueError, match="letters only"):
                tables.write_tables(tmp_path, tmp_path / "tables", ["an_example"])
    tables.write_tables(tmp_path / "empty", tmp_path / "tables", [])
    assert defined((tmp_path / "tables" / "numbers.tex").read_text()) == set()


# -------------------------------------------------------------------------------------------------- figures


def _write(path: Path, rows: Sequence[TextRow]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _point(who: str, budget: str, peak: str, overhead: str, bound: str = "") -> dict[str, str]:
    asked = {"model": "gpt", "config": "", "who": who, "memory_budget": budget}
    return {**asked, "budget_bytes": peak, "peak_bytes": peak, "overhead": overhead, "bound": bound, "reason": ""}


POINTS = [
    _point(OURS, "0.0", "100", "0.3", "0.1"),
    {**_point(OURS, "0.5", "150", "0.4", "0.2"), "peak_bytes": "140"},  # worse than the one below
    _point(OURS, "1.0", "200", "0.0", "0.0"),
    _point(THEIRS, "0.5", "180", "0.5"),
]


def test_points_and_bounds_of_a_frontier() -> None:
    """A plan serves every higher budget, a bound every lower one."""
    curves = figures.curves_of(POINTS)
    assert curves.ours == [(100, 0.3), (200, 0.0)]
    assert curves.bounds == [(100, 0.2), (150, 0.2), (200, 0.0)]
    assert curves.theirs == [("budget", 0.5, 180, 0.5)]
    assert (curves.lowest, curves.highest) == (100, 200)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    _write(tmp_path / "frontier.csv", POINTS)
    steps: dict[str, Any] = {column: f"{i} {2 * i} {i}" for i, column in enumerate(SERIES.values())}
    asked = {"model": "gpt", "config": "", "forward_steps": "2", "overhead": "0.1", "reason": ""}
    _write(tmp_path / "timeline.csv", [{**asked, "who": who, **steps} for who in (OURS, THEIRS)])
    limits = [{**asked, "limit_seconds": s, "bound": b} for s, b in (("1", ""), ("10", "0.05"))]
    _write(tmp_path / "time_limit.csv", limits)
    return tmp_path


def test_equal_results_give_equal_figures(results: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'paper' is not installed")
    first, second = (figures.write_figures(results, results / name) for name in ("a", "b"))
    assert [f.name for f in first] == ["frontier.pdf", "timeline.pdf", "time_limit.pdf"]
    for a, b in zip(first, second):
        assert a.read_bytes() == b.read_bytes()
        assert b"CreationDate" not in a.read_bytes()


def test_without_results_there_is_no_figure(tmp_path: Path) -> None:
    assert figures.write_figures(tmp_path, tmp_path / "figures") == []


def test_the_commands(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["tables", "--results", str(results / "none"), "--out", str(results / "paper")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + sum(not get(name).is_figure for name in NAMES)

    def missing(*_: Any) -> list[Path]:
        raise ImportError("no pandas")

    monkeypatch.setattr(command, "write_tables", missing)
    assert command.main(["tables"]) == 2
    assert "pip install -e '.[paper]'" in capsys.readouterr().err
