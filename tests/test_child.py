"""Solves in a child process: what comes back, and what is left when the child or the parent is ended in the middle."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import chain, diamond
from ortools.math_opt.python import mathopt

import optpart
from optpart.solver import child
from optpart.solver.base import Interrupted, Limits, Status
from optpart.solver.mathopt import SolverError, solve
from optpart.solver.sparse import SparseModel
from optpart.strategy import solve as partition
from optpart.validate import validate

ROOT = Path(__file__).resolve().parent.parent


def cover(n: int, rows: int = 15) -> mathopt.Model:
    """Multi-dimensional knapsacks: with 200 columns nothing proves the optimum in this life."""
    rng = random.Random(1)
    model = mathopt.Model(name="cover")
    x = [model.add_binary_variable() for _ in range(n)]
    for _ in range(rows):
        model.add_linear_constraint(mathopt.fast_sum(rng.randint(10, 1000) * v for v in x) >= 250 * n)
    model.minimize(mathopt.fast_sum(rng.randint(500, 700) * v for v in x))
    return model


HARD = cover(200)


@contextlib.contextmanager
def at_a_bound(act: Callable[[], Any]) -> Iterator[None]:
    """Do something in the middle of a solve: when rows of its log come that have a bound."""

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            columns = [cell.strip() for cell in record.getMessage().split("|")]
            if len(columns) == 5 and columns[2] not in ("-", "0", "BestBound"):
                act()

    log = logging.getLogger("optpart.solver.base")
    reader, level = Reader(), log.level
    log.addHandler(reader)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(reader)
        log.setLevel(level)


def send(number: int) -> None:
    """A signal to every child of this process."""
    for one in child._children:
        os.kill(one.process.pid, number)


@pytest.fixture
def fresh() -> Iterator[None]:
    """No child, and none refused."""
    child.end_all()
    child._refused.clear()
    yield
    child.end_all()
    child._refused.clear()


def test_the_answer_is_that_of_a_solve_in_this_process(fresh: None) -> None:
    model = cover(30)
    here = mathopt.solve(model, mathopt.SolverType.HIGHS)
    there = [solve(model, "highs", Limits(time_limit=60)) for _ in range(2)]
    for outcome in there:
        assert outcome.status is Status.OPTIMAL
        assert outcome.objective == pytest.approx(here.objective_value())
        assert outcome.values.keys() == here.variable_values().keys()
    assert there[0].values == there[1].values
    assert len(child._children) == 1  # the second solve had the first one's child


@pytest.mark.parametrize("whole", [True, False])
def test_a_killed_child_leaves_its_bound(fresh: None, whole: bool, caplog: pytest.LogCaptureFixture) -> None:
    with at_a_bound(lambda: send(signal.SIGKILL)):
        outcome = solve(HARD, "highs", Limits(time_limit=60), whole=whole)
    assert (outcome.status, outcome.values, outcome.objective) == (Status.NO_PLAN, {}, None)
    assert (outcome.deterministic, outcome.interrupted) == (False, False)
    assert "ended before its time (signal 9)" in caplog.text
    assert child._children == set()
    best = solve(HARD, "highs", Limits(work=1))
    assert outcome.bound is not None
    assert best.objective is not None
    assert 0 < outcome.bound <= best.objective
    assert solve(cover(10), "highs").status is Status.OPTIMAL  # in a new child


def test_ctrl_c_ends_the_child_and_keeps_the_bound(fresh: None) -> None:
    with at_a_bound(lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted) as caught:
        solve(HARD, "highs", Limits(time_limit=60))
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.bound is not None
    assert child._children == set()


def test_ctrl_c_is_not_the_childs(fresh: None) -> None:
    with at_a_bound(lambda: send(signal.SIGINT)):
        outcome = solve(HARD, "highs", Limits(time_limit=60, work=1))
    assert outcome.status is Status.FEASIBLE
    assert outcome.deterministic


def test_a_time_limit_that_the_solver_keeps(fresh: None) -> None:
    outcome = solve(HARD, "highs", Limits(time_limit=0.5))
    assert outcome.status is Status.FEASIBLE
    assert not outcome.deterministic
    assert len(child._idle) == 1  # the child came to a stop by itself


def test_a_time_limit_that_the_solver_does_not_keep(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.0)
    with at_a_bound(lambda: send(signal.SIGSTOP)):
        outcome = solve(HARD, "highs", Limits(time_limit=1.0))
    assert outcome.status is Status.NO_PLAN
    assert outcome.bound is not None
    assert "did not keep to its time limit, and was ended" in caplog.text
    assert child._children == set()


def test_what_the_solver_refuses_is_said_and_the_child_stays(fresh: None) -> None:
    model = mathopt.Model()
    model.add_binary_variable(name="x")
    model.add_binary_variable(name="x")
    with pytest.raises(SolverError, match=r"highs: .*duplicate"):
        solve(model, "highs")
    assert len(child._idle) == 1


def test_where_no_child_can_be_started_the_solve_is_done_here(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert solve(cover(10), "highs").status is Status.OPTIMAL
    assert len(child._refused) == 1
    monkeypatch.setattr(child, "_refused", [])
    monkeypatch.setattr(sys, "executable", sys.base_prefix + "/bin/python3")
    monkeypatch.setattr(sys, "path", [])  # it starts, and finds no OR-Tools
    assert solve(cover(10), "highs").status is Status.OPTIMAL
    assert child._children == set()


def test_a_child_that_died_in_its_sleep_is_replaced(fresh: None) -> None:
    assert solve(cover(10), "highs").status is Status.OPTIMAL
    [one] = child._idle
    one.process.kill()
    one.process.wait()
    assert solve(cover(10), "highs").status is Status.OPTIMAL
    assert child._idle != [one]


def test_while_a_child_is_busy_another_solve_has_another_one(fresh: None) -> None:
    """As in two threads."""
    found: list[Status] = []

    def once() -> None:
        if not found:
            found.append(Status.NO_PLAN)  # the rows of the inner solve come here too
            found[0] = solve(cover(10), "highs").status

    with at_a_bound(once):
        outcome = solve(HARD, "highs", Limits(time_limit=60, work=1))
    assert outcome.status is Status.FEASIBLE
    assert found == [Status.OPTIMAL]
    assert len(child._idle) == 2


PROGRAM = """
import os, sys
from optpart.solver import child
from optpart.solver.base import Limits
from optpart.solver.mathopt import solve
from tests.test_child import HARD, cover, at_a_bound, send

