"""Annealing of a sequence with repeats: Imanishi, Xu, Takagi, Wang and Castillo, "A fast heuristic to optimize
time-space tradeoff for large models" (FastSA), NeurIPS 2023.

Their state is the list of ops as it runs, an op as often as it likes; moves add a run, remove one, and put one
elsewhere, starting from the given order; cost is  max(budget, peak) * time.  That is the class of plans of our own
annealer (:mod:`optpart.solver.anneal`), which is used as it is, from the given order alone: no plan of a cut, of
blocks or of a model helps it.

Differs from theirs in: 1. moves start where memory is over the budget, and chains move as one; 2. the excess is summed
over steps with a price that rises, where theirs is the peak; 3. no first round on groups of ops; 4. run times are those
of the problem, theirs are all equal; 5. the forward of a joint graph stays as it is given.  There is no public code of
theirs to compare with; on the public layered graphs ours meets budgets that theirs is reported to miss.
"""

from __future__ import annotations

from dataclasses import replace

from optpart.peers.candidates import is_sound, keep_everything
from optpart.plans import baseline
from optpart.problem import Problem
from optpart.solver.anneal import anneal
from optpart.solver.base import Limits, Result


def fastsa(problem: Problem, limit: int, limits: Limits) -> Result:
    """Annealing from the given order, for as long as the limits say.

    Raises:
        ValueError: a joint graph whose backward holds what is saved to its end (rule ``boxed`` False).
    """
    starts = [baseline(problem.graph)]
    if problem.graph.joint:
        starts = [plan for plan in (*starts, keep_everything(problem)) if is_sound(problem.graph, plan)]
    return replace(anneal(problem, limit, limits, starts), formulation="annealing from the given order")
