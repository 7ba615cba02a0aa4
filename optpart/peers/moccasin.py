"""Retention intervals: Bartan, Li, Teague, Lott and Dilkina, "MOCCASIN", ICML 2023, solved by CP-SAT as theirs.

Ops are numbered k = 0..n-1 by the order that they are given in.  Stage j makes op j for the first time, and ahead of it
earlier ops again, in the order of their numbers.  So op k runs at one of the times  T(j, k) = j (j + 1) / 2 + k, j >= k,
at T(k, k) for the first time, and at most C = 2 times in all.

Sets        k ops; v values, made by op o(v); i = 1..C copies
Variables   a[k,i]  op k runs an i-th time; s[k,i] when: a time of k, s[k,1] = T(k, k)
            e[v,i]  until when the i-th copy of v is retained
            x[r,v,i] a run r that reads v reads its i-th copy
Objective   min sum over i > 1 of c_k a[k,i]
Subject to
    a run r reads a copy of each v that it reads:  sum_i x[r,v,i] >= 1 if r runs
    x[r,v,i] = 1  =>  a[o(v),i],  s[o(v),i] < s_r <= e[v,i]
    a[k,i+1] <= a[k,i];  e[v,i] < s[k,i+1]  for v of k, if a[k,i+1]
    cumulative: retention intervals [s[o(v),i], e[v,i]] with the bytes of v, workspaces at their runs, within the limit

Two phases, as in the paper: 1. from the given order, the peak is minimised until it is down to the limit; 2. from that
solution, the objective.  The bound is CP-SAT's, of the class.

* A **bare** graph: as it stands.
* A **joint** graph: the given order is the forward and then the backward, ops that only the backward needs just ahead of
  their first reader; forward ops and free ones run again, in the backward only; tangents and forward outputs stay to the
  end; a value that may not be saved, and an input, is not read from the forward.

Differs in: 1. ops with several values, each with intervals of its own; 2. workspace, what the caller holds, states of
the generator; 3. x is a variable of its own, so that "some copy" needs no reservoir.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from optpart.graph import ValueKind
from optpart.liveness import resident_bytes, simulate
from optpart.peers.checkmate import refused
from optpart.peers.given_order import Given
from optpart.plans import Plan
from optpart.problem import Problem
from optpart.solver.base import Limits, Progress, Result, Status, conclude
from optpart.units import format_bytes

COPIES = 2  # C of the paper
FORMULATION = "retention intervals"
CLASS = "first runs in the given order, ahead of each any ops again, in that order, each op at most twice in all"
JOINT_CLASS = f"{CLASS}, again in the backward only"


def moccasin(problem: Problem, limit: int, limits: Limits) -> Result:
    """The best plan of the class, or the best so far, with CP-SAT's bound.

    Raises:
        ValueError: the backward of a joint graph holds what is saved to its end (rule ``boxed`` False).
    """
    begin = time.perf_counter()
    if problem.graph.joint and not problem.rule.boxed:
        raise ValueError("retention intervals need a joint graph whose backward frees saved values at their last read")
    plan_class = JOINT_CLASS if problem.graph.joint else CLASS
    if (answer := refused(problem, limit, FORMULATION, plan_class)) is not None:
        return answer
    order = Given(problem)
    first = _solve(_Model(order, limit, peak=True), limits, begin, {})
    found = first if first.status is not Status.OPTIMAL or first.objective > limit else None
    if found is None:
        found = _solve(_Model(order, limit, peak=False), limits, begin, first.values)
    else:
        status = Status.INFEASIBLE if first.status is Status.OPTIMAL else Status.NO_PLAN
        found = _Found(status, {}, math.inf, 0.0, None, first.deterministic, ())
    live = None if found.plan is None else simulate(problem, found.plan)
    assert live is None or live.peak_bytes <= limit, "the intervals count less than there is"
    notes = (
        []
        if found.plan or math.isinf(first.objective)
        else [f"the smallest peak is {format_bytes(int(first.objective))}"]
    )
    return conclude(
        problem,
        found.status,
        found.plan,
        unit=order.unit,
        objective=None if found.plan is None else found.objective,
        objective_bound=None if found.status is Status.INFEASIBLE else found.bound,
        plan_class=plan_class,
        formulation=FORMULATION,
        solver=f"cp-sat, at most {COPIES} copies",
        seconds=time.perf_counter() - begin,
        deterministic=first.deterministic and found.deterministic,
        progress=found.progress,
        notes=notes,
        budget_bytes=limit,
    )


@dataclass(frozen=True)
class _Found:
    status: Status
    values: Mapping[str, int]
    objective: float
    bound: float | None
    plan: Plan | None
    deterministic: bool
    progress: tuple[Progress, ...]


@dataclass(frozen=True)
class _Run:
    """An i-th run: whether (None: always), when, and until when its values are retained."""

    active: Any
    start: Any
    ends: dict[int, Any]


class _Model:
    """``peak``: the peak is minimised, no further down than to the limit."""

    def __init__(self, order: Given, limit: int, peak: bool) -> None:
        self.order, self.problem = order, order.problem
        self.model = cp_model.CpModel()
        self.variables: dict[str, Any] = {}
        self.hints: dict[str, int] = {}
        self.demands: list[tuple[Any, int]] = []
        self.runs = [self._copies(k) for k in range(len(order.ops))]
        for k, runs in enumerate(self.runs):
            for run in runs:
                for v in order.reads(k):
                    self._read(v, run)
        for v in sorted(order.returned):
            self._read(v, _Run(None, order.end, {}))
        self._held()
        resident = resident_bytes(self.problem)
        unit = math.gcd(*(d for _, d in self.demands)) or 1
        room = max(0, limit - resident) // unit
        high = max(room, -(-simulate(self.problem, order.plan).peak_bytes // unit))
        self.scale, self.fixed = unit, resident
        capacity = self._int("peak", room, high, high) if peak else room
        self.model.add_cumulative([i for i, _ in self.demands], [d // unit for _, d in self.demands], capacity)
        again = [(order.costs[order.ops[k].id], r.active) for k, runs in enumerate(self.runs) for r in runs[1:]]
        self.model.minimize(capacity if peak else sum(c * a for c, a in again))
        self.peak = peak

    def _int(self, name: str, low: int, high: int, hint: int) -> Any:
        self.variables[name] = self.model.new_int_var(low, high, name)
        self.hints[name] = hint
        return self.variables[name]

    def _bool(self, name: str, hint: bool) -> Any:
        self.variables[name] = self.model.new_bool_var(name)
        self.hints[name] = int(hint)
        return self.variables[name]

    def _copies(self, k: int) -> list[_Run]:
        order, op, m = self.order, self.order.ops[k], self.model
        runs = [self._first(k)]
        stages = range(max(k + 1, order.split), order.last[k] + 1)
        for i in range(2, COPIES + 1 if order.may_rerun(k) and stages else 0):
            times = [order.time(j, k) for j in stages]
            active = self._bool(f"a{k},{i}", False)
            name = f"s{k},{i}"
            start = m.new_int_var_from_domain(cp_model.Domain.from_values(times), name)
            self.variables[name], self.hints[name] = start, times[0]
            ends = {v: self._int(f"e{v},{i}", times[0], order.end, times[0]) for v in op.writes}
            for v, end in ends.items():
                size = self._int(f"l{v},{i}", 1, order.end + 1, 1)
                interval = m.new_optional_interval_var(start, size, end + 1, active, f"i{v},{i}")
                self._demand(interval, self.problem.sizes[v])
            before = runs[-1]
            for end in before.ends.values():
                m.add(end < start).only_enforce_if(active)
            if before.active is not None:
                m.add_implication(active, before.active)
            space: int = self.problem.workspace[op.id]
            if order.problem.graph.joint and k < order.split:
                space += self.problem.aside(op.id)
                if op.rng_state is not None:
                    self._state(k, i, op.rng_state, active, start)
            self._demand(m.new_optional_fixed_size_interval_var(start, 1, active, f"w{k},{i}"), space)
            runs.append(_Run(active, start, ends))
        return runs

    def _first(self, k: int) -> _Run:
        order, op, m = self.order, self.order.ops[k], self.model
        start = order.time(k, k)
        kept = set(self.problem.graph.forward_outputs) if self.problem.graph.joint and k < order.split else set()
        ends = {}
        for v in op.writes:
            readers = [order.number[r] for r in self.problem.graph.readers[v] if r in order.number]
            last = max([start, *(order.time(j, j) for j in readers)])
            ends[v] = self._int(f"e{v},1", start, order.end, order.end if v in order.returned else last)
            if v in kept and self.problem.rule.hold_outputs:
                self._demand(
                    m.new_fixed_size_interval_var(start, order.end - start + 1, f"i{v},1"), self.problem.sizes[v]
                )
            else:
                self._demand(
                    m.new_interval_var(start, ends[v] - start + 1, ends[v] + 1, f"i{v},1"), self.problem.sizes[v]
                )
        self._demand(m.new_fixed_size_interval_var(start, 1, f"w{k},1"), self.problem.workspace[op.id])
        return _Run(None, start, ends)

    def _state(self, k: int, i: int, v: int, active: Any, until: Any) -> None:
        """A generator's state is kept from the first run to the one that draws the same numbers again."""
        start = self.order.time(k, k)
        interval = self.model.new_optional_interval_var(start, until - start + 1, until + 1, active, f"r{k},{i}")
        self._demand(interval, self.problem.sizes[v])

    def _held(self) -> None:
        """Tangents, from the start of the backward to the end."""
        values, start = self.problem.graph.values, self.order.time(self.order.split, 0)
        tangents = sum(self.problem.sizes[v.id] for v in values if v.kind is ValueKind.TANGENT)
        length = self.order.end - start + 1
        if self.problem.graph.joint:
            self._demand(self.model.new_fixed_size_interval_var(start, length, "tangents"), tangents)

    def _demand(self, interval: Any, nbytes: int) -> None:
        if nbytes:
            self.demands.append((interval, nbytes))

    def _read(self, v: int, run: _Run) -> None:
        """A run reads some copy of v."""
        order, m = self.order, self.model
        k = order.maker(v) or 0
        late = run.active is not None or not isinstance(run.start, int) or run.start >= order.time(order.split, 0)
        crosses = order.problem.graph.joint and k < order.split and late
        options = []
        for i, copy in enumerate(self.runs[k], 1):
            if i == 1 and crosses and not order.problem.graph.values[v].savable:
                continue
            chosen = self._bool(f"x{len(self.variables)}", i == 1)
            m.add(copy.ends[v] >= run.start).only_enforce_if(chosen)
            if copy.active is not None:
                m.add_implication(chosen, copy.active)
                m.add(copy.start < run.start).only_enforce_if(chosen)
            options.append(chosen)
        m.add_bool_or(options if run.active is None else [*options, run.active.negated()])

    def plan(self, value: Callable[[Any], int]) -> Plan:
        """The runs of a solution by their times."""
        order = self.order
        at = [
            (r.start if isinstance(r.start, int) else value(r.start), order.ops[k].id)
            for k, runs in enumerate(self.runs)
            for r in runs
            if r.active is None or value(r.active)
        ]
        split = order.time(order.split, 0) if order.problem.graph.joint else math.inf
        return Plan(tuple(o for t, o in sorted(at) if t < split), tuple(o for t, o in sorted(at) if t >= split))


def _solve(model: _Model, limits: Limits, begin: float, start: Mapping[str, int]) -> _Found:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.threads
    solver.parameters.random_seed = limits.seed
    solver.parameters.catch_sigint_signal = False
    if limits.work is not None:
        solver.parameters.max_deterministic_time = float(limits.work)
    if math.isfinite(limits.time_limit):
        solver.parameters.max_time_in_seconds = max(0.01, limits.time_limit - (time.perf_counter() - begin))
    for name, variable in model.variables.items():
        model.model.add_hint(variable, start.get(name, model.hints[name]))
    status = solver.solve(model.model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    statuses = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
    }
    objective = solver.objective_value if found else math.inf
    if model.peak and found:
        objective = objective * model.scale + model.fixed
    return _Found(
        statuses.get(status, Status.NO_PLAN),
        {name: solver.value(variable) for name, variable in model.variables.items()} if found else {},
        objective,
        solver.best_objective_bound if status != cp_model.INFEASIBLE else None,
        model.plan(solver.value) if found else None,
        status in (cp_model.OPTIMAL, cp_model.INFEASIBLE) or limits.work is not None,
        (),
    )
