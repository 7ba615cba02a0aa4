"""Why one value is saved or not, why one op runs once or again: a plan's answer to a question by name."""

from __future__ import annotations

import difflib

from optpart.graph import Op, Region, Value, ValueKind
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import format_bytes, format_time


def explain(problem: Problem, plan: Plan, name: str) -> str:
    """A few lines on the op or the value called ``name``: what may be done with it, and what the plan does.

    Raises:
        ValueError: the graph has neither; the message names the closest.
    """
    graph = problem.graph
    ops = [op for op in graph.ops if op.name == name]
    values = [v for v in graph.values if v.name == name]
    if not ops and not values:
        known = list(dict.fromkeys([*(op.name for op in graph.ops), *(v.name for v in graph.values)]))
        close = difflib.get_close_matches(name, known, 5, 0.5) or sorted(known)[:5]
        raise ValueError(f"{graph.name} has no op or value called {name!r}; there is, for example: {', '.join(close)}")
    created = {v for op in ops for v in op.creates}
    blocks = [_op_text(problem, plan, op) for op in ops]
    blocks += [_value_text(problem, plan, v) for v in values if v.id not in created]
    return "\n".join(blocks)


def _op_text(problem: Problem, plan: Plan, op: Op) -> str:
    graph = problem.graph
    early, late = op.id in plan.forward, plan.backward.count(op.id)
    where = [*(["once in the forward"] if early else []), *([f"{late} x in the backward"] if late else [])]
    sides = {
        Region.FORWARD: "the forward needs it",
        Region.BACKWARD: "it waits for the backward",
        Region.EITHER: "only the backward needs it, either side may run it",
    }
    allowed = "" if op.region is Region.BACKWARD else f"; it may{'' if op.recomputable else ' not'} be recomputed"
    reason = f" ({op.reason})" if allowed and op.reason else ""
    time = format_time(problem.runtime[op.id]) if problem.cost_model != "unit" else f"{problem.runtime[op.id]:g}"
    lines = [
        f"op {op.name}, a call of {op.target}",
        f"  region   {op.region}: {sides[op.region]}{allowed}{reason}",
        f"  runs     {' and '.join(where) or 'never: nobody needs it'}; {time} each",
        f"  reads    {', '.join(_sized(problem, v) for v in op.reads) or 'nothing'}",
    ]
    return "\n".join([*lines, *(_value_text(problem, plan, graph.values[v]) for v in op.creates)])


def _value_text(problem: Problem, plan: Plan, value: Value) -> str:
    graph = problem.graph
    early = set(plan.forward)
    readers = graph.readers[value.id]
    names = {
        "forward": [graph.ops[o].name for o in readers if o in early],
        "backward": [graph.ops[o].name for o in readers if o in set(plan.backward)],
    }
    read = "; ".join(f"in the {side} by {', '.join(who)}" for side, who in names.items() if who)
    lines = [
        f"value {_sized(problem, value.id)}",
        f"  saved    {_saved_text(problem, plan, value)}",
        f"  read     {read or 'by no op'}",
    ]
    return "\n".join(lines)


def _saved_text(problem: Problem, plan: Plan, value: Value) -> str:
    graph = problem.graph
    if value.kind is ValueKind.STATIC:
        return "no need: a parameter, buffer or constant is there anyway"
    if value.kind is ValueKind.TANGENT:
        return "no: it comes with the backward"
    if value.id in plan.saved(graph):
        anyway = value.id in graph.forward_outputs
        return "yes, at no cost: the forward returns it" if anyway else "yes: the backward reads it as the forward left it"
    not_allowed = "" if value.savable else f"; it may not be saved ({value.reason})"
    if value.producer is None or value.producer not in plan.backward:
        return f"no: the backward does not read it{not_allowed}"
    again = "runs its op again" if value.producer in plan.forward else "computes it itself"
    return f"no: the backward {again}{not_allowed}"


def _sized(problem: Problem, v: int) -> str:
    return f"{problem.graph.values[v].name} ({format_bytes(problem.sizes[v])})"
