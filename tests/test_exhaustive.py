"""The yardsticks: exhaustive search on drawn graphs, and against the enumeration of every list of ops on tiny ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from cases import (
    BACKWARD,
    EITHER,
    FORWARD,
    JOINT,
    Builder,
    bare_skip,
    chain,
    diamond,
    dropout,
    four_inputs,
    ids,
    layer_norm,
    less_saved_more_peak,
    op_ids,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import bare_problems, problems

from optpart.graph import Region, ValueKind
from optpart.plans import Plan, baseline
from optpart.problem import MemoryRule, Problem
from optpart.random_graphs import random_joint
from optpart.solver.exhaustive import (
    OneCopy,
    byte_weights,
    least_recompute_time,
    least_saved_weight,
    one_copy_options,
    pareto,
)
from optpart.solver.exhaustive_sequences import (
    FIXED,
    FREE,
    STAGED,
    Found,
    Sequences,
    least_peak_plan,
    least_recompute_plan,
)
from optpart.validate import validate


def names(problem: Problem, option: OneCopy) -> str:
    return " ".join(problem.graph.values[v].name for v in sorted(option.saved))


# ------------------------------------------------------------------------------------------ one copy


@pytest.mark.parametrize(
    ("case", "front"),
    [
        (four_inputs, [(32, 1, "add_2"), (64, 0, "neg neg_1")]),
        (layer_norm, [(64, 3, "x"), (128, 2, "x g"), (144, 1, "x y mean rstd"), (208, 0, "x y mean rstd g")]),
        (diamond, [(16, 2, "a"), (48, 1, "a b"), (80, 0, "a b c")]),
        (dropout, [(72, 5, "x dropout_state"), (136, 1, "x h dropout_state"), (144, 0, "x d mask")]),
        (
            less_saved_more_peak,
            [
                (4, 22, "x"),
                (8, 20, "narrow"),
                (84, 12, "x h"),
                (88, 10, "narrow h"),
                (164, 2, "x h k"),
                (168, 0, "narrow h k"),
            ],
        ),
        (chain, [(8 + 32 * n, 4 - n, " ".join(["x", "v1", "v2", "v3", "v4"][: n + 1])) for n in range(5)]),
    ],
)
def test_pareto_sets_of_the_drawn_graphs(case: Callable[[], Problem], front: list[tuple[int, int, str]]) -> None:
    problem = case()
    found = pareto(problem, byte_weights(problem))
    assert [(w, o.recompute_time, names(problem, o)) for w, o in found] == front


def test_the_running_example_saves_one_value() -> None:
    p = four_inputs()
    found = least_saved_weight(p, byte_weights(p))
    assert found is not None
    weight, option = found
    assert (weight, option.saved) == (32, ids(p, "add_2"))
    assert option.plan() == Plan(op_ids(p, "add add_1 add_2 cos cos_1"), op_ids(p, "cos sin_1 neg mul sin neg_1 mul_1"))


def test_banned_ops_are_not_recomputed() -> None:
    p = four_inputs()
    found = least_saved_weight(p, byte_weights(p), frozenset(op_ids(p, "cos")))
    assert found is not None
    assert found[0] == 64
    assert found[1].recompute_time == 0
    p = chain()
    banned = frozenset(op_ids(p, "f2"))
    assert [(w, names(p, o)) for w, o in pareto(p, byte_weights(p), banned)] == [
        (40, "x v2"),  # f1, f3 and f4
        (72, "x v1 v2"),
        (104, "x v1 v2 v3"),
        (136, "x v1 v2 v3 v4"),
    ]


def test_weights_may_be_anything_and_none_says_may_not_be_saved() -> None:
    p = four_inputs()
    (add_2,) = ids(p, "add_2")
    weights: list[float | None] = [1.0] * len(p.graph.values)
    weights[add_2] = None
    found = least_saved_weight(p, weights)
    assert found is not None
    assert (found[0], found[1].recompute_time) == (2.0, 0)
    assert add_2 not in found[1].saved
    assert least_saved_weight(p, [None] * len(weights)) is None


def test_least_recompute_time_under_a_limit() -> None:
    p = layer_norm()
    weights = byte_weights(p)
    for limit, time in ((63, None), (64, 3), (127, 3), (128, 2), (144, 1), (207, 1), (208, 0)):
        option = least_recompute_time(p, weights, limit)
        assert (None if option is None else option.recompute_time) == time


def test_ops_that_nobody_needs_may_run_nowhere() -> None:
    p = four_inputs()
    assert any(op_ids(p, "sin")[0] in o.forward - o.backward for o in one_copy_options(p))
    ops = tuple(replace(op, reads=tuple(ids(p, "mul sin"))) if op.name == "mul_1" else op for op in p.graph.ops)
    unread = replace(p, graph=replace(p.graph, ops=ops))
    neg_1 = op_ids(p, "neg_1")[0]
    assert any(neg_1 not in o.forward | o.backward for o in one_copy_options(unread))
    assert all(neg_1 in o.forward | o.backward for o in one_copy_options(p))


def test_what_is_too_large_or_bare_is_refused() -> None:
    with pytest.raises(ValueError, match="a bare graph has no backward"):
        one_copy_options(bare_skip())
    with pytest.raises(ValueError, match="combinations of run sets; exhaustive search takes up to"):
        one_copy_options(random_joint(0, 60))
    with pytest.raises(ValueError, match="ops are too many to search through"):
        least_peak_plan(chain(), FREE, max_states=50)


@settings(max_examples=250)
@given(problems(2, 8))
def test_every_member_is_a_valid_plan_with_these_numbers(problem: Problem) -> None:
    weights = byte_weights(problem)
    for option in one_copy_options(problem):
        verdict = validate(problem, option.plan())
        assert verdict.faults == ()
        assert verdict.saved_bytes == option.weight(weights)
        assert verdict.recompute_time == pytest.approx(option.recompute_time)
        assert option.saved == set(option.plan().saved(problem.graph))


# --------------------------------------------------------------------------------------- sequences


def in_class(problem: Problem, plan: Plan, sequences: Sequences) -> bool:
    """Does a valid plan keep the rules of a class?  Read off the lists alone."""
    graph, fixed = problem.graph, []
    early = {o for o in plan.forward if graph.joint and graph.ops[o].region is Region.EITHER}
    if early and not sequences.either_early:
        return False
    stage: list[int] = []
    for i, o in enumerate(plan.sequence):
        anchor = o not in plan.sequence[:i] and not (graph.joint and graph.ops[o].region is Region.EITHER)
        if i == len(plan.forward) or (anchor and stage):
            stage = []
        if anchor:
            fixed.append(o)
        else:
            if sequences.staged and stage and o <= stage[-1]:
                return False
            stage.append(o)
    sides = [[o for o in fixed if graph.ops[o].region is r] for r in Region] if graph.joint else [fixed]
    return not sequences.fixed_order or all(side == sorted(side) for side in sides)


def all_plans(problem: Problem, longer: int) -> Iterator[Plan]:
    """Every two lists that could be a plan with at most ``longer`` runs more than ops."""
    graph, ops = problem.graph, range(len(problem.graph.ops))
    if not graph.joint:
        for n in range(len(ops), len(ops) + longer + 1):
            yield from (Plan(runs) for runs in itertools.product(ops, repeat=n))
        return
    forward = [op.id for op in graph.in_region(Region.FORWARD)]
    either = [op.id for op in graph.in_region(Region.EITHER)]
    once = len(ops) - len(forward)
    lates = [runs for n in range(once + longer + 1) for runs in itertools.product(ops, repeat=n)]
    for some in itertools.chain.from_iterable(itertools.combinations(either, n) for n in range(len(either) + 1)):
        for early in itertools.permutations([*forward, *some]):
            yield from (Plan(early, late) for late in lates)


CLASSES = (FIXED, STAGED, FREE, Sequences(either_early=False), Sequences(fixed_order=False, staged=True))


def assert_best(problem: Problem, longer: int) -> None:
    """No plan that can be listed beats what the search finds, at any budget, in any class; what it finds is in the class."""
    listed = [(v.peak_bytes, v.recompute_time, p) for p in all_plans(problem, longer) if (v := validate(problem, p)).ok]
    for sequences in CLASSES:
        members = [(peak, time) for peak, time, plan in listed if in_class(problem, plan, sequences)]
        lowest = least_peak_plan(problem, sequences)
        if lowest is None:
            assert members == []
            continue
        assert in_class(problem, lowest.plan, sequences)
        assert lowest.peak_bytes <= min(peak for peak, _ in members)
        assert least_recompute_plan(problem.with_budget(lowest.peak_bytes - 1), sequences) is None
        for budget in {lowest.peak_bytes, *(peak for peak, _ in members)}:
            found = least_recompute_plan(problem.with_budget(budget), sequences)
            assert found is not None
            assert in_class(problem, found.plan, sequences)
            assert found.peak_bytes <= budget
            assert found.recompute_time <= min(
                (time for peak, time in members if peak <= budget), default=found.recompute_time
            )


@settings(max_examples=150)
@given(problems(2, 4))
def test_no_listed_joint_plan_beats_the_search(problem: Problem) -> None:
    assert_best(problem, longer=2 if len(problem.graph.ops) < 4 else 1)


@settings(max_examples=20)
@given(bare_problems(3, 4), st.booleans())
def test_no_listed_bare_plan_beats_the_search(problem: Problem, hold: bool) -> None:
    graph = replace(problem.graph, backward_outputs=(1,))
    assert_best(replace(problem, graph=graph, rule=replace(problem.rule, hold_outputs=hold)), longer=2)


def search(problem: Problem, budget: int | None, sequences: Sequences = FIXED) -> Found:
    found = least_recompute_plan(problem.with_budget(budget), sequences)
    assert found is not None
    return found


def test_a_low_budget_asks_for_two_recomputes_of_one_op() -> None:
    p = chain()
    lowest = least_peak_plan(p)
    assert lowest is not None
    assert lowest.peak_bytes == 96
    found = search(p, 96)
    assert found.plan.recomputes() == dict(zip(op_ids(p, "f1 f2"), (2, 1)))
    assert search(p, 104).recompute_time == 2
    assert search(p, validate(p, baseline(p.graph)).peak_bytes).recompute_time == 0


def test_what_may_not_be_recomputed_raises_the_least_peak() -> None:
    p = chain()
    (f2,) = op_ids(p, "f2")
    ops = tuple(replace(op, recomputable=op.id != f2) for op in p.graph.ops)
    lowest = least_peak_plan(replace(p, graph=replace(p.graph, ops=ops)))
    assert lowest is not None
    # v2 is kept, so it is there beside v3 and v4 in f4
    assert lowest.peak_bytes == 8 + 3 * 32
    assert f2 not in lowest.plan.recomputes()


def test_an_op_that_others_wait_for_runs_although_nobody_reads_it() -> None:
    b = Builder("waits").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8).op("e", "f", EITHER, 8).op("b", "t", BACKWARD, 8, after=["e"])
    p = b.problem("f", "b")
    assert op_ids(p, "e")[0] in search(p, None).plan.sequence
    assert all(op_ids(p, "e")[0] in o.forward | o.backward for o in one_copy_options(p))


def test_the_plan_of_less_saved_bytes_is_not_the_plan_of_less_peak() -> None:
    p = less_saved_more_peak()
    lean = least_recompute_time(p, byte_weights(p), 167)
    assert lean is not None
    assert validate(p, lean.plan()).peak_bytes == 348
    assert search(p, 196).recompute_time == 0  # all 168 bytes saved
    assert search(p, 172).recompute_time == 10
    assert least_recompute_plan(p.with_budget(171), FREE) is None


def test_a_dropped_value_in_a_bare_graph() -> None:
    p = bare_skip()
    assert search(p, 23) == Found(
        Plan((0, 1, 2, 0, 3)), validate(p, Plan((0, 1, 2, 0, 3))).recompute_time, search(p, 20).peak_bytes
    )
    assert search(p, 24).plan == Plan((0, 1, 2, 3))
    assert least_recompute_plan(p.with_budget(19)) is None


@pytest.mark.parametrize("case", JOINT)
def test_a_wider_class_is_not_worse(case: Callable[[], Problem]) -> None:
    problem = case()
    peaks = [least_peak_plan(problem, s) for s in (FREE, FIXED, STAGED, Sequences(staged=True, either_early=False))]
    lowest = [p.peak_bytes for p in peaks if p is not None]
    assert lowest == sorted(lowest)
    assert len(lowest) == 4
    for budget in {lowest[-1], *(validate(problem, o.plan()).peak_bytes for o in one_copy_options(problem))}:
        times = [search(problem, budget, s).recompute_time for s in (FREE, FIXED, STAGED)]
        assert times == sorted(times)


@settings(max_examples=100)
@given(problems(3, 7))
def test_one_copy_plans_never_beat_the_sequences(problem: Problem) -> None:
    """The cut's class keeps program order, so it lies within the fixed order."""
    best: dict[int, float] = {}
    for option in one_copy_options(problem):
        peak = validate(problem, option.plan()).peak_bytes
        best[peak] = min(best.get(peak, option.recompute_time), option.recompute_time)
    for peak, time in best.items():
        assert search(problem, peak).recompute_time <= time


def test_a_joint_graph_whose_outputs_nobody_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="hold_outputs has to be True"):
        least_peak_plan(replace(chain(), rule=MemoryRule(hold_outputs=False)))
