"""``optpart solve``: a problem from a file, solved under a limit on its peak, with its proof.  Needs no torch.

A file is this package's problem (``optpart capture`` writes one) or a published node-link graph.  Graphs
without forward and backward are solved in their given order by :mod:`optpart.fixed_order`, in any order by
:mod:`optpart.free_order`; joint graphs as ``optpart plan`` solves them, by :mod:`optpart.strategy`.

Statuses, with their exit codes:

* ``optimal`` (0): a plan that fits, and no other of the named class is cheaper;
* ``feasible`` (0): a plan that fits, with a bound on how much cheaper another could be;
* ``infeasible`` (3): it is proven that no plan of the named class fits;
* ``no_plan`` (4): none was found, and none is ruled out.

A search that Ctrl-C ends says what it has, and the exit code is 130.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from optpart.bare_search import BareSearch
from optpart.exits import DONE, INFEASIBLE, INTERRUPTED, NO_PLAN, WrongArgument
from optpart.fixed_order import FORMULATIONS, FixedOrderSearch
from optpart.formulation.bounds import smallest_peak_bound
from optpart.formulation.stages import PLAN_CLASS
from optpart.free_order import FORMULATION as MOMENTS
from optpart.free_order import FreeOrderSearch
from optpart.liveness import simulate
from optpart.plans import baseline, plan_to_json
from optpart.problem import Problem, load_problem
from optpart.solver.base import InfeasibleBudget, Limits, Result, Status, conclude
from optpart.strategy import solve
from optpart.streams import stdout_to_stderr
from optpart.units import format_bytes, parse_bytes

CODES = {Status.OPTIMAL: DONE, Status.FEASIBLE: DONE, Status.INFEASIBLE: INFEASIBLE, Status.NO_PLAN: NO_PLAN}
SMALLEST_PEAK_SECONDS = 20.0  # for a smaller peak, where no plan fits; and no more than the time limit


@dataclass(frozen=True)
class Solution:
    """What was asked and what came of it.  ``smallest``: where no plan fits, the smallest peak found, in bytes."""

    problem: Problem
    budget: int
    given_peak: int
    result: Result
    smallest: int | None
    asked: dict[str, Any]


def add_solve_arguments(command: argparse.ArgumentParser) -> None:
    """The arguments of ``optpart solve``."""
    command.add_argument("instance", metavar="INSTANCE", help="a JSON file: a problem, or a node-link graph")
    command.add_argument("--memory-budget", metavar="B", help="limit on the peak: bytes, or '300 MiB'")
    command.add_argument(
        "--peak-fraction", metavar="F", type=float, help="the same as a fraction of the given order's peak"
    )
    command.add_argument(
        "--order",
        choices=("fixed", "free"),
        default="fixed",
        help="of first runs, where there is no forward and backward",
    )
    command.add_argument("--formulation", choices=("auto", *FORMULATIONS, MOMENTS, "stages"), default="auto")
    command.add_argument("--time-limit", metavar="S", type=float, default=60.0, help="seconds (default: 60)")
    command.add_argument("--seed", metavar="N", type=int, default=0)
    command.add_argument("--threads", metavar="N", type=int, default=1, help="of solvers that use several")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.add_argument("--plan", metavar="FILE", help="write the plan as JSON")
    command.add_argument("--quiet", dest="live", action="store_false", help="no log on standard error")


def solve_command(args: argparse.Namespace) -> int:
    """optpart solve: least recompute time of a graph under a limit on its peak, with its proof."""
    limits = _limits(args)
    if args.plan is not None and not Path(args.plan).absolute().parent.is_dir():
        raise WrongArgument(f"cannot write {args.plan}: no such directory")
    problem = _problem(args.instance)
    given_peak: int = simulate(problem, baseline(problem.graph)).peak_bytes
    budget = _budget(args, problem, given_peak)
    formulation = _formulation(args, problem)
    with stdout_to_stderr():
        result, smallest = _solved(problem, budget, limits, formulation)
    names = ("instance", "order", "time_limit", "seed", "threads")
    solution = Solution(problem, budget, given_peak, result, smallest, {k: getattr(args, k) for k in names})
    if args.plan is not None and result.plan is not None:
        Path(args.plan).write_text(json.dumps(plan_to_json(result.plan)) + "\n")
    if args.json:
        print(json.dumps(solution_to_json(solution), allow_nan=False, indent=1))
    else:
        print(solution_text(solution), end="")
    if result.interrupted:
        print("optpart: interrupted: this is the best so far", file=sys.stderr)
        return INTERRUPTED
    return CODES[result.status]


# ------------------------------------------------------------------------------------------- what is asked


def _problem(file: str) -> Problem:
    try:
        return load_problem(file)
    except OSError as e:
        raise WrongArgument(f"cannot read {file}: {e.strerror}") from None
    except ValueError as e:
        raise WrongArgument(e) from None


def _limits(args: argparse.Namespace) -> Limits:
    if not args.time_limit > 0:
        raise WrongArgument(f"--time-limit {args.time_limit}: expected seconds, a number above 0")
    if args.seed < 0 or args.threads < 1:
        raise WrongArgument(f"--seed {args.seed} --threads {args.threads}: expected 0 or more, and 1 or more")
    return Limits(args.time_limit, threads=args.threads, seed=args.seed, keep_on_interrupt=True)


def _budget(args: argparse.Namespace, problem: Problem, given_peak: int) -> int:
    """The limit in bytes: as typed, a fraction rounded up to a whole byte, or the file's own."""
    size, fraction = args.memory_budget, args.peak_fraction
    if size is not None and fraction is not None:
        raise WrongArgument("--memory-budget and --peak-fraction: give one of them")
    if size is not None:
        try:
            return parse_bytes(size)
        except ValueError as e:
            raise WrongArgument(f"--memory-budget: {e}") from None
    if fraction is not None:
        if not 0 < fraction < math.inf:
            raise WrongArgument(f"--peak-fraction {fraction}: expected a number above 0, such as 0.8")
        return math.ceil(Fraction(str(fraction)) * given_peak)  # as it is typed: 0.7 of 10 is 7
    if problem.budget is None:
        raise WrongArgument("no budget: give --memory-budget or --peak-fraction (the file has none of its own)")
    return problem.budget


