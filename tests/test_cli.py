"""The command line, in process: what stands on which stream, exit codes, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpart import planning
from optpart.cli import main
from optpart.gradients import GradientCheck
from optpart.plans import plan_from_json
from optpart.problem import load_problem
from optpart.solver.base import InfeasibleBudget
from optpart.units import Bytes
from optpart.validate import validate

TINY = ("mlp", "--preset", "tiny")


@pytest.fixture
def impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(problem: Any, budget: int, limits: Any) -> Any:
        raise InfeasibleBudget(budget, 4096)

    monkeypatch.setattr(planning, "solve", solve)


def test_plan_as_json(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The README's command in small: one object on standard output, gradients checked, exit code 0."""
    plan, problem = tmp_path / "plan.json", tmp_path / "problem.json"
    files = ["--plan", str(plan), "--problem", str(problem)]
    assert main(["plan", *TINY, "--config", "hidden=8,8", "batch=2", "--json", "--seed", "7", *files]) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["model"], data["status"], data["seed"], data["fallback"]) == ("mlp", "optimal", 7, None)
    assert data["config"] == {"preset": "tiny", "features": 8, "hidden": [8, 8], "classes": 4, "batch": 2}
    assert data["gradients"]["equal_bitwise"] is True
    assert isinstance(data["gradients"]["max_abs_error"], float)
    assert [a["method"] for a in data["pytorch"]] == ["default", "min-cut", "budget"]
    for a in data["pytorch"]:
        assert isinstance(a["peak_bytes"], int)
        assert isinstance(a["saved_bytes"], int)
        assert 0.0 <= a["overhead"] < 1.0
    written = plan_from_json(json.loads(plan.read_text()))
    verdict = validate(load_problem(problem), written)
    assert verdict.ok
    numbers = (verdict.peak_bytes, verdict.saved_bytes, verdict.overhead, len(written.recomputes()))
    assert numbers == tuple(data[k] for k in ("peak_bytes", "saved_bytes", "overhead", "recomputed_ops"))


