"""The simulator: by hand on drawn graphs, and against the checker's brute force on random plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cases import (
    BACKWARD,
    FORWARD,
    JOINT,
    Builder,
    bare_skip,
    chain,
    dropout,
    four_inputs,
    ids,
    less_saved_more_peak,
    op_ids,
)
from hypothesis import given, settings
from strategies import bare_problems, problems, rules, seeds, some_plans

from optpart.graph import ValueKind
from optpart.liveness import Liveness, resident_bytes, simulate, workspaces
from optpart.plans import Plan, baseline, just_in_time
from optpart.problem import MemoryRule, Problem
from optpart.units import Bytes
from optpart.validate import validate


def life(problem: Problem, live: Liveness, name: str) -> list[tuple[int, int]]:
    (v,) = ids(problem, name)
    return [(i.start, i.end) for i in live.instances if i.value == v]


def test_timeline_of_the_running_example() -> None:
    """Four inputs are resident (128), y is held from step 4, the tangent from step 5; everything else is 32 at a time.

    step    add  add_1 add_2  cos cos_1 | sin_1  neg  mul  sin neg_1 mul_1
    other   add  +a1   +a2    a2  a2     a2      a2   a2   a2  mul   mul
                 -add  -a1    cos cos    cos     sin1 neg  mul sin   neg_1
                                         sin_1   neg  mul  sin neg_1 mul_1
    """
    p = four_inputs()
    live = simulate(p, baseline(p.graph))
    others = [1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]  # beside y and the tangent
    held = [0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    assert live.timeline == tuple(128 + 32 * (a + b) for a, b in zip(others, held))
    assert (live.peak_bytes, live.peak_step) == (288, 5)
    assert live.saved_bytes == 64
    assert (live.recompute_time, live.overhead) == (0, 0)
    assert life(p, live, "add_2") == [(2, 8)]
    assert life(p, live, "cos_1") == [(4, 10)]
    assert life(p, live, "tangent") == [(5, 10)]
    assert life(p, live, "a") == []


def test_recomputes_cost_their_run_time_and_start_a_new_instance() -> None:
    p = four_inputs()
    live = simulate(p, just_in_time(p.graph, ids(p, "add_2")))
    assert life(p, live, "cos") == [(3, 4), (5, 6)]
    assert live.saved_bytes == 32
    assert (live.recompute_time, live.overhead) == (1, 1 / 11)


def test_less_saved_can_mean_a_higher_peak() -> None:
    p = less_saved_more_peak()
    all_saved = simulate(p, just_in_time(p.graph, ids(p, "narrow h k")))
    less_saved = simulate(p, just_in_time(p.graph, ids(p, "h k")))
    assert (all_saved.saved_bytes, less_saved.saved_bytes) == (168, 164)
    assert (all_saved.peak_bytes, less_saved.peak_bytes) == (196, 348)


def test_a_dropped_value_lives_twice_in_a_bare_graph() -> None:
    p = bare_skip()
    once, twice = simulate(p, Plan((0, 1, 2, 3))), simulate(p, Plan((0, 1, 2, 0, 3)))
    assert once.timeline == (10, 20, 24, 18)
    assert twice.timeline == (10, 20, 14, 14, 18)  # a ends at b; the sink lives at its own step
    assert life(p, twice, "a") == [(0, 1), (3, 4)]
    assert (twice.recompute_time, twice.overhead, twice.saved_bytes) == (3, 0.5, 0)


def test_the_generators_state_lives_only_if_it_is_saved() -> None:
    p = dropout()
    kept = simulate(p, baseline(p.graph))
    assert life(p, kept, "dropout_state") == []
    again = simulate(p, Plan(op_ids(p, "mm dropout mm_1"), op_ids(p, "dropout mm_v mm_d dropout_bw mm_w")))
    assert life(p, again, "dropout_state") == [(1, 3)]
    assert again.saved_bytes == 136


def test_a_replayed_draw_has_the_generators_state_twice() -> None:
    """The one to draw from, and the present one, which is put aside: 8 bytes each, from 24 bytes of workspace on."""
    p = dropout()
    (o,) = op_ids(p, "dropout")
    p = replace(p, workspace=tuple(Bytes(24 if op.id == o else 0) for op in p.graph.ops))
    again = Plan(op_ids(p, "mm dropout mm_1"), op_ids(p, "dropout mm_v mm_d dropout_bw mm_w"))
    assert workspaces(p, again) == [0, 24, 0, 24 + 8, 0, 0, 0, 0]
    assert_checker_agrees(p, again)


def test_unboxed_saved_values_live_to_the_end() -> None:
    p = chain()
    unboxed = replace(p, rule=MemoryRule(boxed=False))
    plan = just_in_time(p.graph, ids(p, "v2 v3 v4"))  # v1 runs again
    assert life(p, simulate(p, plan), "v4") == [(3, 5)]
    assert life(p, simulate(unboxed, plan), "v4") == [(3, len(plan.sequence) - 1)]
    assert life(p, simulate(unboxed, plan), "v1") == life(p, simulate(p, plan), "v1") == [(0, 1), (8, 9)]


def test_outputs_live_as_long_as_the_rule_says() -> None:
    b = Builder("outputs").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8).op("g", "f", FORWARD, 8).op("b1", "t f", BACKWARD, 8).op("b2", "b1", BACKWARD, 8)
    p = b.problem("f g", "b1 b2")
    again = Plan((0, 1), (0, 2, 3))
    live = simulate(p, again)
    assert life(p, live, "f") == [(0, 4), (2, 3)]  # the caller holds the forward's, the backward reads the new one
    assert life(p, live, "b1") == [(3, 4)]
    free = replace(p, rule=MemoryRule(hold_outputs=False))
    assert life(p, simulate(free, again), "f") == [(0, 1), (2, 3)]
    assert life(p, simulate(free, again), "g") == [(1, 1)]
    assert simulate(p, baseline(p.graph)).saved_bytes == 0  # a forward output is there anyway


def test_rounding_residents_and_workspace_count() -> None:
    p = replace(bare_skip(), workspace=tuple(Bytes(w) for w in (0, 100, 0, 0)))
    assert simulate(p, baseline(p.graph)).timeline == (10, 120, 24, 18)
    rounded = replace(p, rule=replace(p.rule, rounding=Bytes(16)))
    assert simulate(rounded, baseline(p.graph)).timeline == (16, 132, 48, 48)
    joint = four_inputs()
    assert resident_bytes(joint) == 128
    assert resident_bytes(replace(joint, rule=MemoryRule(count_resident=False))) == 0


def test_an_empty_plan_holds_the_inputs() -> None:
    p = Builder("nothing").given(24, "x").problem("", "")
    live = simulate(p, Plan(()))
    assert (live.timeline, live.peak_bytes, live.overhead) == ((), 24, 0)


# ---------------------------------------------------------------------------------------- properties


def assert_checker_agrees(problem: Problem, plan: Plan) -> None:
    live, verdict = simulate(problem, plan), validate(problem, plan)
    assert verdict.faults == ()
    assert live.peak_bytes == verdict.peak_bytes
    assert live.saved_bytes == verdict.saved_bytes
    assert live.recompute_time == pytest.approx(verdict.recompute_time)
    assert live.overhead == pytest.approx(verdict.overhead)


@settings(max_examples=500)
@given(problems(), seeds, rules)
def test_simulator_and_checker_agree_on_joint_plans(problem: Problem, seed: int, rule: MemoryRule) -> None:
    problem = replace(problem, rule=rule)
    for plan in some_plans(problem, seed):
        assert_checker_agrees(problem, plan)


@settings(max_examples=100)
@given(bare_problems(), seeds, rules)
def test_simulator_and_checker_agree_on_bare_plans(problem: Problem, seed: int, rule: MemoryRule) -> None:
    outputs = {"forward_outputs": (seed % len(problem.graph.ops),), "backward_outputs": (0,)}
    problem = replace(problem, rule=rule, graph=replace(problem.graph, **outputs))
    for plan in some_plans(problem, seed):
        assert_checker_agrees(problem, plan)


@pytest.mark.parametrize("case", JOINT)
def test_simulator_and_checker_agree_on_the_drawn_graphs(case: Callable[[], Problem]) -> None:
    problem = case()
    for seed in range(20):
        for plan in some_plans(problem, seed):
            assert_checker_agrees(problem, plan)


@given(problems(), seeds)
def test_the_timeline_is_what_its_instances_add_up_to(problem: Problem, seed: int) -> None:
    for plan in some_plans(problem, seed, moves=4):
        live = simulate(problem, plan)
        for step, space in enumerate(workspaces(problem, plan)):
            alive = sum(problem.sizes[i.value] for i in live.alive_at(step))
            assert live.timeline[step] == resident_bytes(problem) + alive + space
        assert live.timeline[live.peak_step] == live.peak_bytes == max(live.timeline)