def _formulation(args: argparse.Namespace, problem: Problem) -> str:
    free = args.order == "free"
    if problem.graph.joint and free:
        raise WrongArgument("--order free: for graphs without forward and backward; this one has both")
    known = ("stages",) if problem.graph.joint else (MOMENTS,) if free else FORMULATIONS
    if args.formulation == "auto":
        return known[0]
    if args.formulation not in known:
        kind = "with" if problem.graph.joint else "without"
        raise WrongArgument(
            f"--formulation {args.formulation}: for a graph {kind} forward and backward and --order {args.order} there "
            f"is {', '.join(known)}"
        )
    return str(args.formulation)


# -------------------------------------------------------------------------------------------- the answer


def _solved(problem: Problem, budget: int, limits: Limits, formulation: str) -> tuple[Result, int | None]:
    """The result, and the smallest peak found where no plan fits."""
    if problem.graph.joint:
        return _joint(problem, budget, limits)
    search: BareSearch = (
        FreeOrderSearch(problem, budget, limits)
        if formulation == MOMENTS
        else FixedOrderSearch(problem, budget, limits, formulation=formulation)
    )
    result = search.run()
    if result.plan is None and not result.interrupted:
        with contextlib.suppress(KeyboardInterrupt):  # what was met so far is an answer too
            search.find_smallest(min(SMALLEST_PEAK_SECONDS, limits.time_limit))
    return result, None if result.status.has_plan else search.smallest


