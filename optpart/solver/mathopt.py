"""One way to call OR-Tools' MathOpt, whatever solver is behind it.

What differs from solver to solver is dealt with here, so that a formulation only builds its model:

* a parameter that a solver refuses surfaces as ``AttributeError: ... canonical_code``: the real message
  is raised instead, as :class:`SolverError`;
* threads: SCIP with more than one runs its concurrent mode, which loses its result at a limit; HiGHS
  refuses the parameter.  Only CP-SAT gets it;
* "optimal" is within 1e-4 by default in HiGHS: the relative gap is set to 0, and an objective that takes
  whole values only stops at an absolute gap below 1 and has its bound rounded up;
* Ctrl-C: SCIP and CP-SAT catch it themselves and give back what they have (MathOpt's interrupter does
  the same for SCIP, but makes it print errors), and CP-SAT leaves no handler behind, so Python's is put
  back.  HiGHS has no such thing, so it runs in a child process (:mod:`optpart.solver.child`): Ctrl-C, a time
  limit that it does not keep and a crash cost its incumbent, not its bound, which stands in its log;
* CP-SAT says "undetermined" where its clock ran out;
* solutions come back as 0.9999...: :meth:`Outcome.chosen` rounds, and refuses what is no binary.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ortools.math_opt import rpc_pb2
from ortools.math_opt.python import mathopt

from optpart.solver import child
from optpart.solver.base import NO_LIMITS, Interrupted, Limits, Progress, ProgressLog, Status

logger = logging.getLogger(__name__)

SolverName = Literal["scip", "highs", "cp-sat", "glop", "pdlp"]

_TYPES = {
    "scip": mathopt.SolverType.GSCIP,
    "highs": mathopt.SolverType.HIGHS,
    "cp-sat": mathopt.SolverType.CP_SAT,
    "glop": mathopt.SolverType.GLOP,
    "pdlp": mathopt.SolverType.PDLP,
}

# With a plan (True) or without (False).  Minimising run times is never unbounded, so "infeasible or
# unbounded" is infeasible.  What is not here is an error of the model or the solver.
_STATUS = {
    (mathopt.TerminationReason.OPTIMAL, True): Status.OPTIMAL,
    (mathopt.TerminationReason.FEASIBLE, True): Status.FEASIBLE,
    (mathopt.TerminationReason.IMPRECISE, True): Status.FEASIBLE,
    (mathopt.TerminationReason.NUMERICAL_ERROR, True): Status.FEASIBLE,
    (mathopt.TerminationReason.NO_SOLUTION_FOUND, False): Status.NO_PLAN,
    (mathopt.TerminationReason.IMPRECISE, False): Status.NO_PLAN,
    (mathopt.TerminationReason.NUMERICAL_ERROR, False): Status.NO_PLAN,
    (mathopt.TerminationReason.INFEASIBLE, False): Status.INFEASIBLE,
    (mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED, False): Status.INFEASIBLE,
}

_COUNTED = (mathopt.Limit.NODE, mathopt.Limit.ITERATION)  # limits that are the same on every machine
_BINARY_TOLERANCE = 1e-4  # ten times the solvers' own
_LOG_DIGITS = 1e-9  # a log rounds its numbers, a bound among them perhaps upwards: HiGHS's has ten digits and more


class SolverError(RuntimeError):
    """The solver refused the model or a parameter, or failed; the message is the solver's."""


@dataclass(frozen=True)
class Outcome:
    """What MathOpt gave back.  ``bound`` is a lower bound on the model's objective, None if there is none.

    ``deterministic`` is False when a clock or a person stopped the search or its process was lost, ``interrupted``
    True when it was a person (CP-SAT does not tell it from the clock; HiGHS raises ``Interrupted``).
    """

    status: Status
    values: Mapping[mathopt.Variable, float]
    objective: float | None
    bound: float | None
    nodes: int
    seconds: float
    deterministic: bool
    interrupted: bool
    progress: tuple[Progress, ...]

    def chosen(self, variable: mathopt.Variable) -> bool:
        """A binary of the solution as a bool.

        Raises:
            SolverError: the value is not within 1e-4 of 0 or 1.
        """
        value = self.values[variable]
        if min(abs(value), abs(value - 1)) > _BINARY_TOLERANCE:
            raise SolverError(f"binary {variable} came back as {value}")
        return value > 0.5


