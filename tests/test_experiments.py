"""The experiments as programs: found, run, stopped, taken up again.  What they find out is no test."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments.registry import NAMES, Experiment, Row, Skipped, TextRow, get, median, number
from experiments.run import RESULTS, failed, run, skipped, text

README = Path(command.__file__).with_name("README.md")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def files_in(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# ------------------------------------------------------------------------------------------ the registry


@pytest.mark.parametrize("name", NAMES)
def test_specs(name: str) -> None:
    spec = get(name)
    assert spec.name == name
    for cases in (spec.cases, spec.smoke):
        assert cases
        assert {tuple(case) for case in cases} == {spec.keys}
        assert len({tuple(case.values()) for case in cases}) == len(cases)
    assert len(set(spec.columns)) == len(spec.columns)


def test_labels_are_told_apart() -> None:
    assert len({get(name).label for name in NAMES}) == len(NAMES)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(get(name).title in line for name, line in zip(NAMES, lines))


def test_the_map_in_the_readme() -> None:
    """Table, experiment, command and minutes, for each experiment in its order."""
    found = re.findall(r"^\| (\S+ \d+) \| `python -m experiments run (\w+)` \| (\d+) \|", README.read_text(), re.M)
    assert found == [(spec.label, spec.name, str(spec.minutes)) for spec in map(get, NAMES)]


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "equal_peek"]) == 2
    assert "did you mean 'equal_peak'?" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- a real one


def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "gradients", "--smoke", "--out", str(tmp_path)]) == 0
    spec = get("gradients")
    rows = rows_of(tmp_path / "gradients.csv")
    assert len(rows) == len(spec.smoke)
    assert all(row["equal_bitwise"] == "true" and not row["reason"] for row in rows)
    meta = json.loads((tmp_path / "gradients.meta.json").read_text())
    assert meta["runs"][0]["rows"] == len(rows)
    assert meta["runs"][0]["versions"].keys() >= {"python", "torch", "ortools"}
    out = capsys.readouterr().out
    assert out.startswith(f"Table 2: {spec.title}")
    assert "mlp" in out


# --------------------------------------------------------------------------------- stopped and taken up


class Counting:
    """An experiment of four cases that counts its calls; ``stop``, ``fail`` and ``absent`` say which does not come through."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.stop: int | None = None
        self.fail: int | None = None
        self.absent: int | None = None

    def run(self, case: Row) -> Row:
        n = int(case["n"])
        self.calls.append(n)
        if n == self.stop:
            raise KeyboardInterrupt
        if n == self.fail:
            raise RuntimeError("does not\n come through")
        if n == self.absent:
            raise Skipped("no paper")
        return {"square": n * n, "half": n / 2, "odd": n % 2 == 1, "none": None}

    @property
    def spec(self) -> Experiment:
        return Experiment(
            name="counting",
            label="Table 0",
            title="Squares",
            cases=tuple({"n": n, "word": "a b"} for n in (3, 1, 2, 0)),
            smoke=({"n": 7, "word": ""},),
            results=("square", "half", "odd", "none"),
            run=self.run,
            summary=self.summary,
            minutes=1,
        )

    def summary(self, rows: Sequence[TextRow]) -> str:
        return f"sum {sum(number(row, 'square') for row in rows):g}"


def test_rows_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    counting = Counting()
    first = run(counting.spec, tmp_path)
    before = files_in(tmp_path)
    assert counting.calls == [3, 1, 2, 0]
    assert first[0] == {"n": "3", "word": "a b", "square": "9", "half": "1.5", "odd": "true", "none": "", "reason": ""}
    assert run(counting.spec, tmp_path) == first
    assert counting.calls == [3, 1, 2, 0]
    assert files_in(tmp_path) == before
    run(counting.spec, tmp_path, fresh=True)
    assert counting.calls == [3, 1, 2, 0] * 2


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """What was done stays, the row that was running says so, and the next run makes it and the rest."""
    counting = Counting()
    counting.stop = 2
    with pytest.raises(KeyboardInterrupt):
        run(counting.spec, tmp_path)
    rows = rows_of(tmp_path / "counting.csv")
    assert [(r["n"], r["reason"]) for r in rows] == [("3", ""), ("1", ""), ("2", "interrupted")]
    counting.stop = None
    counting.calls.clear()
    again = run(counting.spec, tmp_path)
    assert counting.calls == [2, 0]
    assert [r["n"] for r in again] == ["3", "1", "2", "0"]
    assert again == run(Counting().spec, tmp_path / "at once")
    runs = json.loads((tmp_path / "counting.meta.json").read_text())["runs"]
    assert [r["rows"] for r in runs] == [3, 2]


