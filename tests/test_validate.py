"""The checker: it finds each fault and says it in words, and its numbers are right where they can be counted by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cases import BACKWARD, EITHER, FORWARD, Builder, bare_skip, chain, dropout, four_inputs, ids, op_ids
from hypothesis import given, settings
from strategies import bare_problems, problems, seeds, some_plans

from optpart.graph import Region, ValueKind
from optpart.plans import Plan, baseline, just_in_time
from optpart.problem import BARE_RULE, MemoryRule, Problem
from optpart.units import Bytes
from optpart.validate import validate

F = "add add_1 add_2 cos cos_1"
B = "sin_1 neg mul sin neg_1 mul_1"


def faults(problem: Problem, forward: str, backward: str) -> tuple[str, ...]:
    verdict = validate(problem, Plan(op_ids(problem, forward), op_ids(problem, backward)))
    assert verdict.ok == (verdict.faults == ())
    return verdict.faults


def test_a_valid_plan_has_no_faults_and_the_simulators_numbers() -> None:
    p = four_inputs()
    verdict = validate(p, just_in_time(p.graph, ids(p, "add_2")))
    assert (verdict.ok, verdict.faults) == (True, ())
    assert (verdict.peak_bytes, verdict.saved_bytes, verdict.recompute_time, verdict.overhead) == (288, 32, 1, 1 / 11)


@pytest.mark.parametrize(
    ("forward", "backward", "fault"),
    [
        ("add add_1 add_2 cos", B, "forward op 'cos_1' runs 0 times in the forward; it has to run once"),
        ("add add add_1 add_2 cos cos_1", B, "forward op 'add' runs 2 times in the forward; it has to run once"),
        (F, "sin_1 neg mul sin neg_1", "backward op 'mul_1' runs 0 times in the backward; it has to run once"),
        (F, f"{B} mul", "backward op 'mul' runs 2 times in the backward; it has to run once"),
        (f"{F} sin_1 sin_1", B, "either op 'sin_1' runs 2 times in the forward; once is the most"),
        ("add_1 add add_2 cos cos_1", B, "step 0 (op 'add_1') reads 'add' before it is computed"),
        (F, "neg sin_1 mul sin neg_1 mul_1", "step 5 (op 'neg') reads 'sin_1' before it is computed"),
        (F, "sin_1 neg mul sin mul_1", "step 9 (op 'mul_1') reads 'neg_1' before it is computed"),
        (f"{F} sin_1 neg mul", B, "backward op 'mul' runs in the forward"),
        (f"{F} sin_1 neg mul", B, "step 7 (op 'mul') reads the tangent 'tangent' before the backward"),
        ("add add_1 add_2 cos", f"cos_1 {B}", "forward output 'cos_1' is not computed in the forward"),
        (F, "sin_1 neg mul sin neg_1", "backward output 'mul_1' is never computed"),
    ],
)
def test_each_fault_is_found_and_said(forward: str, backward: str, fault: str) -> None:
    assert fault in faults(four_inputs(), forward, backward)


def test_ops_that_the_graph_does_not_have() -> None:
    p = four_inputs()
    verdict = validate(p, Plan((0, 11), (-1, 3)))
    assert verdict.faults == (
        "the plan runs op -1; the graph has ops 0 to 10",
        "the plan runs op 11; the graph has ops 0 to 10",
    )
    assert (verdict.peak_bytes, verdict.recompute_time) == (0, 0)


def pinned() -> Problem:
    """x ── f ──> f ── e (EITHER) ──> e; b(t, e) and c(b, f): f, e and the effect w run once; g may not be saved."""
    b = Builder("pinned").given(8, "x").given(8, "u", savable=False).given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8, recomputable=False).op("g", "u", FORWARD, 8, savable=False)
    b.op("e", "f", EITHER, 8, recomputable=False).op("w", "e", EITHER, {})
    return b.op("b", "t e", BACKWARD, 8).op("c", "b f", BACKWARD, 8).problem("g", "c")


def test_what_runs_once_runs_once() -> None:
    p = pinned()
    assert faults(p, "f g e", "w b c") == faults(p, "f g", "e w b c") == faults(p, "f g e w", "b c") == ()
    assert faults(p, "f g", "f e w b c") == ("forward op 'f' runs 2 times, but may not be recomputed: random",)
    assert faults(p, "f g e w", "e b c") == ("either op 'e' runs 2 times, but may not be recomputed: random",)
    assert faults(p, "f g", "e b c") == ("either op 'w' has an effect and never runs",)


def test_what_may_not_be_saved_does_not_cross() -> None:
    b = Builder("tagged").given(8, "x").given(8, "u", savable=False).given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8, savable=False).op("g", "u f", FORWARD, 8)
    p = b.op("b", "t f", BACKWARD, 8).op("c", "b g", BACKWARD, 8).problem("f g", "c")
    assert faults(p, "f g", "f b c") == ()
    assert faults(p, "f g", "b c") == ("step 2 (op 'b') gets 'f' from the forward, but it may not be saved: tagged",)
    assert faults(p, "f g", "b f c") == ("step 2 (op 'b') gets 'f' from the forward, but it may not be saved: tagged",)
    again = faults(p, "f g", "f b g c")
    assert again == ("step 4 (op 'g') gets 'u' from the forward, but it may not be saved: tagged",)


def test_what_the_caller_gets_from_the_forward_has_to_be_savable() -> None:
    b = Builder("returned").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8).op("e", "f", EITHER, 8, savable=False)
    p = b.op("b", "t", BACKWARD, 8).problem("f", "e b")
    assert faults(p, "f", "e b") == faults(p, "f e", "e b") == ()
    assert faults(p, "f e", "b") == ("the caller gets 'e' from the forward, but it may not be saved: tagged",)
    assert faults(p, "f", "b") == ("backward output 'e' is never computed",)


def test_order_without_a_value() -> None:
    b = Builder("after").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, 8).op("g", "x", FORWARD, 8, after=["f"]).op("e", "x", EITHER, 8)
    p = b.op("b", "t", BACKWARD, 8, after=["e"]).problem("f g", "b")
    assert faults(p, "f g", "e b") == faults(p, "f g e", "b") == faults(p, "e f g", "e b") == ()
    assert faults(p, "g f", "e b") == ("step 0 (op 'g') has to stand after a run of op 'f'",)
    assert faults(p, "f g", "b e") == ("step 2 (op 'b') has to stand after a run of op 'e'",)
    assert faults(p, "f g", "g e b f") == ()  # one run of f is before every run of g


def test_the_generators_state_comes_from_the_forward() -> None:
    p = dropout()
    assert faults(p, "mm dropout mm_1", "dropout mm_v mm_d dropout dropout_bw mm_w") == ()
    b = Builder("noise").given(8, "x").given(8, "t", kind=ValueKind.TANGENT).op("f", "x", FORWARD, 8)
    p = b.op("noise", "f", EITHER, 8, state=16).op("b", "t noise", BACKWARD, 8).problem("f", "b")
    assert faults(p, "f noise", "noise b") == faults(p, "f", "noise b") == faults(p, "f noise", "b") == ()
    message = "either op 'noise' runs 2 times, but no forward run left the generator's state for it"
    assert faults(p, "f", "noise b noise") == (message,)
    saved = validate(p, Plan(op_ids(p, "f noise"), op_ids(p, "noise b"))).saved_bytes
    assert saved == 16  # f is a forward output
    state = next(v.id for v in p.graph.values if v.name == "noise_state")
    values = tuple(replace(v, savable=v.id != state) for v in p.graph.values)
    tagged = replace(p, graph=replace(p.graph, values=values))
    assert faults(tagged, "f", "noise b") == ()
    assert [f.split(",")[0] for f in faults(tagged, "f noise", "noise b")] == [
        "step 2 (op 'noise') gets 'noise_state' from the forward"
    ]


def test_bare_graphs_have_one_list() -> None:
    p = bare_skip()
    assert faults(p, "a b c d", "") == faults(p, "a b a c a d", "") == ()
    assert faults(p, "a b c", "") == ("op 'd' never runs",)
    assert faults(p, "a b c", "d") == ("op 'd' stands in the backward list, which a bare graph does not have",)
    assert faults(p, "a c b d", "") == ("step 1 (op 'c') reads 'b' before it is computed",)
    ops = tuple(replace(op, recomputable=False, reason="random") for op in p.graph.ops)
    fixed = replace(p, graph=replace(p.graph, ops=ops))
    assert faults(fixed, "a b a c d", "") == ("op 'a' runs 2 times, but may not be recomputed: random",)


def test_the_budget_is_a_rule_too() -> None:
    p, plan = bare_skip(), Plan((0, 1, 2, 3))
    assert validate(p.with_budget(24), plan).ok
    over = validate(p.with_budget(23), plan)
    assert over.faults == ("the peak of 24 bytes, at step 2 (op 'c'), is over the budget of 23 bytes",)
    assert over.peak_bytes == 24
    assert validate(p.with_budget(23), Plan((0, 1, 2, 0, 3))).peak_bytes == 20


def test_memory_rules_by_hand() -> None:
    p, plan = bare_skip(), Plan((0, 1, 2, 3))
    assert validate(replace(p, workspace=tuple(Bytes(w) for w in (0, 5, 0, 0))), plan).peak_bytes == 25
    assert validate(replace(p, rule=replace(BARE_RULE, rounding=Bytes(16))), plan).peak_bytes == 48
    joint = chain()
    kept = just_in_time(joint.graph, ids(joint, "v1 v2 v3 v4"))
    # x 8, out 8 and tangent 8; boxed: v1 to v4 and b5 at step 5, nothing is worse
    assert validate(joint, kept).peak_bytes == 24 + 4 * 32 + 8
    # unboxed: at the last step v1 to v4, b2 and b1
    assert validate(replace(joint, rule=MemoryRule(boxed=False)), kept).peak_bytes == 24 + 4 * 32 + 16
    assert validate(replace(joint, rule=MemoryRule(count_resident=False)), kept).peak_bytes == 16 + 4 * 32 + 8


# ---------------------------------------------------------------------------------------- properties


@settings(max_examples=150)
@given(problems(), seeds)
def test_a_plan_that_lacks_a_run_that_somebody_needs_is_refused(problem: Problem, seed: int) -> None:
    graph = problem.graph
    for plan in some_plans(problem, seed, moves=4):
        for i, o in enumerate(plan.backward):
            if graph.ops[o].region is Region.BACKWARD:
                assert not validate(problem, Plan(plan.forward, plan.backward[:i] + plan.backward[i + 1 :])).ok
                assert not validate(problem, Plan((*plan.forward, o), plan.backward)).ok
        for i, o in enumerate(plan.forward):
            if graph.ops[o].region is Region.FORWARD:
                assert not validate(problem, Plan(plan.forward[:i] + plan.forward[i + 1 :], plan.backward)).ok


@settings(max_examples=150)
@given(problems(), seeds)
def test_budgets_at_and_below_the_peak(problem: Problem, seed: int) -> None:
    for plan in some_plans(problem, seed, moves=4):
        peak = validate(problem, plan).peak_bytes
        assert validate(problem.with_budget(peak), plan).ok
        below = validate(problem.with_budget(peak - 1), plan)
        assert [f"the peak of {peak} bytes" in f for f in below.faults] == [True]


@given(bare_problems(), seeds)
def test_bare_orders_are_refused_where_a_read_comes_too_early(problem: Problem, seed: int) -> None:
    order = list(range(len(problem.graph.ops)))
    random.Random(seed).shuffle(order)
    place = {o: i for i, o in enumerate(order)}
    reads = [(o, p) for o, op in enumerate(problem.graph.ops) for p in op.reads]  # op i writes value i
    assert validate(problem, Plan(tuple(order))).ok == all(place[p] < place[o] for o, p in reads)


@given(problems(), seeds)
def test_any_two_lists_get_a_verdict(problem: Problem, seed: int) -> None:
    """Nonsense is answered in words, and numbers come with it."""
    rng = random.Random(seed)
    anything = [tuple(rng.randrange(len(problem.graph.ops)) for _ in range(rng.randint(0, 8))) for _ in range(2)]
    verdict = validate(problem, Plan(*anything))
    assert verdict.ok == (not verdict.faults)
    counts = [sum(a.count(o) for a in anything) for o in range(len(problem.graph.ops))]
    assert verdict.recompute_time == sum(t * max(0, n - 1) for t, n in zip(problem.runtime, counts))
    assert verdict.overhead == pytest.approx(verdict.recompute_time / problem.total_time)
    assert all(f[0].islower() and not f.endswith(".") for f in verdict.faults)


def test_baseline_is_valid_where_everything_may_be_saved() -> None:
    for case in (four_inputs, dropout, chain, bare_skip):
        assert validate(case(), baseline(case().graph)).ok
