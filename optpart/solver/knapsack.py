"""The 0-1 knapsack, exactly: of items with a weight and a value, take the most value that fits a capacity.

    maximise   sum of value[i] x[i]      x[i] in {0, 1}
    such that  sum of weight[i] x[i]  <=  capacity

Items of equal weight and value stand for each other, so they are one integer variable: a model of n equal layers
has as few variables as one layer.  Solved by OR-Tools' CP-SAT in whole numbers, by one worker and within a limit that
counts work, so that two runs agree.  A greedy choice by value for weight is its first solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

WORK = 30.0  # deterministic seconds of CP-SAT: a pack of a thousand different items takes less than one


@dataclass(frozen=True, slots=True)
class Packing:
    """Which items are taken, by position, rising.  ``proven``: no other choice that fits is worth more."""

    taken: tuple[int, ...]
    value: int
    proven: bool


def knapsack(weights: Sequence[int], values: Sequence[int], capacity: int, *, work: float = WORK) -> Packing:
    """The best choice that fits; of equal items the first ones are taken.

    Args:
        weights, values: of each item, 0 or more, whole.
        capacity: what the weights of the taken items may sum up to, 0 or more.
        work: limit on CP-SAT's deterministic time.

    Raises:
        ValueError: a weight, a value or the capacity is negative, or their numbers differ.
    """
    if len(weights) != len(values) or min((*weights, *values, capacity)) < 0:
        raise ValueError(
            f"{len(weights)} weights, {len(values)} values, capacity {capacity}: expected as many, 0 or more"
        )
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (weight, value) in enumerate(zip(weights, values)):
        if weight <= capacity and value:
            groups.setdefault((weight, value), []).append(i)
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    counts = {key: model.new_int_var(0, len(items), "") for key, items in groups.items()}
    model.add(sum(weight * count for (weight, _), count in counts.items()) <= capacity)
    model.maximize(sum(value * count for (_, value), count in counts.items()))
    greedy = _greedy({key: len(items) for key, items in groups.items()}, capacity)
    for key, count in counts.items():
        model.add_hint(count, greedy[key])
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = work
    solver.parameters.catch_sigint_signal = False
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    chosen = {key: solver.value(count) if found else greedy[key] for key, count in counts.items()}
    taken = sorted(i for key, items in groups.items() for i in items[: chosen[key]])
    return Packing(tuple(taken), sum(values[i] for i in taken), status == cp_model.OPTIMAL)


def _greedy(groups: dict[tuple[int, int], int], capacity: int) -> dict[tuple[int, int], int]:
    """How many of each group fit, the one with the most value for its weight first."""
    taken = {}
    for weight, value in sorted(groups, key=lambda g: (-g[1] / (g[0] or 0.5), g)):
        fits = min(groups[weight, value], capacity // weight if weight else groups[weight, value])
        taken[weight, value] = fits
        capacity -= fits * weight
    return taken
