"""The peers: every plan is valid, fits, and is never better than the best of a class around theirs; and each does what
its paper says, against exhaustive search over what it chooses from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from cases import BACKWARD, FORWARD, JOINT, Builder, chain
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import bare_problems, problems, seeds

from optpart.formulation.cut import PricedNetwork
from optpart.graph import ValueKind
from optpart.liveness import simulate
from optpart.peers import revolve
from optpart.peers.candidates import is_sound, keep, keep_everything
from optpart.peers.checkmate import stage_program
from optpart.peers.checkmate_rounding import rounded
from optpart.peers.chen import articulation_points, candidates
from optpart.peers.given_order import Given
from optpart.peers.line import Line, Step, line_of_ops, lines, schedule_plan
from optpart.peers.lower_sets import Family
from optpart.peers.registry import PEERS
from optpart.plans import Plan, baseline
from optpart.problem import MemoryRule, Problem
from optpart.random_graphs import PLAIN, Mix, random_joint, random_layered
from optpart.solver.base import Limits, Result, Status
from optpart.solver.exhaustive_sequences import FIXED, FREE, STAGED, least_peak_plan, least_recompute_plan
from optpart.validate import validate

FAST = Limits(time_limit=60.0, work=400)
few = settings(max_examples=15)
JOINT_PEERS = sorted(PEERS)
BARE_PEERS = sorted(name for name, peer in PEERS.items() if peer.bare)


def boxed(problem: Problem) -> Problem:
    return replace(problem, rule=replace(problem.rule, boxed=True, hold_outputs=problem.graph.joint))


def limits_of(problem: Problem, high: int) -> list[int]:
    """The smallest peak of any order, and one a third of the way up."""
    lowest = least_peak_plan(problem, FREE)
    assert lowest is not None
    return sorted({lowest.peak_bytes, lowest.peak_bytes + (high - lowest.peak_bytes) // 3})


def checked(problem: Problem, limit: int, result: Result) -> Result:
    """A plan is valid, fits, costs what the result says, and is not below the best of all sequences; nor is the bound."""
    assert result.budget_bytes == limit
    best = least_recompute_plan(problem.with_budget(limit), FREE)
    if result.plan is not None:
        verdict = validate(problem.with_budget(limit), result.plan)
        assert verdict.ok, verdict.faults
        assert result.overhead == pytest.approx(verdict.overhead)
        assert best is not None
        assert verdict.recompute_time >= best.recompute_time - 1e-9
    if result.status is Status.NO_PLAN:
        assert result.notes
    return result


@pytest.mark.parametrize("name", JOINT_PEERS)
@given(problem=problems(4, 8))
@few
def test_joint_plans(name: str, problem: Problem) -> None:
    problem = boxed(problem)
    for limit in limits_of(problem, simulate(problem, keep_everything(problem)).peak_bytes):
        checked(problem, limit, PEERS[name].solve(problem, limit, FAST))


@pytest.mark.parametrize("name", BARE_PEERS)
@given(problem=bare_problems(4, 8))
@few
def test_bare_plans(name: str, problem: Problem) -> None:
    for limit in limits_of(problem, simulate(problem, baseline(problem.graph)).peak_bytes):
        checked(problem, limit, PEERS[name].solve(problem, limit, FAST))


@pytest.mark.parametrize("name", JOINT_PEERS)
@pytest.mark.parametrize("case", JOINT)
def test_without_need_nothing_is_recomputed(name: str, case: object) -> None:
    problem: Problem = case()  # type: ignore[operator]
    limit = simulate(problem, keep_everything(problem)).peak_bytes
    result = checked(problem, limit, PEERS[name].solve(problem, limit, FAST))
    assert (result.status, result.overhead, result.gap) == (Status.OPTIMAL, 0.0, 0.0)


@pytest.mark.parametrize("name", JOINT_PEERS)
def test_no_peer_fits_what_nothing_fits(name: str) -> None:
    problem = chain()
    lowest = least_peak_plan(problem, FREE)
    assert lowest is not None
    result = PEERS[name].solve(problem, lowest.peak_bytes - 1, FAST)
    assert not result.status.has_plan
    assert PEERS[name].proves or result.status is Status.NO_PLAN


def test_which_problems_they_take() -> None:
    assert [name for name, peer in PEERS.items() if peer.takes(bare_chain())] == [n for n in PEERS if n in BARE_PEERS]
    assert all(peer.takes(chain()) for peer in PEERS.values())


def bare_chain() -> Problem:
    problem = chain()
    kinds = {ValueKind.TANGENT: ValueKind.INPUT}
    values = tuple(replace(v, kind=kinds.get(v.kind, v.kind)) for v in problem.graph.values)
    return replace(problem, graph=replace(problem.graph, values=values, joint=False))


@given(problems(2, 14), seeds)
def test_what_is_kept_for_all_of_them_makes_valid_plans(problem: Problem, seed: int) -> None:
    """Any set of values and any schedule on any chain is a valid plan where it runs again only what may."""
    assert validate(problem, keep_everything(problem)).ok
    some = [v.id for v in problem.graph.values if (v.id * 7 + seed) % 3]
    assert validate(problem, keep(problem, some)).ok
    for line in lines(problem):
        for snapshots in {1, 2, line.count}:
            plan = schedule_plan(line, list(revolve.binomial(line, snapshots)))
            assert validate(problem, plan).ok == is_sound(problem.graph, plan)


# ---------------------------------------------------------------------------------------------- chains


def tanh_chain(sizes: Sequence[int], times: Sequence[float]) -> Problem:
    """A chain x -> v1 -> v2 ... whose backward b_i reads what f_i wrote (as tanh's does); gradients take 1 byte.

    (x 1) ── f1 ──> (v1) ── f2 ──> (v2) ── f3 ──> (v3)        b3(tangent, v3) ──> b2(., v2) ──> b1(., v1) ──> dx
    """
    b = Builder("tanh chain").given(1, "x").given(1, "tangent", kind=ValueKind.TANGENT)
    n = len(sizes)
    for i, (size, time) in enumerate(zip(sizes, times), 1):
        b.op(f"f{i}", "x" if i == 1 else f"v{i - 1}", FORWARD, {f"v{i}": size}, time=time)
    b.op("loss", f"v{n}", FORWARD, {"out": 1}, time=0.0)
    for i in range(n, 0, -1):
        b.op(f"b{i}", f"{'tangent' if i == n else f'b{i + 1}'} v{i}", BACKWARD, 1, time=1.0)
    return b.problem("out", "b1")


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
def test_revolve_advances_as_often_as_its_formula_says(length: int, snapshots: int) -> None:
    problem = tanh_chain([8] * length, [1.0] * length)
    line = line_of_ops(problem)
    assert line.count == length
    plan = schedule_plan(line, list(revolve.binomial(line, snapshots)))
    assert validate(problem, plan).ok
    assert sum(plan.recomputes().values()) == revolve.advances(length, snapshots) == fewest(length, snapshots)


def fewest(length: int, snapshots: int) -> int:
    """t(l, s) by its recursion: advance to m, then both sides."""
    if length == 1 or snapshots == 1:
        return length * (length - 1) // 2
    return min(m + fewest(length - m, snapshots - 1) + fewest(m, snapshots) for m in range(1, length))


def schedules(line: Line, s: int, t: int) -> Iterator[list[Step]]:
    """All persistent schedules of links s..t."""
    if s == t:
        yield [("back", s)]
        return
    everything = line.tapes[s] | line.borders[s + 1]
    for rest in schedules(line, s + 1, t):
        yield [("keep", everything), *rest, ("back", s), ("drop", everything)]
    for middle in range(s + 1, t + 1):
        border = line.borders[middle]
        for behind, ahead in itertools.product(schedules(line, middle, t), schedules(line, s, middle - 1)):
            yield [("keep", border), *behind, ("drop", border), *ahead]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5))
@settings(max_examples=25)
def test_rotor_is_the_best_persistent_schedule(links: list[tuple[int, int]]) -> None:
    """Against all of them, each replayed, at every limit that makes a difference."""
    problem = tanh_chain([8 * size for size, _ in links], [float(time) for _, time in links])
    line = line_of_ops(problem)
    plans = [schedule_plan(line, steps) for steps in schedules(line, 0, line.count - 1)]
    lives = [simulate(problem, plan) for plan in plans]
    for limit in sorted({live.peak_bytes for live in lives}):
        best = min(live.recompute_time for live in lives if live.peak_bytes <= limit)
        result = checked(problem, limit, PEERS["rotor"].solve(problem, limit, Limits()))
        assert result.plan is not None
        assert simulate(problem, result.plan).recompute_time <= best


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=4))
@settings(max_examples=25)
def test_rotor_on_a_short_chain_is_optimal(links: list[tuple[int, int]]) -> None:
    """Four links are too few for a schedule that is not persistent to be better."""
    problem = tanh_chain([8 * size for size, _ in links], [float(time) for _, time in links])
    lowest = least_peak_plan(problem, FIXED)
    assert lowest is not None
    high = simulate(problem, keep_everything(problem)).peak_bytes
    for limit in range(lowest.peak_bytes, high + 1, 8):
        best = least_recompute_plan(problem.with_budget(limit), FIXED)
        result = PEERS["rotor"].solve(problem, limit, Limits())
        assert best is not None
        assert result.plan is not None
        assert simulate(problem, result.plan).recompute_time == best.recompute_time


# ------------------------------------------------------------------------------------------ lower sets


@given(seeds, st.integers(4, 12), st.integers(0, 4))
@few
def test_lower_sets_by_their_own_count(seed: int, ops: int, share: int) -> None:
    """The program against every rising sequence of the family: least and most recompute time within a budget."""
    family = Family(random_joint(seed, ops, PLAIN))
    if not family.moves:
        return
    least, most = family.least_bytes, family.most_bytes
    budget = least + (most - least) * share / 4
    moves = {(m.start, m.end): m for m in family.moves}
    end = len(family.sets) - 1
    times = []
    for n in range(end):
        for middle in itertools.combinations(range(1, end), n):
            steps = [moves.get(pair) for pair in itertools.pairwise((0, *middle, end))]
            saved = time = 0
            for m in steps:
                if m is None or saved + m.needs > budget:
                    break
                saved, time = saved + m.saves, time + m.steps
            else:
                times.append(time)
    found = [
        sum(moves[family.sets.index(a), family.sets.index(b)].steps for a, b in itertools.pairwise([0, *sets]))
        for sets in family.strategies(budget)
    ]
    assert (min(found, default=None), max(found, default=None)) == (min(times, default=None), max(times, default=None))


def test_lower_sets_of_a_chain_are_all_of_them() -> None:
    problem = tanh_chain([8] * 5, [1.0] * 5)
    family = Family(problem)
    assert family.sets == tuple((1 << i) - 1 for i in range(len(family.ops) + 1))
    limit = simulate(problem, keep_everything(problem)).peak_bytes - 8
    result = checked(problem, limit, PEERS["lower_sets"].solve(problem, limit, Limits()))
    assert result.plan is not None
    assert result.overhead is not None
    assert result.overhead > 0


# ------------------------------------------------------------------------------- checkpoints, knapsack


def test_places_to_cut() -> None:
    """The middle of a chain is made of articulation points, both ends are not; two paths side by side have none."""
    problem = tanh_chain([8] * 4, [1.0] * 4)
    assert articulation_points(problem.graph) == {1, 2, 3}
    points, every, *_borders = candidates(problem)
    assert [position for position, _ in points] == [1, 2, 3]
    assert [position for position, _ in every] == [0, 1, 2, 3, 4]
    b = Builder("diamond").given(8, "x").given(8, "tangent", kind=ValueKind.TANGENT)
    b.op("a", "x", FORWARD, 8).op("b", "a", FORWARD, 8).op("c", "a", FORWARD, 8).op("d", "b c", FORWARD, 8)
    b.op("bw", "tangent d", BACKWARD, 8)
    assert articulation_points(b.problem("d", "bw").graph) == frozenset()


def test_checkpoints_of_a_chain() -> None:
    """Nine equal links, three at a time: what is left is two borders and a segment, and each link runs again once."""
    problem = tanh_chain([64] * 9, [1.0] * 9)
    high = simulate(problem, keep_everything(problem)).peak_bytes
    limit = high - 3 * 64
    for name in ("chen_sqrt_n", "chen_greedy"):
        result = checked_large(problem, limit, PEERS[name].solve(problem, limit, Limits()))
        assert set(result.recomputes().values()) == {1}


def checked_large(problem: Problem, limit: int, result: Result) -> Plan:
    assert result.plan is not None
    assert validate(problem.with_budget(limit), result.plan).ok
    return result.plan


@pytest.mark.parametrize("case", JOINT)
def test_the_knapsack_reaches_from_one_cut_to_the_other(case: object) -> None:
    """With dear ops its plans go from the cut that runs none of them again to the one that may run all, and each is the
    cut of some set of ops that are kept."""
    problem: Problem = case()  # type: ignore[operator]
    dear = tuple(replace(op, cheap=False) for op in problem.graph.ops)
    problem = replace(problem, graph=replace(problem.graph, ops=dear))
    items = [op.id for op in problem.graph.in_region(FORWARD)]
    plans = {kept: cut(problem, kept) for n in range(len(items) + 1) for kept in itertools.combinations(items, n)}
    lives = {plan: simulate(problem, plan) for plan in plans.values() if is_sound(problem.graph, plan)}
    for kept in ((), tuple(items)):
        limit = lives[plans[kept]].peak_bytes
        result = checked(problem, limit, PEERS["pytorch_knapsack"].solve(problem, limit, Limits()))
        assert result.plan in lives or result.overhead == 0
        assert result.overhead is not None
        assert result.overhead <= lives[plans[kept]].overhead


def cut(problem: Problem, kept: Sequence[int]) -> Plan:
    priced = PricedNetwork(problem, frozenset(kept), True, False)
    return priced.solve(*priced.prices(None)).plan


# --------------------------------------------------------------------- integer and constraint programs


@given(seeds, st.integers(4, 8), st.booleans())
@few
def test_checkmate_is_the_best_of_its_class(seed: int, ops: int, joint: bool) -> None:
    problem = random_joint(seed, ops, PLAIN) if joint else random_layered(ops, seed)
    lowest = least_peak_plan(problem, STAGED)
    assert lowest is not None
    high = simulate(problem, baseline(problem.graph)).peak_bytes
    for limit in sorted({lowest.peak_bytes, (lowest.peak_bytes + high) // 2}):
        best = least_recompute_plan(problem.with_budget(limit), STAGED)
        assert best is not None
        whole = checked(problem, limit, PEERS["checkmate"].solve(problem, limit, Limits()))
        assert whole.status is Status.OPTIMAL
        assert time_of(problem, whole) == pytest.approx(best.recompute_time)
        rounded = checked(problem, limit, PEERS["checkmate_rounding"].solve(problem, limit, Limits()))
        assert rounded.bound is not None
        assert whole.overhead is not None
        assert rounded.bound <= whole.overhead * (1 + 1e-6)
        assert rounded.plan is None or time_of(problem, rounded) >= best.recompute_time - 1e-6
    nothing = PEERS["checkmate"].solve(problem, lowest.peak_bytes - 1, Limits())
    assert nothing.status is Status.INFEASIBLE


def time_of(problem: Problem, result: Result) -> float:
    assert result.plan is not None
    return simulate(problem, result.plan).recompute_time


@given(seeds, st.integers(4, 8))
@few
def test_rounding_of_a_whole_solution_is_that_solution(seed: int, ops: int) -> None:
    """Where nothing is fractional, the second phase finds the least R by itself."""
    for problem in (random_joint(seed, ops, Mix(unboxed=0.0)), random_layered(ops, seed)):
        lowest = least_peak_plan(problem, STAGED)
        assert lowest is not None
        program = stage_program(problem, lowest.peak_bytes)
        outcome, values = program.model.minimize("highs", whole=program.whole)
        if values:
            plan = rounded(problem, program, values)
            verdict = validate(problem, plan)
            assert verdict.ok, verdict.faults
            assert outcome.objective is not None
            assert verdict.recompute_time <= outcome.objective * program.unit + 1e-6


def two_copies(problem: Problem) -> Iterator[Plan]:
    """Every plan of MOCCASIN's class: the given order, and of each op nothing or one stage in which it runs again."""
    order = Given(problem)
    n = len(order.ops)
    stages = [[None, *(j for j in range(k + 1, n + 1) if j >= order.split and order.may_rerun(k))] for k in range(n)]
    for chosen in itertools.product(*stages):
        lists: tuple[list[int], list[int]] = ([], [])
        for j in range(n + 1):
            late = problem.graph.joint and j >= order.split
            again = [order.ops[k].id for k in range(n) if chosen[k] == j]
            lists[late].extend([*again, *([order.ops[j].id] if j < n else [])])
        yield Plan(tuple(lists[0]), tuple(lists[1]))


@given(seeds, st.integers(4, 6), st.sampled_from(["plain", "odd", "bare"]))
@settings(max_examples=40)
def test_moccasin_is_the_best_of_its_class(seed: int, ops: int, kind: str) -> None:
    """Against every plan with at most two copies, each replayed by the checker."""
    mix = PLAIN if kind == "plain" else Mix(unboxed=0.0)
    problem = random_layered(ops, seed) if kind == "bare" else random_joint(seed, ops, mix)
    verdicts = [v for plan in two_copies(problem) if (v := validate(problem, plan)).ok]
    peaks = sorted({v.peak_bytes for v in verdicts})
    for limit in peaks[:3]:
        best = min(v.recompute_time for v in verdicts if v.peak_bytes <= limit)
        result = checked(problem, limit, PEERS["moccasin"].solve(problem, limit, Limits()))
        assert result.status is Status.OPTIMAL
        assert time_of(problem, result) == pytest.approx(best)
    if peaks:
        assert PEERS["moccasin"].solve(problem, peaks[0] - 1, Limits()).status is Status.INFEASIBLE


@pytest.mark.parametrize("hold", [False, True])
def test_moccasin_on_bare_graphs_with_everything(hold: bool) -> None:
    """Several values of an op, order constraints, outputs that are held."""
    for seed in range(24):
        problem = replace(random_joint(seed, 5, Mix(random=0.0)), rule=MemoryRule(hold_outputs=hold))
        kinds = {ValueKind.TANGENT: ValueKind.INPUT}
        values = tuple(replace(v, kind=kinds.get(v.kind, v.kind)) for v in problem.graph.values)
        problem = replace(problem, graph=replace(problem.graph, values=values, joint=False))
        verdicts = [v for plan in two_copies(problem) if (v := validate(problem, plan)).ok]
        limit = min(v.peak_bytes for v in verdicts)
        best = min(v.recompute_time for v in verdicts if v.peak_bytes <= limit)
        assert time_of(problem, PEERS["moccasin"].solve(problem, limit, Limits())) == best


def test_programs_want_memory_freed_at_its_last_read() -> None:
    problem = replace(chain(), rule=MemoryRule(boxed=False))
    for name in ("checkmate", "checkmate_rounding", "moccasin", "rotor", "fastsa"):
        with pytest.raises(ValueError, match="last read"):
            PEERS[name].solve(problem, 60, FAST)


# --------------------------------------------------------------------------------------------- limits


def test_work_counts_plans() -> None:
    problem = tanh_chain([64] * 9, [1.0] * 9)
    low = least_enough(problem)
    first = PEERS["chen_sqrt_n"].solve(problem, low, Limits(work=1))
    assert first.status is Status.NO_PLAN
    assert first.deterministic
    assert not PEERS["chen_sqrt_n"].solve(problem, low, Limits(time_limit=0.0)).deterministic


def least_enough(problem: Problem) -> int:
    return simulate(problem, keep_everything(problem)).peak_bytes - 64
