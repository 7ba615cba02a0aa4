"""What properties are tested on: random problems and plans, by seed and size so that a failure shrinks to a small one.

``problems()`` wraps the package's own generator; ``plans(problem)`` and ``walk`` make valid plans that no
solver would, with useless runs, several recomputes of one op and odd orders.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import strategies as st

from optpart.graph import Graph, Region
from optpart.plans import Plan, just_in_time
from optpart.problem import MemoryRule, Problem
from optpart.random_graphs import PLAIN, Mix, random_joint, random_layered
from optpart.units import Bytes
from optpart.validate import validate

seeds = st.integers(0, 1 << 20)
CROWDED = Mix(0.5, 0.3, 0.3, 0.3, 0.5, 0.5, 0.1, 0.1, 0.3, 0.3, 0.5)
rules = st.builds(MemoryRule, st.sampled_from([Bytes(1), Bytes(16)]), st.booleans(), st.booleans(), st.booleans())


def problems(least: int = 2, most: int = 12) -> st.SearchStrategy[Problem]:
    """Random joint problems of ``least`` to ``most`` ops: plain ones, usual ones, and crowded with oddities."""
    return st.builds(random_joint, seeds, st.integers(least, most), st.sampled_from([PLAIN, Mix(), CROWDED]))


def bare_problems(least: int = 3, most: int = 12) -> st.SearchStrategy[Problem]:
    """Random layered bare problems of ``least`` to ``most`` ops."""
    return st.builds(random_layered, st.integers(least, most), seeds)


def savable(graph: Graph, *regions: Region) -> frozenset[int]:
    """Savable values that ops of these regions write."""
    return frozenset(v for op in graph.in_region(*regions) for v in op.writes if graph.values[v].savable)


def consistent(graph: Graph, saved: frozenset[int]) -> bool:
    """Can the backward have everything that it reads if exactly this is saved?

    Each value is saved, or its op may run in the backward (again if it ran in the forward) on values that the
    backward can have.  EITHER ops that a saved value needs run in the forward.
    """
    early: set[int] = {op.id for op in graph.in_region(Region.FORWARD)}
    stack = [p for v in saved if (p := graph.values[v].producer) is not None]
    while stack:
        op = graph.ops[stack.pop()]
        if op.id not in early:
            early.add(op.id)
            stack += [*op.after, *(p for v in op.reads if (p := graph.values[v].producer) is not None)]
    there = saved | {v.id for v in graph.values if v.producer is None and v.savable}
    for op in graph.ops:  # program order: what an op reads is decided before
        if (op.recomputable or op.id not in early) and there.issuperset(op.reads):
            there |= frozenset(op.writes)
    late = [op for op in graph.ops if op.region is Region.BACKWARD or (op.id not in early and not op.writes)]
    return there.issuperset([*graph.backward_outputs, *(v for op in late for v in op.reads)])


def random_saved_set(graph: Graph, rng: random.Random) -> frozenset[int]:
    """A random consistent saved set; all savable values of FORWARD ops always are one in random joint problems."""
    everything = savable(graph, Region.FORWARD)
    for _ in range(20):
        share = rng.random()
        some = frozenset(v for v in savable(graph, Region.FORWARD, Region.EITHER) if rng.random() < share)
        if consistent(graph, some):
            return some
    return everything


def walk(problem: Problem, plan: Plan, rng: random.Random, moves: int) -> Iterator[Plan]:
    """Valid plans, each one small change away from the one before it: two neighbours swapped, a run added or dropped."""
    graph = problem.graph
    for _ in range(moves):
        lists = [list(plan.forward), list(plan.backward)]
        chosen = lists[rng.random() < 0.7 if graph.joint else 0]
        kind = rng.randrange(3)
        if kind == 0 and len(chosen) > 1:
            i = rng.randrange(len(chosen) - 1)
            chosen[i : i + 2] = reversed(chosen[i : i + 2])
        elif kind == 1:
            chosen.insert(rng.randint(0, len(chosen)), rng.randrange(len(graph.ops)))
        elif chosen:
            chosen.pop(rng.randrange(len(chosen)))
        changed = Plan(tuple(lists[0]), tuple(lists[1]))
        if validate(problem, changed).ok:
            plan = changed
            yield plan


def some_plans(problem: Problem, seed: int, moves: int = 12) -> Iterator[Plan]:
    """Valid plans of a problem: one by a random saved set, and a walk from there."""
    rng = random.Random(seed)
    graph = problem.graph
    plan = just_in_time(graph, random_saved_set(graph, rng)) if graph.joint else Plan(tuple(range(len(graph.ops))))
    yield plan
    yield from walk(problem, plan, rng, moves)
