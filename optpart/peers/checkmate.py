"""Checkmate's mixed-integer program: Jain, Jain, Nrusimha, Gholami, Abbeel, Gonzalez, Keutzer and Stoica, MLSys 2020,
arXiv:1910.02653.

Their class: stage t makes op t for the first time; ahead of it any set of earlier ops is run again, in program order,
each at most once.  Variables R[t,i] (op i runs in stage t) and S[t,i] (its value is carried into stage t), n^2 of each;
the objective is the run time of all R; memory is counted at every step through U[t,k] and FREE[t,i,k].

* A **bare** graph: :mod:`optpart.formulation.sequence_stages` with every stage watched and looked inside, which is this
  class and nothing else.
* A **joint** graph: :mod:`optpart.formulation.stages` with every backward op a stage, not only those that read the
  forward, and no windows.  Checkmate's stages of forward ops may run earlier forward ops again as well; a partition of
  PyTorch's joint graph runs a forward op once in the forward, so these stages have no choice here.

Differs from the published model in its favour: 1. memory rows are exact without U and FREE, which Checkmate makes linear
with big M; 2. binaries that are 0 in some optimum, and rows that cannot bind, are left out (the formulations' levers);
3. storages, workspace, what the caller holds; 4. a limit that a single step exceeds is refused before any solver runs.
Solved by HiGHS, where theirs is Gurobi.  As theirs, it starts from nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.sequence_stages import STAGED_CLASS, Order, Watched, sequence_model
from optpart.formulation.stage_graph import build_stages
from optpart.formulation.stages import stage_model
from optpart.liveness import simulate
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result, Status, conclude
from optpart.solver.sparse import SparseModel

FORMULATION = "Checkmate's stages"
JOINT_CLASS = (
    "program order, recompute in the backward only, ahead of each backward op any ops again, in program order, each at "
    "most once"
)


@dataclass(frozen=True)
class StageProgram:
    """The model of a problem and a limit.  An objective of 1 is ``unit`` of run time; ``whole``: it takes whole values.

    ``carried[v]`` maps stages to columns of S, ``rerun[o]`` of R, ``early`` free ops to the column that has them run in
    the forward.  A stage needs the values in ``needs`` and makes those in ``makes``, of an op that runs anyway.
    """

    model: SparseModel
    plan: Callable[[Sequence[float]], Plan]
    carried: dict[int, dict[int, int]]
    rerun: dict[int, dict[int, int]]
    early: dict[int, int]
    needs: tuple[frozenset[int], ...]
    makes: tuple[frozenset[int], ...]
    unit: float
    whole: bool
    plan_class: str


def stage_program(problem: Problem, limit: int) -> StageProgram:
    """Checkmate's model in our terms.

    Raises:
        ValueError: the backward of a joint graph holds what is saved to its end (rule ``boxed`` False).
    """
    if problem.graph.joint:
        stages = build_stages(problem, every=True)
        joint = stage_model(stages, limit, width=None)
        return StageProgram(
            joint.model,
            joint.plan,
            joint.carried,
            joint.rerun,
            joint.early,
            stages.needs,
            tuple(frozenset() for _ in stages.needs),
            unit=(problem.total_time or 1.0) / 100.0,
            whole=False,
            plan_class=JOINT_CLASS,
        )
    order = Order(problem)
    every = frozenset(range(len(problem.graph.ops) + 1))
    bare = sequence_model(order, limit, Watched(every, every))
    return StageProgram(
        bare.model,
        bare.plan,
        bare.carried,
        bare.rerun,
        {},
        order.needs,
        (*(frozenset(op.writes) for op in problem.graph.ops), frozenset()),
        unit=problem.integer_costs()[1] * bare.scale,
        whole=bare.whole,
        plan_class=STAGED_CLASS,
    )


def refused(problem: Problem, limit: int, formulation: str, plan_class: str) -> Result | None:
    """The answer where a single step takes more than the limit."""
    begin = time.perf_counter()
    if limit >= smallest_peak_bound(problem):
        return None
    return conclude(
        problem,
        Status.INFEASIBLE,
        None,
        unit=1.0,
        objective=None,
        objective_bound=None,
        plan_class=plan_class,
        formulation=formulation,
        solver="bound on the peak",
        seconds=time.perf_counter() - begin,
        budget_bytes=limit,
    )


def checkmate(problem: Problem, limit: int, limits: Limits) -> Result:
    """The best plan of Checkmate's class, or the best so far, with the bound of branch and bound.

    Raises:
        ValueError: as :func:`stage_program`.
        KeyboardInterrupt: Ctrl-C.
    """
    begin = time.perf_counter()
    plan_class = JOINT_CLASS if problem.graph.joint else STAGED_CLASS
    if (answer := refused(problem, limit, FORMULATION, plan_class)) is not None:
        return answer
    program = stage_program(problem, limit)
    left = max(0.0, limits.time_limit - (time.perf_counter() - begin))
    outcome, values = program.model.minimize("highs", replace(limits, time_limit=left), whole=program.whole)
    plan = program.plan(values) if values else None
    status, notes = outcome.status, []
    if plan is not None and simulate(problem, plan).peak_bytes > limit:  # by less than the solver's tolerance
        notes.append("the solver's plan is over the limit by its tolerance")
        plan, status = None, Status.NO_PLAN
    return conclude(
        problem,
        status,
        plan,
        unit=program.unit,
        objective=outcome.objective if plan is not None else None,
        objective_bound=None if outcome.status is Status.INFEASIBLE else outcome.bound,
        plan_class=program.plan_class,
        formulation=FORMULATION,
        solver=f"highs ({sum(program.model.integral)} binaries, {len(program.model.rows)} rows)",
        seconds=time.perf_counter() - begin,
        deterministic=outcome.deterministic,
        progress=outcome.progress,
        notes=notes,
        budget_bytes=limit,
        nodes=outcome.nodes,
    )
