"""A mixed-integer model as plain arrays, handed to MathOpt in one piece.

MathOpt's Python objects cost more time to build than a stage model takes to solve; rows and columns in
lists do not.  Everything is minimised.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from optpart.solver.base import NO_LIMITS, Limits, Progress
from optpart.solver.mathopt import Outcome, SolverName, solve

INFINITY = float("inf")
Term = tuple[int, float]  # (column, coefficient)


# Of a model that a search builds.  On rlg4 (1000 ops) 15 million took half a minute and 2 GB to build, and HiGHS 2 GB more.
MOST_ENTRIES = 3_000_000


class NotBuilt(RuntimeError):
    """A model outgrew its room; the message says how.  ``late``: it was the clock, so another run may build it."""

    def __init__(self, message: str, *, late: bool) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True)
class Room:
    """What building a model may take: until ``stop``, a reading of ``time.perf_counter``, and coefficients in rows."""

    stop: float = math.inf
    entries: float = math.inf


NO_END = Room()


@dataclass
class SparseModel:
    """Columns and rows by index.  ``binary`` columns lie in 0..1 and are integral, others are continuous.

    Adding a row raises :class:`NotBuilt` where that is more than there is ``room`` for.
    """

    name: str
    room: Room = NO_END
    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    rows: list[list[Term]] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    offset: float = 0.0
    entries: int = 0

    def binary(self, cost: float = 0.0) -> int:
        return self.column(cost, 0.0, 1.0, integral=True)

    def column(self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, *, integral: bool = False) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integral.append(integral)
        return len(self.cost) - 1

    def at_most(self, terms: Iterable[Term], bound: float) -> None:
        """sum of terms <= bound; a column that stands twice is added up."""
        self._row(terms, -INFINITY, bound)

    def at_least(self, terms: Iterable[Term], bound: float) -> None:
        self._row(terms, bound, INFINITY)

    def equal(self, terms: Iterable[Term], value: float) -> None:
        self._row(terms, value, value)

    def _row(self, terms: Iterable[Term], lower: float, upper: float) -> None:
        merged: dict[int, float] = {}
        for column, coefficient in terms:
            merged[column] = merged.get(column, 0.0) + coefficient
        row = sorted((c, a) for c, a in merged.items() if a)
        self.entries += len(row)
        if self.entries > self.room.entries:
            raise NotBuilt(f"{self.name}: more than {self.room.entries} entries", late=False)
        if time.perf_counter() > self.room.stop:
            raise NotBuilt(f"{self.name}: not built in time", late=True)
        self.rows.append(row)
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def to_mathopt(self) -> tuple[mathopt.Model, list[mathopt.Variable]]:
        """The model, and its variables by column."""
        proto = model_pb2.ModelProto(name=self.name)
        n, m = len(self.cost), len(self.rows)
        proto.variables.ids.extend(range(n))
        proto.variables.lower_bounds.extend(self.lower)
        proto.variables.upper_bounds.extend(self.upper)
        proto.variables.integers.extend(self.integral)
        proto.objective.offset = self.offset
        priced = [i for i in range(n) if self.cost[i]]
        proto.objective.linear_coefficients.ids.extend(priced)
        proto.objective.linear_coefficients.values.extend(self.cost[i] for i in priced)
        proto.linear_constraints.ids.extend(range(m))
        proto.linear_constraints.lower_bounds.extend(self.row_lower)
        proto.linear_constraints.upper_bounds.extend(self.row_upper)
        matrix = proto.linear_constraint_matrix
        for i, row in enumerate(self.rows):
            matrix.row_ids.extend([i] * len(row))
            matrix.column_ids.extend([c for c, _ in row])
            matrix.coefficients.extend([a for _, a in row])
        model = mathopt.Model.from_model_proto(proto)
        return model, list(model.variables())

    def minimize(
        self,
        solver: SolverName,
        limits: Limits = NO_LIMITS,
        *,
        hint: Mapping[int, float] | None = None,
        whole: bool = False,
        relative_gap: float = 0.0,
        title: str = "",
        watch: Callable[[Progress], None] | None = None,
    ) -> tuple[Outcome, Sequence[float]]:
        """Solve, as :func:`optpart.solver.mathopt.solve`; the second result holds the value of each column (empty
        without a solution)."""
        model, variables = self.to_mathopt()
        given = None if hint is None else {variables[c]: x for c, x in hint.items()}
        outcome = solve(
            model, solver, limits, hint=given, whole=whole, relative_gap=relative_gap, title=title, watch=watch
        )
        return outcome, [outcome.values[v] for v in variables] if outcome.values else []