def test_a_failure_is_a_row_with_its_reason(tmp_path: Path) -> None:
    counting = Counting()
    counting.fail = 1
    rows = run(counting.spec, tmp_path)
    assert [r["reason"] for r in rows] == ["", "RuntimeError: does not come through", "", ""]
    assert rows[1]["square"] == ""
    run(counting.spec, tmp_path)
    assert counting.calls == [3, 1, 2, 0]


def test_a_skipped_row_is_no_failure_and_runs_another_time(tmp_path: Path) -> None:
    counting = Counting()
    counting.absent = 1
    rows = run(counting.spec, tmp_path)
    assert [r["reason"] for r in rows] == ["", "skipped: no paper", "", ""]
    assert (failed(rows), skipped(rows)) == ([], [rows[1]])
    counting.absent = None
    counting.calls.clear()
    assert run(counting.spec, tmp_path) == run(Counting().spec, tmp_path / "at once")
    assert counting.calls == [1]


def test_a_table_of_other_columns_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "counting.csv"
    path.write_text("n,word,cube,reason\n1,a b,1,\n")
    with pytest.raises(ValueError, match="other columns"):
        run(Counting().spec, tmp_path)
    assert path.read_text().startswith("n,word,cube")


def test_a_result_without_a_column_is_an_error(tmp_path: Path) -> None:
    counting = Counting()
    counting.run = lambda case: {"cube": 1}
    with pytest.raises(ValueError, match="cube"):
        run(counting.spec, tmp_path)


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The only experiment there is."""
    counting = Counting()
    monkeypatch.setattr(command, "NAMES", ("counting",))
    monkeypatch.setattr(command, "get", lambda name: counting.spec)
    return counting


def test_a_smoke_run_leaves_the_results_alone(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = files_in(RESULTS)
    assert command.main(["all", "--smoke"]) == 0
    assert files_in(RESULTS) == before
    assert [f.name for f in tmp_path.rglob("*.csv")] == ["counting.csv"]
    assert counting.calls == [7]
    assert "sum 49" in capsys.readouterr().out


def test_failures_are_printed_and_fail_a_smoke_run(
    counting: Counting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.fail = 3
    assert command.main(["all", "--out", str(tmp_path)]) == 0  # a table with a failure in it is a table
    out = capsys.readouterr().out
    assert "sum 5" in out
    assert "failed: 3 a b: RuntimeError" in out
    counting.fail = 7
    assert command.main(["all", "--smoke", "--out", str(tmp_path / "smoke")]) == 1


def test_an_interrupted_command(counting: Counting, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counting.stop = 1
    assert command.main(["run", "counting", "--out", str(tmp_path)]) == 130
    assert "goes on from here" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- what is committed


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda p: p.stem)
def test_committed_results(path: Path) -> None:
    """They are rows of their specs, say what they were made with, and can be summed up."""
    spec = get(path.stem)
    rows = rows_of(path)
    assert rows
    assert tuple(rows[0]) == spec.columns
    cases = {tuple(map(text, case.values())) for case in spec.cases}
    assert {tuple(row[k] for k in spec.keys) for row in rows} <= cases
    assert json.loads(path.with_suffix(".meta.json").read_text())["experiment"] == spec.name
    assert spec.summary([row for row in rows if not row["reason"]])


def test_median() -> None:
    assert [median(numbers) for numbers in ([3.0], [1.0, 2.0], [5.0, 1.0, 3.0])] == [3.0, 1.5, 3.0]
