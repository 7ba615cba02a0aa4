"""``optpart solve``: what stands on which stream, exit codes, wrong input, and that it needs no torch."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optpart.cli import main
from optpart.liveness import simulate
from optpart.plans import baseline, plan_from_json
from optpart.problem import Problem, problem_to_json
from optpart.random_graphs import random_layered
from optpart.solver.base import Interrupted
from optpart.solver.exhaustive_sequences import STAGED, least_peak_plan, least_recompute_plan
from optpart.solver.sparse import SparseModel
from optpart.validate import validate
from tests.cases import bare_skip, chain

ROOT = Path(__file__).resolve().parent.parent
KEYS = [
    "status",
    "objective",
    "bound",
    "gap",
    "overhead",
    "peak_bytes",
    "budget_bytes",
    "seconds",
    "formulation",
    "solver",
    "plan_class",
    "deterministic",
    "smallest_peak_bytes",
]


def write(folder: Path, problem: Problem) -> str:
    file = folder / "problem.json"
    file.write_text(json.dumps(problem_to_json(problem)))
    return str(file)


def solved(capfd: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    """What ``solve --json`` prints; it has to end with this exit code."""
    assert main(["solve", *arguments, "--json"]) == code
    data: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert not [key for key in KEYS if key not in data]
    return data


def test_optimal(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem, plan = random_layered(9, 1), tmp_path / "plan.json"
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    best = least_recompute_plan(problem.with_budget(lowest.peak_bytes), STAGED)
    assert best is not None
    file = write(tmp_path, problem)
    data = solved(capfd, 0, file, "--memory-budget", str(lowest.peak_bytes), "--plan", str(plan), "--seed", "3")
    assert (data["status"], data["gap"], data["deterministic"], data["seed"]) == ("optimal", 0.0, True, 3)
    assert data["objective"] == pytest.approx(best.recompute_time)
    assert data["bound"] == data["overhead"] == pytest.approx(best.recompute_time / problem.total_time)
    verdict = validate(problem.with_budget(lowest.peak_bytes), plan_from_json(json.loads(plan.read_text())))
    assert verdict.ok, verdict.faults
    assert (verdict.peak_bytes, verdict.overhead) == (data["peak_bytes"], data["overhead"])


def test_in_words_and_the_log_on_the_other_stream(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The drawn graph: a (run time 3 of 6) is dropped and runs again."""
    assert main(["solve", write(tmp_path, bare_skip()), "--memory-budget", "20"]) == 0
    captured = capfd.readouterr()
    assert (
        "overhead    50.0000 %\nbound       50.0000 %, gap 0.00 %\npeak        20 bytes\nruns again  a\n"
        in captured.out
    )
    assert "Time |    Nodes |    BestBound |      BestSol |     Gap" in captured.err
    assert main(["solve", write(tmp_path, bare_skip()), "--memory-budget", "20", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fraction", [1.0, 0.9, 0.8, 0.7])
def test_a_fraction_is_of_the_given_order(fraction: float, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem = bare_skip()
    peak = simulate(problem, baseline(problem.graph)).peak_bytes
    data = solved(capfd, 3 if fraction == 0.7 else 0, write(tmp_path, problem), "--peak-fraction", str(fraction))
    assert data["budget_bytes"] == math.ceil(fraction * peak)
    assert data["given_peak_bytes"] == peak


def test_infeasible(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = solved(capfd, 3, write(tmp_path, bare_skip()), "--memory-budget", "19")
    assert (data["status"], data["smallest_peak_bytes"], data["peak_bytes"]) == ("infeasible", 20, None)
    assert main(["solve", write(tmp_path, bare_skip()), "--memory-budget", "19"]) == 3
    assert "20 bytes is the smallest peak that was found" in capfd.readouterr().out


def test_no_plan(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = solved(capfd, 4, write(tmp_path, bare_skip()), "--memory-budget", "20", "--time-limit", "1e-9")
    assert (data["status"], data["overhead"], data["bound"]) == ("no_plan", None, 0.0)


def test_a_budget_of_the_file_and_both_formulations(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, bare_skip().with_budget(20))
    found = {name: solved(capfd, 0, file, "--formulation", name) for name in ("auto", "sequence-stages", "checkmate")}
    assert [d["formulation"] for d in found.values()] == ["sequence-stages", "sequence-stages", "checkmate"]
    assert {d["overhead"] for d in found.values()} == {0.5}


def test_any_order(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = solved(capfd, 0, write(tmp_path, bare_skip()), "--memory-budget", "20", "--order", "free")
    assert (data["status"], data["overhead"], data["bound"], data["order"]) == ("optimal", 0.5, 0.5, "free")
    assert "any order" in data["plan_class"]
    refused(capfd, "this one has both", write(tmp_path, chain()), "--memory-budget", "96", "--order", "free")


def test_a_joint_graph(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The drawn chain: 96 bytes have room for one value; v2, v1 and what leads to them run again."""
    data = solved(capfd, 0, write(tmp_path, chain()), "--memory-budget", "96")
    best = least_recompute_plan(chain().with_budget(96), STAGED)
    assert best is not None
    assert (data["status"], data["objective"]) == ("optimal", best.recompute_time)
    lowest = least_peak_plan(chain())
    assert lowest is not None
    data = solved(capfd, 3, write(tmp_path, chain()), "--memory-budget", "10")
    assert (data["status"], data["smallest_peak_bytes"]) == ("infeasible", lowest.peak_bytes)


def test_interrupted(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_keywords: object) -> None:
        raise Interrupted(1.0)

    monkeypatch.setattr(SparseModel, "minimize", interrupted)
    data = solved(capfd, 130, write(tmp_path, bare_skip()), "--memory-budget", "20")
    assert (data["status"], data["interrupted"], data["deterministic"]) == ("no_plan", True, False)
    assert data["bound"] == pytest.approx(1 / 6)


def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    """SIGINT while HiGHS runs: one object with the bound so far, and 130."""
    problem = random_layered(250, 4)  # minutes of work
    peak = simulate(problem, baseline(problem.graph)).peak_bytes
    program = "import sys; from optpart.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [
        "solve",
        write(tmp_path, problem),
        "--memory-budget",
        str(int(0.8 * peak)),
        "--json",
        "--time-limit",
        "300",
    ]
    run = subprocess.Popen(
        [sys.executable, "-c", program, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert run.stderr is not None
    for line in run.stderr:
        if "Nodes" in line:  # the search has begun
            run.send_signal(signal.SIGINT)
            break
    out, _err = run.communicate(timeout=120)
    assert run.returncode == 130
    assert json.loads(out)["interrupted"] is True


TWO = {"nodes": [{"id": i, "cost_ram": 3, "cost_cpu": 2} for i in range(2)], "links": [{"source": 0, "target": 1}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[1]", "holds a JSON list"),
        ('{"format": "x"}', "format is 'x', expected 'optpart-problem-1'"),
        ('{"format": "optpart-problem-1"}', "lacks the field"),
        ('{"format": "optpart-problem-1", "rule": 3, "graph": 3}', "of a wrong type"),
        (json.dumps({**TWO, "links": [*TWO["links"], {"source": 1, "target": 0}]}), "has a cycle"),
        (json.dumps({**TWO, "links": [{"source": 0}]}), "lacks the field 'target'"),
        (json.dumps({**TWO, "nodes": [{"id": 0, "cost_ram": -3, "cost_cpu": 2}], "links": []}), "has -3 bytes"),
        (json.dumps({**TWO, "nodes": [{"id": 0, "cost_ram": 3, "cost_cpu": -2}], "links": []}), "has run time -2"),
    ],
)
def test_wrong_files(content: str | None, text: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    refused(capfd, text, str(file), "--peak-fraction", "0.5")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no budget: give --memory-budget or --peak-fraction"),
        (["--memory-budget", "3", "--peak-fraction", "0.5"], "give one of them"),
        (["--memory-budget", "3 GiBB"], "not a size: '3 GiBB'"),
        (["--peak-fraction", "0"], "--peak-fraction 0.0: expected a number above 0"),
        (["--peak-fraction", "nan"], "--peak-fraction nan"),
        (["--memory-budget", "20", "--time-limit", "0"], "--time-limit 0.0: expected seconds"),
        (["--memory-budget", "20", "--seed", "-1"], "--seed -1"),
        (["--memory-budget", "20", "--formulation", "stages"], "there is sequence-stages, checkmate"),
        (["--memory-budget", "20", "--formulation", "magic"], "invalid choice: 'magic'"),
        (["--memory-budget", "20", "--plan", "no/such/place"], "cannot write no/such/place"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused(capfd, text, write(tmp_path, bare_skip()), *arguments)


def refused(capfd: pytest.CaptureFixture[str], text: str, *arguments: str) -> None:
    """One line on standard error, and exit code 2."""
    assert main(["solve", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("optpart")
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None\nfrom optpart.cli import main\n"
    for i, (problem, budget) in enumerate(((bare_skip(), 20), (chain(), 96))):
        folder = tmp_path / str(i)
        folder.mkdir()
        program += f"assert main(['solve', {write(folder, problem)!r}, '--memory-budget', '{budget}']) == 0\n"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
