"""Problems: sizes, costs, JSON, and the published instances in both their dialects."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import bare_skip, four_inputs
from hypothesis import given
from hypothesis import strategies as st
from strategies import bare_problems, problems

from optpart.liveness import simulate
from optpart.plans import baseline
from optpart.problem import (
    BARE_RULE,
    MemoryRule,
    Problem,
    bare_problem,
    from_node_link,
    load_problem,
    problem_from_json,
    problem_to_json,
)
from optpart.units import Bytes, Microseconds


def with_times(problem: Problem, *times: float) -> Problem:
    return replace(problem, runtime=tuple(Microseconds(t) for t in times))


def test_sizes_are_rounded_up_by_the_rule() -> None:
    rule = MemoryRule(rounding=Bytes(512))
    assert [rule.size(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    problem = replace(bare_skip(), rule=replace(BARE_RULE, rounding=Bytes(8)))
    assert problem.sizes == (16, 16, 8, 8)
    assert bare_skip().sizes == (10, 10, 4, 4)


def test_total_time_and_budget() -> None:
    problem = bare_skip()
    assert problem.total_time == 6
    assert problem.budget is None
    assert problem.with_budget(20).budget == 20
    assert problem.with_budget(20).with_budget(None) == problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runtime": (1.0,)}, "4 ops, but 1 run times and 4 workspaces"),
        ({"workspace": ()}, "4 ops, but 4 run times and 0 workspaces"),
        ({"runtime": (1.0, -1.0, 1.0, 1.0)}, "op 'b' has run time -1.0"),
        ({"runtime": (1.0, 1.0, math.nan, 1.0)}, "op 'c' has run time nan"),
        ({"runtime": (1.0, 1.0, 1.0, math.inf)}, "op 'd' has run time inf"),
        ({"workspace": (0, 0, 0, -8)}, "op 'd' has a workspace of -8 bytes"),
    ],
)
def test_costs_that_mean_nothing_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(bare_skip(), **change)


def test_whole_run_times_are_integers_over_their_gcd() -> None:
    assert with_times(bare_skip(), 6.0, 4.0, 0.0, 10.0).integer_costs() == ((3, 2, 0, 5), 2.0)
    assert with_times(bare_skip(), 0.0, 0.0, 0.0, 0.0).integer_costs() == ((0, 0, 0, 0), 1.0)


def test_other_run_times_are_integers_in_nanoseconds() -> None:
    assert with_times(bare_skip(), 0.5, 1.25, 2.0, 0.0).integer_costs() == ((500, 1250, 2000, 0), 1e-3)


@given(st.lists(st.floats(0, 1e12), min_size=4, max_size=4))
def test_integer_costs_are_run_times_to_within_half_a_unit(times: list[float]) -> None:
    costs, unit = with_times(bare_skip(), *times).integer_costs(10**6)
    assert all(abs(c * unit - t) <= unit * (0.5 + 1e-6) for c, t in zip(costs, times))
    if unit > 1e-3 and not all(t.is_integer() for t in times):
        assert sum(costs) <= 10**6 + 2  # each of four costs is rounded


# ---------------------------------------------------------------------------------------------- JSON


@given(problems(), st.none() | st.integers(0, 1000))
def test_problems_come_back_from_json(problem: Problem, budget: int | None) -> None:
    problem = replace(problem.with_budget(budget), cost_model="roofline")
    assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem


@given(bare_problems())
def test_bare_problems_come_back_from_json(problem: Problem) -> None:
    assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem


def test_problems_come_back_from_files(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(problem_to_json(four_inputs())))
    assert load_problem(file) == load_problem(str(file)) == four_inputs()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a JSON list, expected an object"),
        ("{}", "not a problem of this package: format is None"),
        ('{"nodes": [{"id": 1}], "links": []}', "lacks the field 'cost_ram'"),
    ],
)
def test_files_that_hold_no_problem_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "something.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_problem(file)


# ----------------------------------------------------------------------------------------- node-link

# The graph of cases.bare_skip, with its nodes in another order, as both families of published files write it.
NAMED = {
    "graph": {"name": "skip", "order": [7, 3, 5, 4]},
    "nodes": [
        {"name": 3, "out_cost": 10, "duration": 1, "param_cost": 0},
        {"name": 4, "out_cost": 4, "duration": 1, "param_cost": 0},
        {"name": 5, "out_cost": 4, "duration": 1, "param_cost": 0},
        {"name": 7, "out_cost": 10, "duration": 3, "param_cost": 0},
    ],
    "links": [{"0": 7, "1": 3}, {"0": 3, "1": 5}, {"0": 5, "1": 4}, {"0": 7, "1": 4}],
}
NUMBERED = {
    "graph": {},
    "nodes": [
        {"id": 4, "backward": True, "cost_cpu": 1, "cost_ram": 4},
        {"id": 7, "backward": False, "cost_cpu": 3, "cost_ram": 10},
        {"id": 3, "backward": False, "cost_cpu": 1, "cost_ram": 10},
        {"id": 5, "backward": True, "cost_cpu": 1, "cost_ram": 4},
    ],
    "links": [
        {"source": 7, "target": 3},
        {"source": 3, "target": 5},
        {"source": 5, "target": 4},
        {"source": 7, "target": 4},
    ],
}


@pytest.mark.parametrize("data", [NAMED, NUMBERED])
def test_both_dialects_of_node_link_files(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "skip.json").write_text(json.dumps(data))
    problem, expected = load_problem(tmp_path / "skip.json"), bare_skip()
    assert problem.graph.name == "skip"
    assert [op.name for op in problem.graph.ops] == ["7", "3", "5", "4"]
    assert [op.reads for op in problem.graph.ops] == [op.reads for op in expected.graph.ops]
    assert (problem.sizes, problem.runtime, problem.rule) == (expected.sizes, expected.runtime, BARE_RULE)
    assert simulate(problem, baseline(problem.graph)).peak_bytes == 24


def test_a_cycle_is_refused() -> None:
    data = {**NUMBERED, "links": [*NUMBERED["links"], {"source": 4, "target": 7}]}  # type: ignore[misc]
    with pytest.raises(ValueError, match="node-link graph 'loop' has a cycle"):
        from_node_link(data, "loop")


def test_an_edge_twice_is_one_read() -> None:
    assert bare_problem(["a", "b"], [1, 1], [1, 1], [(0, 1), (0, 1)]).graph.ops[1].reads == (0,)


INSTANCES = os.environ.get("OPTPART_INSTANCES", "")


@pytest.mark.skipif(not INSTANCES, reason="OPTPART_INSTANCES names no folder with the published instances")
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "peak", "time"),
    [
        ("rlg1", 100, 236, 46319, 47769),
        ("rlg2", 250, 944, 146840, 125569),
        ("rlg4", 1000, 5875, 608619, 497270),
        ("cm1_fcn8", 73, 149, 13484795520, 10275337746048),
        ("vgg16", 45, 87, 15825108992, 15500),
        ("unet", 71, 148, 20959461376, 31005),
    ],
)
def test_published_instances(name: str, nodes: int, edges: int, peak: int, time: int) -> None:
    """Their published sizes, given-order peaks and total run times."""
    problem = load_problem(Path(INSTANCES) / f"{name}.json")
    assert len(problem.graph.ops) == nodes
    assert sum(len(op.reads) for op in problem.graph.ops) == edges
    assert simulate(problem, baseline(problem.graph)).peak_bytes == peak
    assert problem.total_time == time
