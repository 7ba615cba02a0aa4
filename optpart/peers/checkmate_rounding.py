"""Checkmate's linear relaxation with two-phase rounding: Jain et al., MLSys 2020, section 5, arXiv:1910.02653.

The program of :mod:`checkmate` without integrality, and then

1. S is rounded: a value is carried into a stage if its S is above 0.5;
2. R is the least that this S asks for: what a stage needs, or carries on, and was not carried in, is made in it, and so
   is what that reads.

The plan may take more memory than the relaxation did, so the relaxation's limit is lowered by an allowance epsilon, 0.1
in the paper; here it is tried without one first, and with more where the plan is over the limit still, while there is
time.  The relaxation without an allowance is a lower bound on the whole class.

Differs in: 1. a value that S lacks and that may not be made again is carried after all; 2. HiGHS solves the
relaxation: of a 12-layer GPT (37,000 columns, 108,000 rows) in 12 seconds, where GLOP and PDLP took more than 60.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.sequence_stages import STAGED_CLASS
from optpart.liveness import simulate
from optpart.peers.candidates import is_sound
from optpart.peers.checkmate import JOINT_CLASS, StageProgram, refused, stage_program
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Result, Status, conclude
from optpart.units import format_bytes

FORMULATION = "Checkmate's relaxation, rounded"
ALLOWANCES = (0.0, 0.1, 0.05, 0.2, 0.3, 0.4)  # of the limit, in this order
CARRIED = 0.5  # from here on S is 1


def checkmate_rounding(problem: Problem, limit: int, limits: Limits) -> Result:
    """The best of the rounded plans that fit, with the relaxation's bound.

    Raises:
        ValueError: the backward of a joint graph holds what is saved to its end (rule ``boxed`` False).
        KeyboardInterrupt: Ctrl-C.
    """
    begin = time.perf_counter()
    plan_class = JOINT_CLASS if problem.graph.joint else STAGED_CLASS
    if (answer := refused(problem, limit, FORMULATION, plan_class)) is not None:
        return answer
    best: Plan | None = None
    cost, bound, smallest = float("inf"), None, float("inf")
    infeasible, deterministic = False, True
    notes: list[str] = []
    for allowance in ALLOWANCES:
        left = limits.time_limit - (time.perf_counter() - begin)
        lower = int((1 - allowance) * limit)
        if left <= 0 or cost == 0.0:
            deterministic &= cost == 0.0
            break
        if lower < smallest_peak_bound(problem):
            continue
        program = stage_program(problem, lower)
        relaxed = replace(program.model, integral=[False] * len(program.model.integral))
        left = max(0.1, limits.time_limit - (time.perf_counter() - begin))
        outcome, values = relaxed.minimize("highs", replace(limits, time_limit=left))
        deterministic &= outcome.deterministic
        if not allowance:
            infeasible = outcome.status is Status.INFEASIBLE
            bound = outcome.bound if outcome.status is Status.OPTIMAL else None
            bound = None if bound is None else bound * program.unit
        if infeasible:
            break
        if not values:
            continue
        plan = rounded(problem, program, values)
        live = simulate(problem, plan)
        if not is_sound(problem.graph, plan):
            continue
        smallest = min(smallest, live.peak_bytes)
        if live.peak_bytes <= limit and live.recompute_time < cost:
            best, cost = plan, live.recompute_time
            notes = [f"with an allowance of {allowance:g}"]
    if best is None and smallest < float("inf"):
        notes.append(f"the smallest peak of a rounded plan is {format_bytes(int(smallest))}")
    elif best is None and not infeasible:
        notes.append("no relaxation was solved in time")
    proven = best is not None and cost <= (bound or 0.0) * (1 + 1e-6)
    status = Status.INFEASIBLE if infeasible else Status.NO_PLAN if best is None else Status.FEASIBLE
    return conclude(
        problem,
        Status.OPTIMAL if proven else status,
        best,
        unit=1.0,
        objective=None if best is None else cost,
        objective_bound=bound if bound is None else bound * (1 - 1e-6),
        plan_class=plan_class,
        formulation=FORMULATION,
        solver="highs (linear)",
        seconds=time.perf_counter() - begin,
        deterministic=deterministic,
        notes=notes,
        budget_bytes=limit,
    )


def rounded(problem: Problem, program: StageProgram, values: Sequence[float]) -> Plan:
    """The plan of two-phase rounding."""
    whole = [0.0] * len(values)
    for at in program.carried.values():
        for column in at.values():
            whole[column] = float(values[column] > CARRIED)
    while not _settled(problem, program, whole):
        pass  # S has grown: R once more
    graph = problem.graph
    waiting = [
        graph.values[v].producer
        for v, at in program.carried.items()
        if 0 in at and whole[at[0]] and graph.values[v].producer in program.early
    ]
    waiting += [o for o, column in program.early.items() if program.model.lower[column] > 0]
    while waiting:  # a free op whose value is saved runs in the forward, and those behind it
        o = waiting.pop()
        if o is not None and not whole[program.early[o]]:
            whole[program.early[o]] = 1.0
            waiting += [p for v in graph.ops[o].reads if (p := graph.values[v].producer) in program.early]
    return program.plan(whole)


def _settled(problem: Problem, program: StageProgram, whole: list[float]) -> bool:
    """Fill in R, stage by stage; False if a value had to be carried after all."""
    ops, values = problem.graph.ops, problem.graph.values
    for at in program.rerun.values():
        for column in at.values():
            whole[column] = 0.0
    carried: list[set[int]] = [set() for _ in range(len(program.needs) + 1)]
    for v, at in program.carried.items():
        for t, column in at.items():
            if whole[column]:
                carried[t].add(v)
    for t, needs in enumerate(program.needs):
        waiting = [v for v in needs | carried[t + 1] if v not in carried[t] and v not in program.makes[t]]
        while waiting:
            v = waiting.pop()
            o = values[v].producer
            if v in carried[t] or o is None or v not in program.carried:
                continue
            if t not in program.rerun.get(o, {}) or v not in ops[o].writes:
                for s, column in program.carried[v].items():
                    whole[column] = 1.0 if s <= t else whole[column]
                return False
            if not whole[program.rerun[o][t]]:
                whole[program.rerun[o][t]] = 1.0
                waiting += ops[o].reads_again if problem.graph.joint and o not in program.early else ops[o].reads
    return True