def _joint(problem: Problem, budget: int, limits: Limits) -> tuple[Result, int | None]:
    start = time.perf_counter()
    try:
        return solve(problem, budget, limits), None
    except InfeasibleBudget as e:
        ruled_out = budget < smallest_peak_bound(problem)
        result = conclude(
            problem,
            Status.INFEASIBLE if ruled_out else Status.NO_PLAN,
            None,
            unit=problem.total_time or 1.0,
            objective=None,
            objective_bound=None,
            plan_class=PLAN_CLASS,
            formulation="stages",
            solver="bound on the peak" if ruled_out else "highs",
            seconds=time.perf_counter() - start,
            deterministic=ruled_out,
            budget_bytes=budget,
        )
        return result, e.smallest


def solution_to_json(solution: Solution) -> dict[str, Any]:
    """One JSON object.  Sizes in bytes, ``seconds`` wall time; overhead, bound and gap are fractions."""
    problem, result = solution.problem, solution.result
    live = None if result.plan is None else simulate(problem, result.plan)
    return {
        "format": "optpart-solution-1",
        **solution.asked,
        "status": result.status.name.lower(),
        "message": result.status.value,
        "objective": None if live is None else live.recompute_time,
        "overhead": result.overhead,
        "bound": result.bound,
        "gap": result.gap,
        "plan_class": result.plan_class,
        "peak_bytes": None if live is None else live.peak_bytes,
        "saved_bytes": None if live is None else live.saved_bytes,
        "budget_bytes": solution.budget,
        "given_peak_bytes": solution.given_peak,
        "smallest_peak_bytes": solution.smallest,
        "recomputes": None if result.plan is None else _recomputes(solution),
        "seconds": result.seconds,
        "formulation": result.formulation,
        "solver": result.solver,
        "deterministic": result.deterministic,
        "interrupted": result.interrupted,
        "notes": list(result.notes),
    }


def _recomputes(solution: Solution) -> dict[str, int]:
    """Op names and how often each runs again."""
    plan, ops = solution.result.plan, solution.problem.graph.ops
    return {} if plan is None else {ops[o].name: n for o, n in plan.recomputes().items()}


def _size(nbytes: int) -> str:
    return f"{nbytes} bytes" if nbytes < 1024 else f"{nbytes} bytes ({format_bytes(nbytes)})"


def solution_text(solution: Solution) -> str:
    """The same for a person."""
    problem, result, given = solution.problem, solution.result, solution.given_peak
    share = f", {100 * solution.budget / given:.2f} % of the given order's {_size(given)}" if given else ""
    rows = [
        ("instance", f"{problem.graph.name or solution.asked['instance']}: {len(problem.graph.ops)} ops"),
        ("budget", f"{_size(solution.budget)}{share}"),
        ("status", f"{result.status.name.lower()}: {result.status.value}"),
        ("plans", result.plan_class),
    ]
    if result.plan is not None and result.overhead is not None:
        again = _recomputes(solution)
        runs = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in again.items())
        rows += [
            ("overhead", f"{100 * result.overhead:.4f} %"),
            (
                "bound",
                "-" if result.bound is None else f"{100 * result.bound:.4f} %, gap {100 * (result.gap or 0):.2f} %",
            ),
            ("peak", _size(simulate(problem, result.plan).peak_bytes)),
            ("runs again", runs or "nothing"),
        ]
    elif result.bound is not None:
        rows.append(("bound", f"{100 * result.bound:.4f} %"))
    if solution.smallest is not None:
        rows.append(("smallest", f"{_size(solution.smallest)} is the smallest peak that was found"))
    repeatable = "" if result.deterministic else "; a clock or a person ended it, so another run may differ"
    rows.append(("solved by", f"{result.formulation}, {result.solver}, in {result.seconds:.1f} s{repeatable}"))
    return "".join(f"{name:<11} {text}\n" for name, text in rows)
