"""What the peers share that make many plans and prove nothing: which of their plans is the answer.

A method has a parameter (a number of checkpoints, a budget of its own model), its memory is not ours to the byte,
and its authors let one search the parameter.  So each is swept: every plan is replayed by
:func:`optpart.liveness.simulate`, and the one of least recompute time whose real peak fits is the method's answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

from optpart.formulation.stage_graph import caller_keeps
from optpart.graph import Graph, Region, ValueKind
from optpart.liveness import simulate
from optpart.plans import Plan, just_in_time
from optpart.problem import Problem
from optpart.solver.base import INTERRUPTED, Limits, Result, Status, conclude
from optpart.units import format_bytes


def best_within(
    problem: Problem,
    limit: int,
    plans: Iterable[Plan],
    limits: Limits,
    *,
    formulation: str,
    plan_class: str,
    solver: str,
) -> Result:
    """The plan of least recompute time with a peak of at most ``limit`` bytes; of equal ones the first.

    A plan without recomputes is proven by itself; otherwise there is no bound.  ``limits.work`` counts plans.

    Raises:
        KeyboardInterrupt: Ctrl-C, unless the limits keep what was found.
    """
    begin = time.perf_counter()
    best: Plan | None = None
    cost, smallest, count = math.inf, math.inf, 0
    cut_short = False
    notes: list[str] = []
    try:
        for plan in _valid(problem.graph, plans):
            live = simulate(problem, plan)
            smallest, count = min(smallest, live.peak_bytes), count + 1
            if live.peak_bytes <= limit and live.recompute_time < cost:
                best, cost = plan, live.recompute_time
            cut_short = time.perf_counter() - begin >= limits.time_limit
            if cost == 0.0 or cut_short or count == limits.work:
                break
    except KeyboardInterrupt:
        if not limits.keep_on_interrupt:
            raise
        cut_short = True
        notes.append(INTERRUPTED)
    if best is None and count:
        notes.append(f"the smallest peak of {count} plans is {format_bytes(int(smallest))}")
    elif best is None:
        notes.append("no plan of this method is valid for this graph")
    return conclude(
        problem,
        Status.NO_PLAN if best is None else Status.OPTIMAL if cost == 0.0 else Status.FEASIBLE,
        best,
        unit=1.0,
        objective=None if best is None else cost,
        objective_bound=0.0 if cost == 0.0 else None,
        plan_class=plan_class,
        formulation=formulation,
        solver=f"{solver} ({count} plans)",
        seconds=time.perf_counter() - begin,
        deterministic=not cut_short or cost == 0.0,
        notes=notes,
        budget_bytes=limit,
    )


def _valid(graph: Graph, plans: Iterable[Plan]) -> Iterator[Plan]:
    """Plans that run again only what may, and save only what may, each once."""
    seen: set[Plan] = set()
    for plan in plans:
        if plan not in seen and is_sound(graph, plan):
            seen.add(plan)
            yield plan


def is_sound(graph: Graph, plan: Plan) -> bool:
    """Does a plan run again only what may, and save only what may?  (The rest its maker sees to.)"""
    again = all(graph.ops[o].recomputable for o in plan.recomputes())
    return again and all(graph.values[v].savable for v in plan.saved(graph))


def must_keep(problem: Problem) -> frozenset[int]:
    """Forward values that are saved in any case: the backward cannot make them again, or the caller holds them anyway."""
    graph = problem.graph
    kept, lost = set(caller_keeps(problem)), set[int]()
    early = set(just_in_time(graph, frozenset()).forward)
    for op in graph.ops:  # program order: what an op reads is decided before
        if op.id not in early:
            continue
        had = all(v not in lost and (graph.values[v].savable or graph.values[v].producer is not None) for v in op.reads)
        again = op.recomputable and had and (op.rng_state is None or graph.values[op.rng_state].savable)
        if not again:
            kept.update(v for v in op.writes if graph.values[v].savable)
            lost.update(v for v in op.writes if not graph.values[v].savable)
    return frozenset(kept)


def keep(problem: Problem, values: Iterable[int]) -> Plan:
    """The plan that saves these values of the forward and what must be saved, and makes the rest again once, just ahead
    of its reader."""
    graph = problem.graph
    savable = {v for v in values if graph.values[v].savable and is_activation(graph, v)}
    return just_in_time(graph, frozenset(savable | must_keep(problem)))


def keep_everything(problem: Problem) -> Plan:
    """Nothing recomputed but what may not be saved; what only the backward needs is made just ahead of its reader."""
    return keep(problem, (v for op in problem.graph.in_region(Region.FORWARD) for v in op.writes))


def is_activation(graph: Graph, v: int) -> bool:
    """Is the value computed by the forward?"""
    value = graph.values[v]
    return value.kind is ValueKind.COMPUTED and graph.ops[value.producer or 0].region is Region.FORWARD
