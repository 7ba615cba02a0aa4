"""Optimal save-or-recompute partitions of PyTorch's joint graphs: solved, bounded, checked.

    torch.compile(model, options={"custom_partitioner_fn": optpart.Partitioner(memory_budget=0.5)})

The public names are listed here by hand and loaded when they are first asked for (PEP 562), so that
``import optpart`` costs nothing and loads no torch: a saved problem is solved, checked and reported
on a machine that has none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares the two lists
    from optpart.frontiers import frontier as frontier
    from optpart.gradients import check_gradients as check_gradients
    from optpart.hooks import pytorch_hooks as pytorch_hooks
    from optpart.measuring import measure as measure
    from optpart.partitioner import Partitioner as Partitioner
    from optpart.partitioner import backend as backend
    from optpart.partitioner import partition as partition
    from optpart.planning import plan as plan
    from optpart.solver.base import InfeasibleBudget as InfeasibleBudget

_HOME = {
    "InfeasibleBudget": "optpart.solver.base",
    "Partitioner": "optpart.partitioner",
    "backend": "optpart.partitioner",
    "check_gradients": "optpart.gradients",
    "frontier": "optpart.frontiers",
    "measure": "optpart.measuring",
    "partition": "optpart.partitioner",
    "plan": "optpart.planning",
    "pytorch_hooks": "optpart.hooks",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its public names are {', '.join(_HOME)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
