"""Frontiers: monotone whatever the solver answers, nothing left out, resumable, and measured peaks as predicted."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Broken
from strategies import seeds, some_plans

import models
import optpart
from optpart import frontiers, strategy
from optpart.cli import main
from optpart.frontier_figure import draw_frontier
from optpart.frontier_report import COLUMNS, frontier_text, frontier_to_csv, frontier_to_json, overhead_at
from optpart.frontiers import Frontier
from optpart.journal import Journal
from optpart.liveness import simulate
from optpart.problem import Problem
from optpart.random_graphs import Mix, random_joint
from optpart.solver.base import InfeasibleBudget, Limits, Result, Status, conclude
from optpart.sweep import Answer, Point, Watch, frontier_points, sweep
from optpart.validate import validate

LIMITS = Limits(time_limit=10.0)
boxed = st.builds(random_joint, seeds, st.integers(6, 14), st.just(Mix(unboxed=0.0)))


def monotone(points: tuple[Point, ...]) -> None:
    """A lower budget never has a higher peak or a lower bound, a higher one never more overhead; all of them hold."""
    for p in points:
        assert p.peak_bytes <= p.budget_bytes
        assert p.bound is None or 0.0 <= p.bound <= p.overhead
    for low, high in itertools.pairwise(points):
        assert low.budget_bytes < high.budget_bytes
        assert low.peak_bytes <= high.peak_bytes
        assert low.overhead >= high.overhead
        assert high.bound is None or (low.bound is not None and low.bound >= high.bound)


@settings(max_examples=25)
@given(boxed)
def test_real_answers(problem: Problem) -> None:
    """Every requested budget is there, answered as the solver answers to it alone, and no bound is above any plan."""
    answers = sweep(problem, 5, LIMITS)
    points = frontier_points(answers)
    monotone(points)
    assert [p.answer for p in points] == list(answers)
    low, high = answers[0].budget_bytes, answers[-1].budget_bytes
    wanted = {low + (high - low) * i // 4 for i in range(5)}
    assert {a.budget_bytes for a in answers} == wanted
    for p in points:
        assert validate(problem.with_budget(p.budget_bytes), p.plan).ok
        assert p.live == simulate(problem, p.plan)
        assert p.answer.result.plan == strategy.solve(problem, p.answer.memory_budget, LIMITS).plan
        for other in answers:
            if other.live is not None and other.live.peak_bytes <= p.budget_bytes and p.answer.result.bound is not None:
                assert p.answer.result.bound <= other.live.overhead * (1 + 1e-3) + 1e-9


def bad_solver(seed: int) -> Any:
    """Answers with any valid plan that fits and any true bound, or not at all; only the two ends are sound."""

    def solve(problem: Problem, budget: Any, limits: Limits) -> Result:
        plans = sorted(
            {p: simulate(problem, p) for p in some_plans(problem, seed, 20)}.items(), key=lambda item: item[1].peak_bytes
        )
        ends = {0.0: plans[0], 1.0: plans[-1]}
        limit = ends[budget][1].peak_bytes if budget in ends else budget
        rng = random.Random(f"{seed} {budget}")
        fits = [item for item in plans if item[1].peak_bytes <= limit]
        if budget not in ends and rng.random() < 0.3:
            raise InfeasibleBudget(limit, plans[0][1].peak_bytes)
        plan, live = ends.get(budget) or rng.choice(fits)
        least = min(item[1].overhead for item in fits)
        return conclude(
            problem,
            Status.FEASIBLE,
            plan,
            unit=problem.total_time or 1.0,
            objective=live.overhead,
            objective_bound=rng.random() * least,
            plan_class="any",
            formulation="none",
            solver="dice",
            seconds=0.0,
            budget_bytes=limit,
        )

    return solve


@given(boxed, seeds)
def test_a_bad_solver_gives_a_monotone_frontier_too(problem: Problem, seed: int) -> None:
    answers = sweep(problem, 7, LIMITS, solve=bad_solver(seed))
    points = frontier_points(answers)
    monotone(points)
    assert [p.answer for p in points] == list(answers)
    for p in points:
        fits = [a.live for a in answers if a.live is not None and a.live.peak_bytes <= p.budget_bytes]
        assert p.overhead == min(live.overhead for live in fits)
        own = p.answer.live
        assert p.best is p.answer or own is None or (own.overhead, own.peak_bytes) > (p.overhead, p.peak_bytes)


def test_where_nothing_fits() -> None:
    problem = random_joint(3, 10, Mix(unboxed=0.0))
    [answer, *_] = sweep(problem, 2, LIMITS)
    assert frontier_points([answer])
    with pytest.raises(ValueError, match="no plan among the answers fits 5 bytes"):
        frontier_points([answer, replace(answer, budget_bytes=5)])
    with pytest.raises(ValueError, match="points=1"):
        sweep(problem, 1, LIMITS)


# --------------------------------------------------------------------------------------------- resuming


def test_journal(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    journal = Journal(folder, {"a": 1})
    assert len(journal) == 0
    journal.put("x", [1, 0.1, None])
    journal.put("y", {"z": 2})
    again = Journal(folder, {"a": 1})
    assert (again.get("x"), again.get("y"), again.get("z")) == ([1, 0.1, None], {"z": 2}, None)
    assert "x" not in Journal(folder, {"a": 2})
    assert journal.path is not None
    with journal.path.open("a") as file:
        file.write('\n["w", {"cut o')  # a kill in the middle of a line
    again = Journal(folder, {"a": 1})
    assert "w" not in again
    again.put("w", 3)
    assert Journal(folder, {"a": 1}).get("w") == 3
    again.clear()
    assert (len(again), len(Journal(folder, {"a": 1}))) == (0, 0)


def test_a_journal_that_cannot_be_written_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file", "key")
    journal.put("x", 1)
    assert journal.get("x") == 1
    assert "is not kept" in caplog.text


class Lines(Watch):
    def __init__(self) -> None:
        self.pieces: list[tuple[str, bool]] = []

    def begin(self, what: str) -> None:
        self.what = what

    def end(self, line: str = "", again: bool = False) -> None:
        self.pieces.append((self.what, again))


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    problem = random_joint(11, 14, Mix(unboxed=0.0))
    whole = sweep(problem, 5, LIMITS)
    solved: list[Any] = []

    def until_interrupted(problem: Problem, budget: Any, limits: Limits) -> Result:
        if len(solved) == 3:
            raise KeyboardInterrupt
        solved.append(budget)
        return strategy.solve(problem, budget, limits)

    with pytest.raises(KeyboardInterrupt):
        sweep(problem, 5, LIMITS, journal=Journal(tmp_path, "key"), solve=until_interrupted)
    watch = Lines()
    answers = sweep(problem, 5, LIMITS, journal=Journal(tmp_path, "key"), watch=watch)
    assert [again for _, again in watch.pieces] == [True] * 3 + [False] * (len(whole) - 3)

    def told(answer: Answer) -> Answer:
        return replace(answer, result=replace(answer.result, seconds=0.0, progress=()))

    assert [told(a) for a in answers] == [told(a) for a in whole]
    assert len({a.budget_bytes for a in answers}) == len(answers) > 3


# ------------------------------------------------------------------------------------------- of a model


@pytest.fixture(scope="module")
def gpt() -> Frontier:
    """One block, and three of PyTorch's budgets instead of all."""
    loaded = models.load("gpt", "tiny", {"layers": "1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontiers, "PYTORCH_BUDGETS", (0.5, 0.05))
        return optpart.frontier(loaded.model, loaded.batch, points=4, at_pytorch=True, name="gpt", time_limit=20.0)


def test_measured_as_predicted(gpt: Frontier) -> None:
    monotone(gpt.points)
    assert [m.peak_bytes for m in gpt.measured] == [p.peak_bytes for p in gpt.points]
    assert [a.measured_peak_bytes for a in gpt.pytorch] == [a.peak_bytes for a in gpt.pytorch]
    assert [a.method for a in gpt.pytorch[:3]] == ["default", "min-cut", "budget"]
    assert [a.budget for a in gpt.pytorch[2:]] == [1.0, 0.5, 0.05]


def test_plan_alone_gives_the_same_plan(gpt: Frontier) -> None:
    loaded = models.load("gpt", "tiny", {"layers": "1"}, fake=True)
    for p in gpt.points:
        report = optpart.plan(
            loaded.model, loaded.batch, memory_budget=p.best.memory_budget, compare=False, name="gpt", time_limit=20.0
        )
        assert report.graphs[0].plan == p.plan
        assert report.graphs[0].budget_bytes == p.best.budget_bytes


def test_no_more_overhead_than_pytorch_at_its_peaks(gpt: Frontier) -> None:
    low, high = gpt.points[0].budget_bytes, gpt.points[-1].budget_bytes
    for answer in gpt.pytorch:
        assert answer.peak_bytes in {p.budget_bytes for p in gpt.points} or not low < answer.peak_bytes < high
        ours = overhead_at(gpt, answer)
        if answer.peak_bytes >= low:
            assert ours is not None
            assert ours <= answer.overhead


def test_reports_of_a_frontier(gpt: Frontier, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(frontier_to_csv(gpt))))
    assert tuple(rows[0]) == COLUMNS
    ours = [row for row in rows if row["method"] == "optpart"]
    assert len(rows) == len(ours) + len(gpt.pytorch)
    data = json.loads(json.dumps(frontier_to_json(gpt), allow_nan=False))
    asked = "budget_bytes peak_bytes measured_peak_bytes overhead bound gap seconds"
    for p, row, point in zip(gpt.points, ours, data["points"]):
        assert set(asked.split()) <= set(point)
        assert int(row["budget_bytes"]) == point["budget_bytes"] == p.budget_bytes
        assert float(row["overhead"]) == point["overhead"] == p.overhead
        assert float(row["raw_overhead"]) == point["raw"]["overhead"] == p.answer.result.overhead
        assert int(row["plan_of_budget_bytes"]) == p.best.budget_bytes
    assert [a["method"] for a in data["pytorch"]] == [a.method for a in gpt.pytorch]
    text = frontier_text(gpt)
    assert text.count("the same") == len(gpt.points) + len(gpt.pytorch)
    assert "budget 0.05" in text
    pytest.importorskip("matplotlib")
    draw_frontier(tmp_path / "a.svg", gpt, "GPT")
    draw_frontier(tmp_path / "b.svg", gpt, "GPT")
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
    assert "<!-- 0.05 -->" in (tmp_path / "a.svg").read_text()


def test_a_plan_of_another_budget_is_marked(gpt: Frontier) -> None:
    """The solver had no time for those between; they get the plan of the lowest, and keep their raw answers."""
    low, *between, high = (p.answer for p in gpt.points)
    nothing = replace(
        low.result, status=Status.NO_PLAN, plan=None, objective=None, objective_bound=None, overhead=None, bound=None
    )
    found = replace(gpt, points=frontier_points([low, *(replace(a, result=nothing, live=None) for a in between), high]), measured=())
    assert [p.best for p in found.points] == [low] * (len(between) + 1) + [high]
    assert frontier_text(found).count(" *") == len(between) + 1
    assert "* the plan found for another of these budgets" in frontier_text(found)
    assert " *" not in frontier_text(gpt)
    rows = list(csv.DictReader(io.StringIO(frontier_to_csv(found))))
    assert [row["raw_status"] for row in rows[1 : len(between) + 1]] == ["no_plan"] * len(between)
    assert {row["plan_of_budget_bytes"] for row in rows[: len(between) + 1]} == {str(low.budget_bytes)}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks a tensor between two graphs for it
def test_wrong_requests() -> None:
    loaded = models.load("mlp", "tiny", fake=True)
    with pytest.raises(ValueError, match="a frontier has all of them"):
        optpart.frontier(loaded.model, loaded.batch, memory_budget=0.5)
    with pytest.raises(ValueError, match="unknown setting 'tine_limit'"):
        optpart.frontier(loaded.model, loaded.batch, tine_limit=3)

    with pytest.raises(ValueError, match="breaks into 2 joint graphs"):
        optpart.frontier(Broken(), (torch.randn(3, 4),))


# ------------------------------------------------------------------------------------------ the command

COMMAND = ["frontier", "gpt", "--preset", "tiny", "--config", "layers=1", "--points", "4", "--no-measure", "--cost-model", "unit"]


def test_the_command_can_be_interrupted(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command goes on, and what it writes is what one run would have written."""
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "cache"))
    solved: list[Any] = []
    solve = strategy.solve

    def counting(problem: Problem, budget: Any, limits: Limits) -> Result:
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(budget)
        return solve(problem, budget, limits)

    monkeypatch.setattr(strategy, "solve", counting)
    monkeypatch.setattr(frontiers, "PYTORCH_BUDGETS", (0.5,))
    assert main(COMMAND) == 130
    assert "what is finished is kept, and the same command goes on from there" in capfd.readouterr().err
    monkeypatch.setattr(strategy, "solve", lambda *a: solved.append(a[1]) or solve(*a))
    file = tmp_path / "f.csv"
    assert main([*COMMAND, "--json", "--csv", str(file)]) == 0
    captured = capfd.readouterr()
    data = json.loads(captured.out)
    assert len(solved) == len(set(solved)) == len(data["points"])
    assert captured.err.count("from an earlier run") == 2
    assert main([*COMMAND, "--csv", str(tmp_path / "again.csv")]) == 0
    assert (tmp_path / "again.csv").read_text() == file.read_text()
    assert len(solved) == len(data["points"])
    assert "PyTorch" in capfd.readouterr().out
    assert main([*COMMAND, "--fresh", "--no-compare"]) == 0
    assert len(solved) == 2 * len(data["points"])
    assert "PyTorch" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--points", "1"], "--points 1: expected 2 or more"),
        (["--svg", "f.gif"], "has to end in .svg, .pdf or .png"),
        (["--csv", "no/such/place"], "cannot write no/such/place"),
        (["--memory-budget", "0.5"], "unrecognized arguments: --memory-budget"),
    ],
)
def test_wrong_arguments(more: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *more]) == 2
    assert text in capfd.readouterr().err