def test_a_measured_plan_and_its_timeline(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timeline = tmp_path / "t.svg"
    more = ["--no-gradients", "--memory-budget", "0.5", "--cost-model", "unit"]
    assert main(["plan", *TINY, *more, "--measure", "--json", "--timeline", str(timeline)]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["measured_peak_bytes"] == data["peak_bytes"] <= data["budget_bytes"]
    assert (data["measurement"]["difference_bytes"], data["measurement"]["compiler"]) == (0, "aot_eager")
    assert [a["measured_peak_bytes"] == a["peak_bytes"] for a in data["pytorch"]] == [True] * 3
    assert timeline.read_text().startswith("<?xml")


def test_plan_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TINY, "--no-gradients", "--no-compare", "--cost-model", "unit"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("mlp: ")
    assert "by unit" in out
    assert "gradients" not in out
    assert "PyTorch" not in out


def test_nothing_else_gets_onto_standard_output(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a print nor what a library writes to the descriptor itself."""
    solve = planning.solve

    def noisy(*args: Any) -> Any:
        print("from Python")
        os.write(1, b"from C\n")
        return solve(*args)

    monkeypatch.setattr(planning, "solve", noisy)
    assert main(["plan", *TINY, "--no-gradients", "--no-compare", "--json", "--verbose"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["gradients"] is None
    assert "from Python" in captured.err
    assert "from C" in captured.err


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"equal_bitwise": False}, 1),
        ({"agree": False}, 1),
        ({"min_cut_agrees": False}, 0),
    ],
)
def test_exit_code_of_gradients(changes: dict[str, bool], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    good = GradientCheck(equal_bitwise=True, max_abs_error=0.0, agree=True, min_cut_agrees=True, fallbacks=0, compared=1)
    monkeypatch.setattr(planning, "check_gradients", lambda *_, **__: replace(good, **changes))
    assert main(["plan", *TINY, "--no-compare"]) == code


def test_infeasible(capfd: pytest.CaptureFixture[str], impossible: None) -> None:
    assert main(["plan", *TINY, "--no-gradients", "--json", "--memory-budget", "2 KiB"]) == 3
    captured = capfd.readouterr()
    data = json.loads(captured.out)
    assert (data["status"], data["budget_bytes"], data["smallest_peak_bytes"]) == ("infeasible", 2048, 4096)
    assert (data["model"], data["config"]["preset"], data["peak_bytes"]) == ("mlp", "tiny", None)
    assert "smallest peak that can be reached is 4.00 KiB (4096 bytes)" in captured.err


def test_infeasible_in_words(capfd: pytest.CaptureFixture[str], impossible: None) -> None:
    assert main(["plan", *TINY, "--no-gradients", "--memory-budget", "2048"]) == 3
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("optpart: no plan fits a memory budget of 2.00 KiB")


def test_fallback_is_said_and_raise_is_obeyed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(*_: Any) -> Any:
        raise RuntimeError("it rained")

    monkeypatch.setattr(planning, "solve", solve)
    command = ["plan", *TINY, "--no-gradients", "--no-compare"]
    assert main([*command, "--json", "--on-failure", "raise"]) == 4
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "optpart: it rained (--verbose shows where)\n")
    with pytest.raises(RuntimeError, match="it rained"):
        main([*command, "--on-failure", "raise", "--verbose"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "gtp"], "no model is called 'gtp', did you mean 'gpt'?"),
        (["plan", "mlp", "--preset", "tinny"], "did you mean 'tiny'?"),
        (["plan", "mlp", "--config", "wdith=3"], "no setting of mlp is called 'wdith'"),
        (["plan", "mlp", "--config", "width"], "--config width: expected key=value"),
        (["plan", "mlp", "--config", "batch=many"], "mlp: batch must be a positive integer, not 'many'"),
        (["plan", "mlp", "--memory-budget", "1.5"], "a float is a fraction between 0.0 and 1.0"),
        (["plan", "mlp", "--memory-budget", "3 GiBB"], "memory_budget='3 GiBB': expected"),
        (["plan", "mlp", "--cost-model", "rofline"], "did you mean 'roofline'?"),
        (["plan", "mlp", "--time-limit", "0"], "time_limit=0.0: expected seconds"),
        (["plan", "mlp", "--time-limit", "soon"], "invalid float value: 'soon'"),
        (["plan", "mlp", "--on-failure", "cry"], "on_failure='cry'"),
        (["plan", "mlp", "--plan", "no/such/place"], "cannot write no/such/place"),
        (["plan", "mlp", "--timeline", "a.gif"], "the name has to end in .svg, .pdf or .png"),
        (["plan", "mlp", "--compiler", "gcc"], "invalid choice: 'gcc'"),
        (["explain", *TINY, "relux"], "there is, for example: relu"),
        (["plan"], "the following arguments are required: MODEL"),
        (["plam"], "invalid choice: 'plam'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("optpart")
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_capture_and_explain(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mlp.json"
    assert main(["capture", *TINY, "-o", str(file), "--cost-model", "unit"]) == 0
    problem = load_problem(file)
    assert (problem.graph.name, problem.cost_model) == ("mlp", "unit")
    assert main(["capture", *TINY, "-o", "-", "--cost-model", "unit"]) == 0
    assert capfd.readouterr().out == file.read_text()
    assert main(["explain", *TINY, "relu"]) == 0
    assert "saved    yes: the backward reads it as the forward left it" in capfd.readouterr().out


def test_lists(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "llama       Llama 3, a decoder" in capfd.readouterr().out
    assert main(["devices"]) == 0
    assert "h100-sxm      3350 GB/s; TFLOP/s: fp64 67," in capfd.readouterr().out
    assert main(["--help"]) == 0
    assert "plan a model, compare with PyTorch" in capfd.readouterr().out


def test_help_and_lists_load_no_torch() -> None:
    program = "import sys; from optpart.cli import main\n"
    for arguments in (["--help"], ["--version"], ["plan", "--help"], ["models"], ["devices"], ["plan", "gtp"]):
        program += f"main({arguments!r})\n"
    program += "assert 'torch' not in sys.modules"
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_graph_for_each_file(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with graph breaks has several plans; each gets a file of its own, with a number."""
    plan = planning.plan

    def twice(*args: Any, **settings: Any) -> Any:
        report = plan(*args, **settings)
        [graph] = report.graphs
        return replace(report, graphs=(graph, replace(graph, budget_bytes=Bytes(2**20))))

    monkeypatch.setattr(planning, "plan", twice)
    assert main(["plan", *TINY, "--no-gradients", "--no-compare", "--problem", str(tmp_path / "p.json")]) == 0
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p.1.json", "p.2.json"]
    assert [load_problem(tmp_path / f"p.{i}.json").budget for i in (1, 2)] == [None, 2**20]
    assert capfd.readouterr().out.startswith("mlp: 2 joint graphs")
