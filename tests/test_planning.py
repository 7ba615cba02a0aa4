"""``plan``: the report of a real model, what happens when no plan is found, the check of the reported plan."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from steps import Broken

import models
import optpart
from optpart import partitioner, planning
from optpart.liveness import simulate
from optpart.partitioner import FallbackWarning
from optpart.plans import Plan, baseline
from optpart.pytorch_plans import PytorchAnswer
from optpart.report import Report
from optpart.settings import Settings
from optpart.solver.base import InfeasibleBudget, Result, Status, conclude
from optpart.units import Bytes
from optpart.validate import validate

MLP = models.load("mlp", "tiny")


def by_hand(problem: Any, plan: Plan | None) -> Result:
    """A result with this plan, or with none."""
    return conclude(
        problem,
        Status.NO_PLAN if plan is None else Status.FEASIBLE,
        plan,
        unit=1.0,
        objective=None,
        objective_bound=None,
        plan_class="by hand",
        formulation="none",
        solver="none",
        seconds=0.0,
    )


def test_a_report_of_a_model() -> None:
    before = copy.deepcopy(MLP.model.state_dict())
    report = optpart.plan(MLP.model, MLP.batch, compare=False, cost_model="unit", seed=3)
    assert isinstance(report, Report)
    [graph] = report.graphs
    assert (report.model, graph.name, graph.problem.cost_model) == ("MLP", "MLP", "unit")
    assert validate(graph.problem, graph.plan).ok
    assert graph.plan == graph.result.plan
    assert graph.liveness == simulate(graph.problem, graph.plan)
    assert graph.kept_all.overhead == 0.0
    assert report.settings == Settings(cost_model="unit", seed=3)
    assert (report.gradients, graph.pytorch, report.fallback) == (None, (), None)
    assert report.peak_bytes == graph.liveness.peak_bytes
    assert all(p.grad is None for p in MLP.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), MLP.model.state_dict().values()))


def test_pytorch_stands_beside_it() -> None:
    report = optpart.plan(MLP.model, MLP.batch, name="mlp")
    [graph] = report.graphs
    assert [a.method for a in graph.pytorch] == ["default", "min-cut", "budget"]
    assert [a.problem for a in graph.pytorch] == ["", "", ""]
    assert all(validate(graph.problem, a.plan).ok for a in graph.pytorch)
    assert "PyTorch min-cut" in str(report)


def test_a_measured_report() -> None:
    """Without a budget nobody asks for workspaces; measured peaks are compared with peaks that have them."""
    vit = models.load("vit", "tiny")
    plain = optpart.plan(vit.model, vit.batch, compare=False)
    report = optpart.plan(vit.model, vit.batch, measure=True)
    assert report.graphs[0].plan == plain.graphs[0].plan
    assert report.measurement is not None
    assert report.measurement.measured_peak_bytes == report.peak_bytes == report.measurement.predicted_peak_bytes
    assert report.peak_bytes > plain.peak_bytes
    assert [a.measured_peak_bytes for a in report.graphs[0].pytorch] == [a.peak_bytes for a in report.graphs[0].pytorch]
    assert "under aot_eager, as predicted, to the byte" in str(report)
    assert "measured peak" in str(report)
    assert "measured" not in str(plain)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks a tensor between two graphs for it
def test_a_measured_step_of_several_graphs() -> None:
    with pytest.warns(planning.GraphBreakWarning):
        report = optpart.plan(Broken(), (torch.randn(3, 4),), measure=True)
    assert len(report.graphs) == 2
    assert "nothing predicted" in str(report)
    assert all(a.measured_peak_bytes is None for g in report.graphs for a in g.pytorch)


def test_fake_weights_give_the_same_problem() -> None:
    fake = models.load("mlp", "tiny", fake=True)
    problems = [optpart.plan(m.model, m.batch, compare=False).graphs[0].problem for m in (MLP, fake)]
    assert problems[0] == problems[1]


def answer(budget: float, peak: int | None, overhead: float = 0.0, problem: str = "") -> PytorchAnswer:
    size = None if peak is None else Bytes(peak)
    return PytorchAnswer("budget", budget, None, size, size, overhead, problem, 0.0)


def test_nearest_peak() -> None:
    answers = [answer(1.0, 100), answer(0.5, 60, 0.2), answer(0.4, 40, 0.1), answer(0.1, 52, 0.3, "wrong"), answer(0.0, None)]
    assert planning.nearest(answers, 90).budget == 1.0
    assert planning.nearest(answers, 52).budget == 0.5  # a sound one first
    assert planning.nearest(answers, 50).budget == 0.4  # as near, and cheaper
    assert planning.nearest(answers[3:], 90).budget == 0.1
    assert planning.nearest(answers[4:], 90).budget == 0.0


@pytest.mark.parametrize(
    ("peaks", "chosen", "tried"),
    [
        ({}, 1.0, 0),  # min-cut's own peak is the plan's
        ({None: 9000, 0.9: 8000}, 0.0, 11),  # the others' is, but 0.0 is reached last
        ({None: 9000, 0.9: 8000, 0.8: 4000}, 0.8, 2),
    ],
)
def test_budgets_are_tried_until_a_peak_is_met(
    peaks: dict[float | None, int], chosen: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def pytorch_answer(captured: Any, problem: Any, method: str, budget: float | None = None) -> PytorchAnswer:
        seen.extend([] if budget is None else [budget])
        peak = 4000 if not peaks or budget == 0.0 else peaks.get(budget, 7000)
        return replace(answer(1.0, peak), method=method, budget=budget)

    monkeypatch.setattr(planning, "pytorch_answer", pytorch_answer)
    monkeypatch.setattr(planning, "simulate", lambda *_: replace(simulate(*_), peak_bytes=Bytes(4000)))
    [graph] = optpart.plan(MLP.model, MLP.batch).graphs
    assert [a.method for a in graph.pytorch] == ["default", "min-cut", "budget"]
    assert graph.pytorch[-1].budget == chosen
    assert seen == list(planning.PYTORCH_BUDGETS[:tried])


# -------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("solve", "reason"),
    [
        (lambda problem, *_: by_hand(problem, None), "RuntimeError: no plan: The limits ran out"),
        (lambda problem, *_: by_hand(problem, Plan((), baseline(problem.graph).backward)), "RuntimeError: the plan is not valid"),
        (lambda *_: {}["solver"], "KeyError: 'solver'"),
    ],
)
def test_no_plan_means_min_cut_and_says_so(solve: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "solve", solve)
    with pytest.warns(FallbackWarning, match=f"MLP: PyTorch's min-cut instead, because of {reason}"):
        report = optpart.plan(MLP.model, MLP.batch)
    [graph] = report.graphs
    assert report.fallback is not None
    assert report.fallback.startswith(reason)
    assert graph.plan == graph.pytorch[1].plan
    assert (report.status, report.bound) == (Status.FEASIBLE, 0.0)
    with pytest.raises((RuntimeError, KeyError)):
        optpart.plan(MLP.model, MLP.batch, on_failure="raise")


def test_a_budget_that_is_not_kept_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "solve", lambda problem, *_: by_hand(problem, baseline(problem.graph)))
    report = optpart.plan(MLP.model, MLP.batch, compare=False, memory_budget="1 MiB", on_failure="raise")
    assert report.graphs[0].budget_bytes == 2**20
    with pytest.raises(RuntimeError, match="over the budget of 2048 bytes"):
        optpart.plan(MLP.model, MLP.batch, compare=False, memory_budget="2 KiB", on_failure="raise")


def test_an_impossible_budget_is_never_papered_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(problem: Any, budget: Any, limits: Any) -> Result:
        assert (budget, limits.seed, limits.time_limit) == (2048, 5, 7.0)
        raise InfeasibleBudget(budget, 4096)

    monkeypatch.setattr(planning, "solve", solve)
    with pytest.raises(InfeasibleBudget, match="4096 bytes"):
        optpart.plan(MLP.model, MLP.batch, memory_budget=2048, seed=5, time_limit=7.0)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown setting 'memory_buget'; did you mean 'memory_budget'"):
        optpart.plan(MLP.model, MLP.batch, memory_buget=0.5)
    with pytest.raises(ValueError, match="nothing that it returns needs a gradient"):
        optpart.plan(lambda x: x + 1, (torch.ones(3),))


# ---------------------------------------------------------------------------- graph breaks and gradients


def test_graph_breaks_are_named() -> None:
    with pytest.warns(planning.GraphBreakWarning, match=r"breaks into 2 .*Broken \(graph 1 of 2\), Broken \(graph 2 of 2\)"):
        report = optpart.plan(Broken(), (torch.randn(3, 4),), compare=False)
    first, second = report.graphs
    assert (first.name, second.name) == ("Broken (graph 1 of 2)", "Broken (graph 2 of 2)")
    assert report.saved_bytes == first.liveness.saved_bytes + second.liveness.saved_bytes
    assert str(report).startswith("Broken: 2 joint graphs, each partitioned on its own\n")


def test_the_check_is_of_the_reported_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitioner in the check solves nothing: it emits the plan that stands in the report."""
    monkeypatch.setattr(partitioner, "solve", lambda *_: pytest.fail("solved again"))
    emitted = []
    emit = planning.emit
    monkeypatch.setattr(planning, "emit", lambda *a, **kw: emitted.append(a[2]) or emit(*a, **kw))
    monkeypatch.setattr(planning, "solve", lambda problem, *_: by_hand(problem, baseline(problem.graph)))
    report = optpart.plan(MLP.model, MLP.batch, compare=False, check=True, on_failure="raise", memory_budget=2**20)
    assert emitted == [report.graphs[0].result]
    assert report.gradients is not None
    assert report.gradients.equal_bitwise
    assert report.gradients.agree
    assert report.gradients.fallbacks == 0
    assert "equal bit for bit" in str(report)