def pids():
    return [one.process.pid for one in child._children]
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def wait_until_gone(pid: int) -> None:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return  # it ended; who adopted it has not asked yet
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still there")


@pytest.mark.parametrize(("end", "code"), [("", 0), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9)])
def test_no_child_is_left_behind(end: str, code: int) -> None:
    """Whether the parent comes to its end, skips its exit handlers, or is killed."""
    done = run(f"solve(cover(10), 'highs'); print(*pids(), flush=True); {end}")
    assert done.returncode == code, done.stderr
    wait_until_gone(int(done.stdout))


def test_a_parent_that_is_killed_in_the_middle_takes_the_child_with_it() -> None:
    done = run("with at_a_bound(lambda: (print(*pids(), flush=True), os.kill(os.getpid(), 9))): solve(HARD, 'highs')")
    assert done.returncode == -9, done.stderr
    wait_until_gone(int(done.stdout))


def test_a_fork_has_no_part_in_its_parents_children() -> None:
    """As in a data loader's worker: it may solve too, and its end is not the parent's child's."""
    done = run("""
        solve(cover(10), 'highs')
        before = pids()
        if (fork := os.fork()) == 0:
            assert pids() == []
            print(solve(cover(10), 'highs').status.name, pids() != before, flush=True)
            os._exit(0)
        assert os.waitpid(fork, 0)[1] == 0
        print(solve(cover(10), 'highs').status.name, pids() == before)
    """)
    assert (done.stdout, done.stderr) == ("OPTIMAL True\nOPTIMAL True\n", "")


# ------------------------------------------------------------------------------------------- the search


def lost(*_: Any) -> Any:
    raise child.Lost("killed")


def ctrl_c(*_: Any) -> Any:
    raise KeyboardInterrupt


KEEP = Limits(time_limit=20, keep_on_interrupt=True)


def test_without_a_budget_no_child_is_started(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lost)
    assert partition(diamond(), None, KEEP).status is Status.OPTIMAL


@pytest.mark.parametrize("end", [lost, ctrl_c])
def test_a_search_whose_children_die_keeps_what_it_has(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuts that it starts from are plans: within 250 bytes diamond's cheapest one recomputes 2 of 9 units."""
    monkeypatch.setattr(child, "solve", end)
    result = partition(diamond(), 250, KEEP)
    assert result.plan is not None
    assert validate(diamond().with_budget(250), result.plan).ok
    assert (result.status, result.deterministic, result.bound) == (Status.FEASIBLE, False, 0.0)
    assert result.interrupted is (end is ctrl_c)
    assert result.overhead is not None
    assert 0 < result.overhead <= 2 / 9 + 1e-9


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_fraction_always_has_a_plan(fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lower end is the smallest peak so far."""
    monkeypatch.setattr(child, "solve", ctrl_c)
    result = partition(diamond(), fraction, KEEP)
    assert result.plan is not None
    assert validate(diamond().with_budget(result.budget_bytes), result.plan).ok
    assert result.interrupted


def test_ctrl_c_without_a_plan_that_fits_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "solve", ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="no plan that fits"):
        partition(chain(), 120, KEEP)


def test_ctrl_c_is_an_interrupt_unless_plans_are_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "solve", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        partition(diamond(), 250, Limits(time_limit=20))


def test_the_bound_of_an_interrupted_solve_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    minimize = SparseModel.minimize

    def cut_short(model: SparseModel, *args: Any, title: str, **more: Any) -> Any:
        if title.startswith("below"):
            raise Interrupted(10.0)  # percent of the step
        return minimize(model, *args, title=title, **more)

    monkeypatch.setattr(SparseModel, "minimize", cut_short)
    result = partition(diamond(), 250, KEEP)
    assert result.interrupted
    assert result.bound == pytest.approx(0.1, rel=1e-5)


@pytest.mark.filterwarnings("ignore:`torch")
def test_ctrl_c_in_a_compile_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(child, "solve", ctrl_c)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(6)))
    compiled = torch.compile(model, backend=optpart.backend(memory_budget=0.1, compiler="aot_eager"))
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(64, 8))


def test_ctrl_c_at_the_command_line_prints_the_plan_so_far() -> None:
    config = ["--preset", "tiny", "--config", "layers=12", "--memory-budget", "0.1", "--time-limit", "600"]
    program = (
        f"import sys; from optpart.cli import main; sys.exit(main({['plan', 'gpt', *config, '--json', '--verbose']}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("below"):  # plans were found; now the bound is looked for
                break
        for line in process.stderr:
            if line.count("|") == 4 and "Time" not in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "interrupted: the plan is the best so far" in err
    found = json.loads(out)
    assert (found["status"], found["interrupted"], found["deterministic"]) == ("feasible", True, False)
    assert (found["gradients"], found["pytorch"]) == (None, [])
    assert found["overhead"] > 0
    assert found["peak_bytes"] <= found["budget_bytes"]
