"""A plan in a few rows: what is saved, what is recomputed, and what could not be, by kind of op.

Bytes are the problem's (rounded by its memory rule), times those of its cost model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optpart.graph import Region
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True, slots=True)
class Row:
    """``count`` values or runs of one kind.  ``time``: of one run of each op (saved), of the runs (recomputed)."""

    kind: str
    count: int
    nbytes: Bytes
    time: Microseconds


def saved_rows(problem: Problem, plan: Plan) -> list[Row]:
    """What the forward keeps for the backward, by the op that made it, most bytes first; sums to ``saved_bytes``.

    ``time`` is what one more run of these ops would take.  Forward outputs are left out: they stay alive anyway.
    """
    graph, free = problem.graph, set(problem.graph.forward_outputs)
    kinds: dict[str, list[int]] = {}
    for v in plan.saved(graph):
        if v not in free:
            kinds.setdefault(_kind(problem, v), []).append(v)
    rows = []
    for kind, values in kinds.items():
        ops = {p for v in values if (p := graph.values[v].producer) is not None}
        time = math.fsum(problem.runtime[o] for o in sorted(ops))
        rows.append(Row(kind, len(values), Bytes(sum(problem.sizes[v] for v in values)), Microseconds(time)))
    return sorted(rows, key=lambda r: (-r.nbytes, r.kind))


def _kind(problem: Problem, v: int) -> str:
    value = problem.graph.values[v]
    if value.producer is None:
        return str(value.kind)
    op = problem.graph.ops[value.producer]
    return f"{op.target} (generator's state)" if op.rng_state == v else op.target


def recomputed_rows(problem: Problem, plan: Plan) -> list[Row]:
    """Runs beyond the first, by the op's target, most time first; times sum to the overhead's.

    ``nbytes`` is what the recomputed ops write, once each.
    """
    kinds: dict[str, list[tuple[int, int]]] = {}
    for o, n in plan.recomputes().items():
        kinds.setdefault(problem.graph.ops[o].target, []).append((o, n))
    rows = [
        Row(
            kind,
            sum(n for _, n in runs),
            Bytes(sum(problem.sizes[v] for o, _ in runs for v in problem.graph.ops[o].writes)),
            Microseconds(math.fsum(n * problem.runtime[o] for o, n in runs)),
        )
        for kind, runs in kinds.items()
    ]
    return sorted(rows, key=lambda r: (-r.time, r.kind))


@dataclass(frozen=True, slots=True)
class Fixed:
    """Ops of the forward that may not run again for one reason: how many, what they write, what of it is saved."""

    reason: str
    ops: int
    nbytes: Bytes
    saved_bytes: Bytes


def fixed_rows(problem: Problem, plan: Plan) -> list[Fixed]:
    """Why ops may not be recomputed, the most saved bytes first.  Ops of the backward run once anyway."""
    graph = problem.graph
    saved = set(plan.saved(graph)) - set(graph.forward_outputs)
    reasons: dict[str, list[int]] = {}
    for op in graph.ops:
        if not op.recomputable and op.region is not Region.BACKWARD:
            reasons.setdefault(op.reason or "no reason given", []).append(op.id)
    rows = []
    for reason, ops in reasons.items():
        written = [v for o in ops for v in graph.ops[o].creates]
        kept = Bytes(sum(problem.sizes[v] for v in written if v in saved))
        rows.append(Fixed(reason, len(ops), Bytes(sum(problem.sizes[v] for v in written)), kept))
    return sorted(rows, key=lambda r: (-r.saved_bytes, -r.ops, r.reason))
