"""PyTorch's memory budget on our graph: a knapsack on saved bytes around its minimum cut, without PyTorch.

``torch._functorch``'s partitioner with an ``activation_memory_budget`` below 1, step by step:

1. the minimum cut in which no op that is expensive to run again (everything but PyTorch's own list of cheap ops, the
   flag ``cheap`` of our ops) is;
2. the expensive ops of the forward become items of a 0-1 knapsack: weight, the bytes that they write; value, their
   run time; capacity, a fraction of all of them;
3. what the knapsack takes may not run again, what it leaves may, and the cut is made once more.

The fraction is what users turn.  It limits what is saved, not the peak, and a lower one may have a higher peak; so it
is swept from 1 down to 0, and the plan of least recompute time whose real peak fits is taken.

Differs from PyTorch 2.13 in: 1. the knapsack is solved exactly; 2. run times are those of the problem; 3. bytes are of
storages, and without its weights by distance from the backward and its bans by graph shape
(:mod:`optpart.pytorch_cut` has these); 4. ops that must not run again never do.
"""

from __future__ import annotations

from collections.abc import Iterator

from optpart.formulation.cut import PricedNetwork
from optpart.formulation.network import NoPlan
from optpart.graph import Region
from optpart.peers.candidates import best_within, keep_everything
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result
from optpart.solver.knapsack import knapsack

PLAN_CLASS = "minimum cuts in which what a knapsack takes is not run again"
FRACTIONS = 40  # budgets tried, evenly from 1 to 0
WORK = 1.0  # deterministic seconds of one knapsack
LONGEST_CHAINS = (100.0, None)  # a chain of cheap ops of this length is saved for a byte; None: is run again for one


def pytorch_knapsack(problem: Problem, limit: int, limits: Limits) -> Result:
    """PyTorch's plans of all budgets, by real peak."""
    return best_within(
        problem,
        limit,
        _plans(problem),
        limits,
        formulation="knapsack on saved bytes",
        plan_class=PLAN_CLASS,
        solver="cp-sat, max-flow",
    )


def _plans(problem: Problem) -> Iterator[Plan]:
    graph = problem.graph
    yield keep_everything(problem)
    items = [op for op in graph.in_region(Region.FORWARD) if not op.cheap and op.recomputable]
    weights = [sum(problem.sizes[v] for v in op.writes) for op in items]
    values = [problem.integer_costs()[0][op.id] for op in items]
    for k in range(FRACTIONS, -1, -1):
        taken = knapsack(weights, values, k * sum(weights) // FRACTIONS, work=WORK).taken
        banned = frozenset(items[i].id for i in taken)
        try:
            priced = PricedNetwork(problem, banned, True, False)
            for chain in LONGEST_CHAINS:
                yield priced.solve(*priced.prices(chain)).plan
        except NoPlan:
            continue
