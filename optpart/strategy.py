"""Which formulation answers which request: (Problem, budget, limits) -> Result.  Torch-free.

* No budget: the minimum cut of saved bytes (``formulation.cut``), where only cheap ops are redone, and
  no chain of cheap ops whose time is out of proportion to the bytes that it frees.
* A budget on the peak: least recompute time with exact memory rows (``formulation.stages``), in the order that
  ``peak_search`` makes of it.
* A bare graph: its given order, within so many bytes (``fixed_order``).
* A fraction: of the range from the smallest peak that is found to the peak with nothing recomputed.
"""

from __future__ import annotations

import time

from optpart.fixed_order import FixedOrderSearch
from optpart.formulation.cut import min_saved_bytes
from optpart.formulation.levers import ALL, Levers
from optpart.peak_search import SMALLEST_PEAK_SECONDS, PeakSearch
from optpart.problem import Problem
from optpart.settings import Budget
from optpart.solver.base import InfeasibleBudget, Limits, Result, Status, conclude

# PyTorch's own limit on a chain of cheap ops that is redone ("too long fusible chain"), but as time: a chain
# of a hundred ops that hangs off a parameter is not redone to free the few bytes at its end.
LONGEST_CHAIN = 100.0
CUT_CLASS = "least saved bytes, only cheap ops redone, each at most once"


def solve(problem: Problem, budget: Budget, limits: Limits, levers: Levers = ALL) -> Result:
    """The plan for a request, with its proof.  ``levers``: what a search under a budget may make use of.

    Raises:
        InfeasibleBudget: no plan was found that fits; names the smallest peak that was.
        KeyboardInterrupt: Ctrl-C, unless the limits keep what was found and a plan that fits is there.
    """
    if budget is None:
        return least_saved_bytes(problem)
    if not problem.graph.joint:
        return _in_given_order(problem, budget, limits)
    search = PeakSearch(problem, limits, levers)
    if isinstance(budget, float):
        return search.at_fraction(budget)
    if isinstance(budget, str):
        raise ValueError(f"memory_budget={budget!r} has to be resolved to bytes before a torch-free solve")
    return search.within(int(budget))


def _in_given_order(problem: Problem, budget: Budget, limits: Limits) -> Result:
    """A bare graph's plan within so many bytes."""
    if not isinstance(budget, int):
        raise ValueError(f"memory_budget={budget!r}: a graph without forward and backward takes bytes")
    search = FixedOrderSearch(problem, budget, limits)
    result = search.run()
    if result.plan is None and result.interrupted:
        raise KeyboardInterrupt("no plan that fits was found so far")
    if result.plan is None:
        search.find_smallest(SMALLEST_PEAK_SECONDS)
        raise InfeasibleBudget(budget, search.smallest)
    return result


def least_saved_bytes(problem: Problem) -> Result:
    """The default without a budget; proven: a minimum cut."""
    start = time.perf_counter()
    cut = min_saved_bytes(problem, longest_chain=LONGEST_CHAIN)
    return conclude(
        problem,
        Status.OPTIMAL,
        cut.plan,
        unit=1.0,
        objective=float(cut.recompute_time),
        objective_bound=float(cut.recompute_time),
        plan_class=CUT_CLASS,
        formulation="cut",
        solver="max-flow",
        seconds=time.perf_counter() - start,
    )
