"""PyTorch's own pipeline with our costs: its min-cut and memory budget, fed from a cost model and an exact knapsack.

    joint graph ──PyTorch's cuts──> ops that may be redone ──CustomRuntimeEstimator──> their times
                                                            └─CustomKnapsackSolver──> which of them are saved ──> cut

With a memory budget below 1 PyTorch asks an estimator what each op costs (its own: FLOPs, so a softmax costs nothing)
and a knapsack which results to save within the budget (its own: in steps of 1/10,000 of the range).  Both may be
replaced; these are ours.  What the budget counts stays PyTorch's: bytes of saved values, not peak memory, and
no plan is proven.  For that there is :class:`~optpart.partitioner.Partitioner`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx

from optpart import torch_private as tp
from optpart.capture_sides import schema_alias, storage_key, tensors_in
from optpart.cost.devices import default_device
from optpart.cost.inputs import device_of_call
from optpart.cost.model import CostModel, cost_key, get_cost_model
from optpart.partitioner import package_hash
from optpart.signatures import Signatures
from optpart.solver.knapsack import WORK, knapsack

logger = logging.getLogger(__name__)


class Estimator(tp.CustomRuntimeEstimator):
    """PyTorch's runtime estimator by one of our cost models: microseconds of a node's call, 0 for a view.

    Raises:
        ValueError: no such cost model.
    """

    def __init__(self, cost_model: str | CostModel = "roofline") -> None:
        self.cost_model = cost_model
        get_cost_model(cost_model)  # an unknown name is refused here, not in the middle of a compile
        self._models: dict[str, CostModel] = {}

    def __call__(self, node: fx.Node) -> float:
        given = {storage_key(t) for i in node.all_input_nodes for t in tensors_in(i.meta.get("val"))}
        made = [storage_key(t) for t in tensors_in(node.meta.get("val"))]
        if schema_alias(node) is not None or all(key in given for key in made):
            return 0.0
        signature = Signatures().of(node)
        device = device_of_call(signature).partition(":")[0]
        if device not in self._models:
            self._models[device] = get_cost_model(self.cost_model, default_device(device).name)
        return self._models[device].runtime(signature)

    def uuid(self) -> bytes:
        """For PyTorch's cache keys: everything that the times depend on."""
        return _digest(["estimator", cost_key(self.cost_model)])


class Knapsack(tp.CustomKnapsackSolver):
    """PyTorch's knapsack solver by CP-SAT: the most recompute time that can be saved within the bytes, exactly.

    PyTorch hands over no times, so they are asked for again.  ``work`` limits the search, by CP-SAT's deterministic time.
    """

    def __init__(self, estimator: Estimator, work: float = WORK) -> None:
        self.estimator, self.work = estimator, work

    def __call__(
        self,
        memory: list[float],
        joint_graph: fx.Graph,
        max_memory: float,
        node_info: Any,
        all_recomputable_banned_nodes: list[fx.Node],
    ) -> tuple[list[int], list[int]]:
        """(positions of the nodes to be saved, positions of those that may be redone).

        ``memory`` and ``max_memory`` are fractions of one range of bytes; they are made whole bytes again, so that
        nothing is rounded.
        """
        sizes = [tp.size_of(node) for node in all_recomputable_banned_nodes]
        spans = [size / share for size, share in zip(sizes, memory) if size and share]
        capacity = int(max_memory * max(spans, default=0.0) + 1e-3)  # a byte that rounding took stays a byte
        nanoseconds = [round(1e3 * self.estimator(node)) for node in all_recomputable_banned_nodes]
        packing = knapsack(sizes, nanoseconds, capacity, work=self.work)
        if not packing.proven:
            logger.warning("the knapsack of %d ops is not proven within its work limit", len(sizes))
        saved = set(packing.taken)
        return sorted(saved), [i for i in range(len(sizes)) if i not in saved]

    def uuid(self) -> bytes:
        """For PyTorch's cache keys."""
        return _digest(["knapsack", self.work, self.estimator.uuid().hex()])


@contextlib.contextmanager
def pytorch_hooks(
    memory_budget: float | None = None, *, cost_model: str | CostModel = "roofline", work: float = WORK
) -> Iterator[None]:
    """Inside, PyTorch's partitioner takes times from a cost model and saves by an exact knapsack.

    A graph is partitioned when it is first called, so the first step belongs inside.

    Args:
        memory_budget: PyTorch's ``activation_memory_budget``, 0.0 to 1.0; None leaves what is set.  Only a budget
            between 0 and 1 makes PyTorch ask.
        cost_model: a name or a CostModel, as everywhere.
        work: limit on the knapsack's search, in CP-SAT's deterministic time.

    Raises:
        ValueError: no such cost model, or a budget out of range.
        RuntimeError: this torch has no such hooks.
    """
    if memory_budget is not None and not 0 <= memory_budget <= 1:
        raise ValueError(
            f"memory_budget={memory_budget!r}: expected PyTorch's, a fraction between 0.0 and 1.0, or None"
        )
    estimator = Estimator(cost_model)
    with tp.budget_hooks(estimator, Knapsack(estimator, work), memory_budget):
        yield


def _digest(parts: Sequence[Any]) -> bytes:
    return hashlib.sha256(package_hash() + json.dumps(parts).encode()).digest()
