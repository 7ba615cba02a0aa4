"""What a partition takes in the default mode, against PyTorch's min-cut: paired runs on the same joint graph.

GPTs with Inductor's decompositions, traced on fake tensors.  Both partitioners get a fresh copy of the joint
module, one right after the other, and take turns in who is first; ``ratio`` is ours over PyTorch's.  Nothing is
compiled below, and no budget is given.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.common import as_text
from experiments.registry import Experiment, Row, Table, TextRow, median
from optpart import torch_private as tp
from optpart.partitioner import Partitioner

LAYERS = (12, 32)
RUNS = 9


@functools.lru_cache(maxsize=1)
def joint_of(model: str, preset: str, layers: int) -> tp.Joint:
    """The joint graph; what both partitioners do once in a process (tables, caches) has happened."""
    import optpart_models

    loaded = optpart_models.load(model, preset, {"layers": str(layers)}, fake=True)
    [joint] = tp.trace_joint(loaded.model, loaded.batch, decompose=True)
    for partition in (tp.min_cut_partition, Partitioner(on_failure="raise")):
        seconds(partition, joint)
    return joint


def seconds(partition: Callable[..., Any], joint: tp.Joint) -> float:
    """Wall time of one partition of a copy."""
    module = tp.copy_module(joint.module)
    gc.collect()
    start = time.perf_counter()
    partition(
        module,
        joint.inputs,
        num_fwd_outputs=joint.num_fwd_outputs,
        static_lifetime_input_indices=list(joint.static_lifetime_input_indices),
        compiler="inductor",
    )
    return time.perf_counter() - start


def run(case: Row) -> Row:
    joint = joint_of(str(case["model"]), str(case["preset"]), int(case["layers"] or 0))
    both: dict[str, Callable[..., Any]] = {"pytorch": tp.min_cut_partition, "optpart": Partitioner(on_failure="raise")}
    order = sorted(both, reverse=int(case["run"] or 0) % 2 == 0)
    took = {who: seconds(both[who], joint) for who in order}
    nodes = len(joint.module.graph.nodes)
    pytorch, mine = took["pytorch"], took["optpart"]
    return {"nodes": nodes, "pytorch_seconds": pytorch, "optpart_seconds": mine, "ratio": mine / pytorch}


def table(rows: Sequence[TextRow]) -> Table:
    lines = []
    for layers in dict.fromkeys(r["layers"] for r in rows):
        mine = [r for r in rows if r["layers"] == layers]
        middle = [median([float(r[c]) for r in mine]) for c in ("pytorch_seconds", "optpart_seconds", "ratio")]
        lines.append((layers, mine[0]["nodes"], *(f"{m:.3f}" for m in middle), str(len(mine))))
    return Table(("layers", "nodes", "PyTorch's_seconds", "ours_seconds", "median_ratio", "runs"), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return as_text(table(rows))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    ratios = [float(r["ratio"]) for r in rows]
    largest = [r for r in rows if r["layers"] == max((r["layers"] for r in rows), key=int)]
    return {
        "Layers": largest[0]["layers"],
        "Nodes": largest[0]["nodes"],
        "Seconds": f"{median([float(r['optpart_seconds']) for r in largest]):.1f}",
        "PytorchSeconds": f"{median([float(r['pytorch_seconds']) for r in largest]):.1f}",
        "Median": f"{median(ratios):.2f}",
        "Best": f"{min(ratios):.2f}",
        "Worst": f"{max(ratios):.2f}",
    }


SPEC = Experiment(
    name="partition_time",
    label="Table 8",
    title="Seconds of a partition without a budget, against PyTorch's min-cut",
    cases=tuple({"model": "gpt", "preset": "default", "layers": n, "run": i} for n in LAYERS for i in range(RUNS)),
    smoke=({"model": "gpt", "preset": "tiny", "layers": 2, "run": 0},),
    results=("nodes", "pytorch_seconds", "optpart_seconds", "ratio"),
    run=run,
    summary=summary,
    minutes=3,
    table=table,
    numbers=numbers,
)