def solve(
    model: mathopt.Model,
    solver: SolverName,
    limits: Limits = NO_LIMITS,
    *,
    hint: Mapping[mathopt.Variable, float] | None = None,
    whole: bool = False,
    relative_gap: float = 0.0,
    title: str = "",
    watch: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Minimise a model.

    Args:
        limits: ``work`` counts nodes (CP-SAT: deterministic seconds; GLOP and PDLP: iterations).
        hint: a solution to start from, or a part of one.
        whole: the objective has whole values only, in every solution.
        relative_gap: stop when (objective - bound) / objective is at most this.
        title: first line of the log.
        watch: gets the rows of the log as they come, in place of the logger.

    Raises:
        SolverError: the model is unbounded, or the solver refused something or failed.
        Interrupted: Ctrl-C while HiGHS ran, with its bound.
        ValueError: the model maximises.
    """
    if model.objective.is_maximize:
        raise ValueError("this package minimises: a bound is a lower bound")
    log = ProgressLog(title or f"{solver}: {model.name}", watch)

    def listen(lines: Sequence[str]) -> None:
        for line in lines:
            if (row := parse_row(line)) is not None:
                log.add(*row)

    model_params = mathopt.ModelSolveParameters(
        solution_hints=[] if hint is None else [mathopt.SolutionHint(variable_values=dict(hint))]
    )
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    params = _parameters(solver, limits, whole, relative_gap, catch_interrupt=ours)
    call = _in_child if solver == "highs" else mathopt.solve
    try:
        result = call(model, _TYPES[solver], params=params, model_params=model_params, msg_cb=listen)
    except child.Lost as e:
        logger.warning("%s: %s", title or model.name, e)
        return _without_result(log, whole)
    except KeyboardInterrupt:
        raise Interrupted(_without_result(log, whole).bound) from None
    except AttributeError as e:
        raise SolverError(f"{solver}: {getattr(e.__context__, 'message', e)}") from e
    finally:
        if ours:
            signal.signal(signal.SIGINT, handler)
    termination = result.termination
    found = result.has_primal_feasible_solution()
    status = _STATUS.get((termination.reason, found))
    if status is None:
        raise SolverError(f"{solver}: {termination.reason.name}, {termination.detail or 'no detail'}")
    bound = termination.objective_bounds.dual_bound
    objective = result.objective_value() if found else None
    if whole:
        objective = None if objective is None else round(objective)
        if objective is not None and status is Status.OPTIMAL:
            bound = objective
        elif math.isfinite(bound):
            bound = _next_whole(bound)
    nodes = result.solve_stats.node_count
    log.add(nodes, bound if math.isfinite(bound) else None, objective)
    return Outcome(
        status=status,
        values=result.variable_values() if found else {},
        objective=objective,
        bound=bound if math.isfinite(bound) else None,
        nodes=nodes,
        seconds=log.seconds(),
        deterministic=termination.limit is None or termination.limit in _COUNTED,
        interrupted=termination.limit is mathopt.Limit.INTERRUPTED,
        progress=tuple(log.events),
    )


def _in_child(
    model: mathopt.Model,
    solver: mathopt.SolverType,
    *,
    params: mathopt.SolveParameters,
    model_params: mathopt.ModelSolveParameters,
    msg_cb: Callable[[Sequence[str]], None],
) -> mathopt.SolveResult:
    """``mathopt.solve`` in a child process, or here where none can be started."""
    request = rpc_pb2.SolveRequest(
        solver_type=solver.value,
        model=model.export_model(),
        parameters=params.to_proto(),
        model_parameters=model_params.to_proto(),
    )
    seconds = math.inf if params.time_limit is None else params.time_limit.total_seconds()
    try:
        return mathopt.parse_solve_result(child.solve(request, msg_cb, seconds), model, validate=False)
    except child.Refused as e:
        raise SolverError(f"{solver.name.lower()}: {e}") from None
    except child.NoChild as e:
        logger.info("solved in this process, where Ctrl-C loses what was found: %s", e)
        return mathopt.solve(model, solver, params=params, model_params=model_params, msg_cb=msg_cb)


def _without_result(log: ProgressLog, whole: bool) -> Outcome:
    """What the log of a solve tells that gave no result: a bound."""
    bound = next((e.best_bound for e in reversed(log.events) if e.best_bound is not None), None)
    if bound is not None:
        bound -= _LOG_DIGITS * abs(bound)
        bound = _next_whole(bound) if whole else bound
    nodes = log.events[-1].nodes if log.events else 0
    return Outcome(Status.NO_PLAN, {}, None, bound, nodes, log.seconds(), False, False, tuple(log.events))


def _next_whole(bound: float) -> int:
    """The bound of an objective that has whole values only."""
    return math.ceil(bound - 1e-6 - 1e-9 * abs(bound))


def _parameters(
    solver: SolverName, limits: Limits, whole: bool, relative_gap: float, catch_interrupt: bool
) -> mathopt.SolveParameters:
    p = mathopt.SolveParameters(random_seed=None if solver == "pdlp" else limits.seed)  # PDLP has none
    if math.isfinite(limits.time_limit):
        p.time_limit = datetime.timedelta(seconds=limits.time_limit)
    if solver in ("glop", "pdlp"):
        p.iteration_limit = limits.work
        return p
    p.relative_gap_tolerance = relative_gap
    p.absolute_gap_tolerance = 0.999 if whole else 0.0
    if solver == "cp-sat":
        p.threads = limits.threads
        p.cp_sat.catch_sigint_signal = catch_interrupt
        if limits.work is not None:
            p.cp_sat.max_deterministic_time = float(limits.work)
    else:
        p.node_limit = limits.work
    if solver == "scip":
        p.gscip.bool_params["misc/catchctrlc"] = catch_interrupt
    return p


def parse_row(line: str) -> tuple[int, float | None, float | None] | None:
    """(nodes, best bound, best solution) of a row of a solver's log; None for any other line.

    SCIP:   time | node | ... | dualbound | primalbound | gap | compl.        (18 columns)
    HiGHS:  Src Proc. InQueue Leaves Expl.% BestBound BestSol Gap Cuts InLp Confl. LpIters Time
    CP-SAT: #3 0.01s best:30394 next:[28014,30390.5] ..., or #Bound for #3
    """
    if (columns := line.split("|"))[0].rstrip().endswith("s") and len(columns) == 18:
        return _count(columns[1]), _number(columns[14]), _number(columns[15])
    if match := _HIGHS_ROW.match(line):
        return _count(match[1]), _number(match[2]), _number(match[3])
    if match := _CP_SAT_ROW.match(line):
        return 0, _number(match[2]), _number(match[1])
    return None


_HIGHS_ROW = re.compile(
    r"\s*(?:[A-Za-z]\s+)?(\d+[km]?)\s+\S+\s+\S+\s+[\d.]+%\s+(\S+)\s+(\S+)\s+\S+(?:\s+\d+[km]?){4}\s+[\d.]+s"
)
_CP_SAT_ROW = re.compile(r"#(?:\d+|Bound)\s+[\d.]+s\s+best:(\S+)\s+next:\[([^,\]]+),")


def _count(text: str) -> int:
    """A whole number of a log: "123", or "4k" where it would be too wide."""
    digits = text.strip().rstrip("kmM")
    return int(digits) * {"": 1, "k": 10**3}.get(text.strip()[len(digits) :], 10**6)


def _number(text: str) -> float | None:
    """A number of a log; None where it stands for "none yet" (a word, infinity, SCIP's 1e20)."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e20 else None
