"""Reports of the running example: the printed text to the letter, the JSON's keys, the sums of its rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import pytest

from optpart.explain import explain
from optpart.gradients import GradientCheck
from optpart.liveness import simulate
from optpart.plans import Plan, baseline, just_in_time
from optpart.problem import Problem
from optpart.pytorch_plans import PytorchAnswer
from optpart.random_graphs import random_joint
from optpart.report import GraphReport, Report, report_text
from optpart.report_json import infeasible_to_json, report_to_json
from optpart.settings import Settings
from optpart.solver.base import InfeasibleBudget, Result, Status, conclude
from optpart.summary import fixed_rows, recomputed_rows, saved_rows
from optpart.units import Bytes

GOLDEN = Path(__file__).parent / "golden"
CHECK = GradientCheck(equal_bitwise=True, max_abs_error=1.5e-7, agree=True, min_cut_agrees=True, fallbacks=0, compared=6)


def result(problem: Problem, plan: Plan, *, bound: float = 0.5) -> Result:
    again = sum(n * problem.runtime[o] for o, n in plan.recomputes().items())
    return conclude(
        problem,
        Status.FEASIBLE,
        plan,
        unit=1.0,
        objective=again,
        objective_bound=bound,
        plan_class="plans by hand",
        formulation="a drawing",
        solver="a pencil",
        seconds=1.0,
        notes=("the eraser was not needed",),
    )


def answer(problem: Problem, method: str, budget: float | None, plan: Plan, trouble: str = "") -> PytorchAnswer:
    numbers = simulate(problem, plan)
    return PytorchAnswer(
        method, budget, plan, numbers.peak_bytes, numbers.saved_bytes, numbers.overhead, trouble, seconds=0.25
    )


def graph_report(problem: Problem, saved: str, bound: float = 0.5, **other: Any) -> GraphReport:
    plan = just_in_time(problem.graph, cases.ids(problem, saved))
    whole = GraphReport(
        problem=problem,
        result=result(problem, plan, bound=bound),
        plan=plan,
        liveness=simulate(problem, plan),
        kept_all=simulate(problem, baseline(problem.graph)),
        memory_budget=None,
        budget_bytes=None,
        fallback=None,
        pytorch=(),
        seconds=1.25,
    )
    return replace(whole, **other)


def four_inputs() -> Report:
    """Saves the sum alone; the first cos may be redone, the second may not for a made-up reason."""
    problem = cases.four_inputs()
    ops = tuple(replace(op, recomputable=False, reason="too pretty") if op.name == "cos_1" else op for op in problem.graph.ops)
    problem = replace(problem, graph=replace(problem.graph, ops=ops), cost_model="a stopwatch")
    everything, only_sum = (just_in_time(problem.graph, cases.ids(problem, s)) for s in ("add_2 cos", "add_2"))
    rows = (
        answer(problem, "default", None, everything),
        PytorchAnswer("min-cut", None, None, None, None, None, "PyTorch's partitioner failed: it rained", 0.125),
        answer(problem, "budget", 0.3, only_sum, "an op has to run once"),
    )
    return Report("four inputs", (graph_report(problem, "add_2", pytorch=rows),), Settings(), CHECK, {"preset": "drawn"})


def two_graphs() -> Report:
    """The example twice, once with every run ten times as long; no check, different budgets."""
    first = cases.four_inputs()
    slow = replace(first, runtime=tuple(10 * t for t in first.runtime), graph=replace(first.graph, name="slow"))
    graphs = (
        graph_report(first, "add_2", pytorch=(answer(first, "default", None, baseline(first.graph)),), budget_bytes=Bytes(500)),
        graph_report(slow, "add_2 cos", bound=0.0, pytorch=(answer(slow, "default", None, baseline(slow.graph)),)),
    )
    return Report("twice", graphs, Settings(memory_budget=0.5))


def test_the_printed_report() -> None:
    """Written once, read by a person, and since then compared: ``tests/golden/four_inputs.txt``."""
    assert str(four_inputs()) == (GOLDEN / "four_inputs.txt").read_text()


def test_the_printed_report_of_two_graphs() -> None:
    assert report_text(two_graphs()) == (GOLDEN / "two_graphs.txt").read_text()


def test_the_numbers_of_the_example() -> None:
    report = four_inputs()
    assert (report.overhead, report.bound, report.gap) == (1 / 11, 0.5 / 11, 0.5)
    assert (report.saved_bytes, report.recomputed_ops, report.status) == (32, 1, Status.FEASIBLE)
    assert (report.seconds, report.fallback) == (1.25, None)


# ------------------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize("seed", range(30))
def test_rows_sum_to_the_plan(seed: int) -> None:
    problem = random_joint(seed, 12)
    graph = problem.graph
    saved = frozenset(v.id for v in graph.values if v.savable and (v.id + seed) % 3)
    keep = {v.id for v in graph.values if v.producer is not None and not graph.ops[v.producer].recomputable}
    plan = just_in_time(graph, saved | keep)
    numbers = simulate(problem, plan)
    rows = saved_rows(problem, plan)
    assert sum(r.nbytes for r in rows) == numbers.saved_bytes
    assert sum(r.count for r in rows) == len(set(plan.saved(graph)) - set(graph.forward_outputs))
    again = recomputed_rows(problem, plan)
    assert math.fsum(r.time for r in again) == pytest.approx(numbers.recompute_time)
    assert sum(r.count for r in again) == sum(plan.recomputes().values())
    fixed = fixed_rows(problem, plan)
    assert sum(r.ops for r in fixed) == sum(not o.recomputable and o.region != "backward" for o in graph.ops)
    assert sum(r.saved_bytes for r in fixed) <= numbers.saved_bytes


# ------------------------------------------------------------------------------------------------ JSON


def test_json_of_the_example() -> None:
    data = json.loads(json.dumps(report_to_json(four_inputs()), allow_nan=False))
    numbers = simulate(cases.four_inputs(), just_in_time(cases.four_inputs().graph, cases.ids(cases.four_inputs(), "add_2")))
    expected = {
        "model": "four inputs",
        "config": {"preset": "drawn"},
        "status": "feasible",
        "overhead": 1 / 11,
        "bound": 0.5 / 11,
        "gap": 0.5,
        "plan_class": "plans by hand",
        "peak_bytes": numbers.peak_bytes,
        "saved_bytes": 32,
        "recomputed_ops": 1,
        "seconds": 1.25,
        "fallback": None,
        "seed": 0,
        "memory_budget": None,
        "budget_bytes": None,
        "cost_model": "a stopwatch",
        "deterministic": True,
        "objective": 1.0,
        "objective_bound": 0.5,
    }
    assert {key: data[key] for key in expected} == expected
    assert data["gradients"] == {
        "equal_bitwise": True,
        "max_abs_error": 1.5e-7,
        "agree": True,
        "min_cut_agrees": True,
        "fallbacks": 0,
        "compared": 6,
    }
    assert [(a["method"], a["budget"]) for a in data["pytorch"]] == [("default", None), ("min-cut", None), ("budget", 0.3)]
    assert [a["saved_bytes"] for a in data["pytorch"]] == [64, None, 32]
    assert [a["overhead"] for a in data["pytorch"]] == [0.0, None, 1 / 11]
    assert [a["problem"] for a in data["pytorch"]] == [None, "PyTorch's partitioner failed: it rained", "an op has to run once"]
    [graph] = data["graphs"]
    assert graph["saved"] == [{"op": "add", "count": 1, "bytes": 32, "time_fraction": 1 / 11}]
    assert graph["recomputed"] == [{"op": "cos", "count": 1, "bytes": 32, "time_fraction": 1 / 11}]
    assert graph["not_recomputable"] == [{"reason": "too pretty", "ops": 1, "bytes": 32, "saved_bytes": 0}]
    assert {"python", "torch", "ortools"} <= set(data["versions"])


def test_json_of_two_graphs() -> None:
    """Times weigh: the second graph takes ten times as long, and recomputes nothing."""
    data = report_to_json(two_graphs())
    assert data["overhead"] == pytest.approx(1 / 121)
    assert data["bound"] == pytest.approx(0.5 / 121)
    assert data["gap"] == pytest.approx(0.5)
    assert data["saved_bytes"] == 32 + 64
    assert data["peak_bytes"] == max(g["peak_bytes"] for g in data["graphs"])
    assert (data["budget_bytes"], data["memory_budget"], data["gradients"]) == (None, 0.5, None)
    [default] = data["pytorch"]
    assert (default["saved_bytes"], default["overhead"]) == (128, 0.0)


def test_an_infinite_error_is_no_json_number() -> None:
    wrong = replace(CHECK, equal_bitwise=False, agree=False, max_abs_error=math.inf, min_cut_agrees=None)
    report = replace(four_inputs(), gradients=wrong)
    assert report_to_json(report)["gradients"]["max_abs_error"] is None
    json.dumps(report_to_json(report), allow_nan=False)
    assert "gradients: WRONG" in str(report)
    assert "PyTorch's min-cut fails here." in str(report)


def test_json_of_an_infeasible_budget_has_the_same_keys() -> None:
    data = infeasible_to_json("m", {"layers": 2}, Settings(memory_budget=100, seed=3), InfeasibleBudget(100, 250))
    assert (data["status"], data["budget_bytes"], data["smallest_peak_bytes"], data["seed"]) == ("infeasible", 100, 250, 3)
    asked = "model status overhead bound gap peak_bytes saved_bytes recomputed_ops seconds fallback gradients pytorch"
    assert set(asked.split()) <= set(data) & set(report_to_json(four_inputs()))
    json.dumps(data, allow_nan=False)


def test_a_graph_without_a_bound() -> None:
    report = four_inputs()
    [graph] = report.graphs
    unproven = replace(graph, result=replace(graph.result, bound=None, objective_bound=None), fallback="it rained")
    report = replace(report, graphs=(unproven,))
    assert (report.bound, report.gap, report.fallback) == (None, None, "it rained")
    assert "9.09%, no bound" in str(report)
    assert "fallback    it rained" in str(report)


# --------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("cos", ["it may be recomputed", "once in the forward and 1 x in the backward", "no: the backward runs its op again"]),
        ("add_2", ["yes: the backward reads it as the forward left it", "in the forward by cos; in the backward by cos, sin"]),
        ("cos_1", ["it may not be recomputed (too pretty)", "no: the backward does not read it"]),
        ("sin", ["only the backward needs it", "no: the backward computes it itself"]),
        ("mul", ["region   backward", "reads    tangent (32 B), neg (32 B)"]),
        ("a", ["value a (32 B)", "no: the backward does not read it", "in the forward by add"]),
        ("tangent", ["no: it comes with the backward"]),
    ],
)
def test_explain(name: str, texts: list[str]) -> None:
    [graph] = four_inputs().graphs
    text = explain(graph.problem, graph.plan, name)
    assert [t for t in texts if t not in text] == []


def test_explain_names_the_closest() -> None:
    [graph] = four_inputs().graphs
    with pytest.raises(ValueError, match="no op or value called 'add2'; there is, for example: add_2"):
        explain(graph.problem, graph.plan, "add2")
