"""What is planned: each model of the zoo at its two sizes, its joint graph as PyTorch hands it over and as our data.

Everything is traced on fake tensors: no weights are made and nothing runs.  Peaks therefore count no workspaces, which
are measured.  ``calls`` are the function calls of the joint graph, ``ops`` those of them that create storage, ``values``
storages, inputs included.  ``saved_bytes`` are those of PyTorch's default partition, ``peak_bytes`` those of the
joint graph run in its own order, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optpart_models
from experiments.common import as_text, mib
from experiments.registry import Experiment, Row, Table, TextRow, number
from optpart import torch_private as tp
from optpart.cost.model import build_problem
from optpart.formulation.blocks import find_blocks
from optpart.formulation.stage_graph import build_stages
from optpart.liveness import resident_bytes, simulate
from optpart.planning import capture_joint
from optpart.plans import baseline
from optpart.pytorch_plans import pytorch_answer

PRESETS = ("default", "real")


def run(case: Row) -> Row:
    loaded = optpart_models.load(str(case["model"]), str(case["preset"]), fake=True)
    [joint] = tp.trace_joint(loaded.model, loaded.batch)
    captured = capture_joint(joint, "model")
    problem = build_problem(captured.graph)
    default = pytorch_answer(captured, problem, "default")
    stages = build_stages(problem)
    if default.saved_bytes is None:
        raise RuntimeError(f"PyTorch: {default.problem}")
    return {
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "calls": sum(node.op == "call_function" for node in joint.module.graph.nodes),
        "ops": len(problem.graph.ops),
        "values": len(problem.graph.values),
        "blocks": find_blocks(stages).count,
        "stages": stages.count,
        "resident_bytes": resident_bytes(problem),
        "saved_bytes": default.saved_bytes,
        "peak_bytes": simulate(problem, baseline(problem.graph)).peak_bytes,
    }


def table(rows: Sequence[TextRow]) -> Table:
    header = (
        "model preset parameters_(millions) calls ops values blocks stages resident_MiB saved_by_default_MiB peak_MiB"
    )
    lines = (
        (
            *(r["model"], r["preset"], f"{int(r['parameters']) / 1e6:.2f}"),
            *(r[k] for k in ("calls", "ops", "values", "blocks", "stages")),
            *(mib(number(r, k)) for k in ("resident_bytes", "saved_bytes", "peak_bytes")),
        )
        for r in rows
    )
    return Table(tuple(header.split()), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return as_text(table(rows))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    least, most = (extreme(rows, key=lambda r: int(r["ops"])) for extreme in (min, max))
    heaviest = max(rows, key=lambda r: int(r["peak_bytes"]))
    return {
        "Models": str(len({r["model"] for r in rows})),
        "LeastOps": least["ops"],
        "MostOps": most["ops"],
        "MostOpsModel": most["model"],
        "MostStages": max((r["stages"] for r in rows), key=int),
        "LargestPeakGiB": f"{int(heaviest['peak_bytes']) / 2**30:.1f}",
        "LargestPeakModel": heaviest["model"],
    }


def _cases(models: Sequence[str], presets: Sequence[str]) -> tuple[Row, ...]:
    return tuple({"model": m, "preset": p} for m in models for p in presets)


SPEC = Experiment(
    name="models",
    label="Table 1",
    title="The models: their joint graphs, and what memory they take with nothing recomputed",
    cases=_cases(optpart_models.names(), PRESETS),
    smoke=_cases(("mlp", "gpt"), ("tiny",)),
    results=("parameters", "calls", "ops", "values", "blocks", "stages", "resident_bytes", "saved_bytes", "peak_bytes"),
    run=run,
    summary=summary,
    minutes=3,
    table=table,
    numbers=numbers,
)
