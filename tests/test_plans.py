"""Plans: what follows from two lists of op ids, and the two simplest ways to make one."""

from __future__ import annotations

import json
import random

import pytest
from cases import BACKWARD, EITHER, FORWARD, Builder, bare_skip, chain, dropout, four_inputs, ids, layer_norm, op_ids
from hypothesis import given, settings
from strategies import bare_problems, consistent, problems, random_saved_set, savable, seeds, some_plans

from optpart.graph import Region, ValueKind
from optpart.plans import Plan, baseline, just_in_time, plan_from_json, plan_to_json
from optpart.problem import Problem
from optpart.validate import validate


def plan(problem: Problem, forward: str, backward: str) -> Plan:
    return Plan(op_ids(problem, forward), op_ids(problem, backward))


FORWARD_OPS = "add add_1 add_2 cos cos_1"


def test_counts_and_recomputes() -> None:
    p = Plan((0, 1, 2), (3, 1, 1, 0, 4))
    assert p.sequence == (0, 1, 2, 3, 1, 1, 0, 4)
    assert p.counts == {0: 2, 1: 3, 2: 1, 3: 1, 4: 1}
    assert list(p.recomputes().items()) == [(0, 1), (1, 2)]


def test_saved_is_what_the_backward_reads_from_the_forward() -> None:
    p = four_inputs()
    saved = baseline(p.graph).saved(p.graph)
    assert saved == tuple(sorted(ids(p, "cos add_2")))
    again = plan(p, FORWARD_OPS, "cos sin_1 neg mul sin neg_1 mul_1")
    assert again.saved(p.graph) == tuple(ids(p, "add_2"))
    early = plan(p, f"{FORWARD_OPS} sin_1 neg", "mul sin neg_1 mul_1")
    assert early.saved(p.graph) == tuple(sorted(ids(p, "neg add_2")))


def test_inputs_that_the_backward_reads_are_saved_and_static_ones_and_tangents_are_not() -> None:
    p = four_inputs()
    from_inputs = plan(p, FORWARD_OPS, "add add_1 add_2 cos sin_1 neg mul sin neg_1 mul_1")
    assert from_inputs.saved(p.graph) == tuple(sorted(ids(p, "a b c d")))
    p = layer_norm()
    assert baseline(p.graph).saved(p.graph) == tuple(sorted(ids(p, "x y mean rstd g")))


def test_a_value_may_be_saved_and_recomputed_later() -> None:
    p = chain()
    both = plan(p, "f1 f2 f3 f4 f5", "b5 b4 b3 f1 b2 b1")
    assert both.saved(p.graph) == tuple(sorted(ids(p, "x v2 v3 v4")))
    late = plan(p, "f1 f2 f3 f4 f5", "b5 b4 f2 b3 f1 b2 b1")
    assert late.saved(p.graph) == tuple(sorted(ids(p, "x v1 v3 v4")))  # f2 reads the forward's v1


def test_a_rerun_of_a_random_op_saves_the_generators_state() -> None:
    p = dropout()
    again = plan(p, "mm dropout mm_1", "dropout mm_v mm_d dropout_bw mm_w")
    assert again.saved(p.graph) == tuple(sorted(ids(p, "x h dropout_state")))
    twice = plan(p, "mm dropout mm_1", "dropout mm_v mm_d dropout dropout_bw mm_w")
    assert twice.saved(p.graph) == again.saved(p.graph)


def test_a_value_that_the_backward_only_returns_is_saved() -> None:
    b = Builder("returned").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    p = b.op("f", "x", FORWARD, 8).op("e", "f", EITHER, 8).op("b", "t", BACKWARD, 8).problem("f", "b e")
    assert plan(p, "f e", "b").saved(p.graph) == tuple(ids(p, "e"))
    assert plan(p, "f", "b e").saved(p.graph) == tuple(ids(p, "f"))


@given(bare_problems(), seeds)
def test_bare_plans_save_nothing(problem: Problem, seed: int) -> None:
    assert all(p.saved(problem.graph) == () for p in some_plans(problem, seed, moves=4))


def test_baseline_recomputes_nothing() -> None:
    p = four_inputs()
    assert baseline(p.graph) == plan(p, FORWARD_OPS, "sin_1 neg mul sin neg_1 mul_1")
    assert baseline(bare_skip().graph) == Plan((0, 1, 2, 3))


@given(problems())
def test_baseline_runs_every_op_once_where_it_belongs(problem: Problem) -> None:
    p = baseline(problem.graph)
    assert sorted(p.sequence) == list(range(len(problem.graph.ops)))
    assert all(problem.graph.ops[o].region is Region.FORWARD for o in p.forward)
    assert p.recomputes() == {}


@given(problems(), seeds)
def test_plans_come_back_from_json(problem: Problem, seed: int) -> None:
    for p in some_plans(problem, seed, moves=3):
        assert plan_from_json(json.loads(json.dumps(plan_to_json(p)))) == p


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not a plan of this package: format is None"):
        plan_from_json({"forward": [], "backward": []})


# -------------------------------------------------------------------------------------- just in time


def test_just_in_time_recomputes_before_the_first_reader() -> None:
    p = four_inputs()
    assert just_in_time(p.graph, ids(p, "add_2")) == plan(p, FORWARD_OPS, "cos sin_1 neg mul sin neg_1 mul_1")
    assert just_in_time(p.graph, ids(p, "neg neg_1")) == plan(p, f"{FORWARD_OPS} sin_1 neg sin neg_1", "mul mul_1")
    p = chain()
    assert just_in_time(p.graph, ids(p, "v3 v4")) == plan(p, "f1 f2 f3 f4 f5", "b5 b4 f1 f2 b3 b2 b1")


def test_what_a_forward_op_waits_for_runs_early() -> None:
    b = Builder("waits").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8).op("e", "f", EITHER, 8).op("update", "x", FORWARD, {}, after=["e"])
    p = b.op("b", "t e", BACKWARD, 8).problem("f", "b")
    for saved in ("", "e"):
        made = just_in_time(p.graph, ids(p, saved))
        assert made.forward == op_ids(p, "f e update")
        assert validate(p, made).ok


@settings(max_examples=400)
@given(problems(), seeds)
def test_just_in_time_is_valid_for_consistent_saved_sets(problem: Problem, seed: int) -> None:
    """And for no others: what the backward cannot have is a fault that the checker finds."""
    graph, rng = problem.graph, random.Random(seed)
    saved = random_saved_set(graph, rng)
    made = just_in_time(graph, saved)
    assert validate(problem, made).faults == ()
    computed = {v for v in made.saved(graph) if graph.values[v].kind is ValueKind.COMPUTED}
    states = {op.rng_state for op in graph.ops}
    assert computed - states <= saved | set(graph.backward_outputs)
    assert all(n == 1 for n in made.recomputes().values())
    anything = frozenset(v for v in savable(graph, FORWARD, EITHER) if rng.random() < 0.7)
    assert validate(problem, just_in_time(graph, anything)).ok == consistent(graph, anything)
