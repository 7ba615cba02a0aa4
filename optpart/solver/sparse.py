"""A mixed-integer model as plain arrays, handed to MathOpt in one piece.

MathOpt's Python objects cost more time to build than a stage model takes to solve; rows and columns in
lists do not.  Everything is minimised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from optpart.solver.base import NO_LIMITS, Limits, Progress
from optpart.solver.mathopt import Outcome, SolverName, solve

INFINITY = float("inf")
Term = tuple[int, float]  # (column, coefficient)


@dataclass
class SparseModel:
    """Columns and rows by index.  ``binary`` columns lie in 0..1 and are integral, others are continuous."""

    name: str
    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    rows: list[list[Term]] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    offset: float = 0.0

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
        self.rows.append(sorted((c, a) for c, a in merged.items() if a))
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
