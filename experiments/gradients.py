"""Gradients under our partitions: bit for bit those of PyTorch's default partition, and how far from eager.

One training step of every model under aot_eager on a CPU (same kernels, same order of sums), dropout included,
strict: a failure of ours is a failed row and not a fallback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optpart
from experiments.common import as_text, load, name_of
from experiments.registry import Experiment, Row, Table, TextRow
from optpart.partitioner import Partitioner

MODELS = (
    *(("mlp", ""), ("gpt", ""), ("gpt", "dropout=0.1"), ("llama", ""), ("bert", ""), ("t5", ""), ("vit", "")),
    *(("resnet", ""), ("mobilenet", ""), ("unet", ""), ("vgg", ""), ("fcn", ""), ("convnext", ""), ("moe", "")),
    *(("lstm", ""), ("lstm", "dropout=0.1"), ("diffusion", "")),
)
BUDGETS = (None, 1.0, 0.5, 0.2, 0.0)


def run(case: Row) -> Row:
    model, batch = load(case)
    budget = case["memory_budget"]
    partitioner = Partitioner(memory_budget=budget, time_limit=10.0, on_failure="raise", threads=1)
    found = optpart.check_gradients(model, batch, partitioner=partitioner)
    return {
        "equal_bitwise": found.equal_bitwise,
        "max_abs_error": found.max_abs_error,
        "agree": found.agree,
        "min_cut_agrees": found.min_cut_agrees,
        "fallbacks": found.fallbacks,
        "compared_tensors": found.compared,
    }


def table(rows: Sequence[TextRow]) -> Table:
    lines = []
    for name in dict.fromkeys(map(name_of, rows)):
        mine = [r for r in rows if name_of(r) == name]
        equal = sum(r["equal_bitwise"] == "true" for r in mine)
        error = max(float(r["max_abs_error"]) for r in mine)
        min_cut = "yes" if all(r["min_cut_agrees"] == "true" for r in mine) else "no"
        lines.append((name, f"{equal}/{len(mine)}", f"{error:.1g}", min_cut))
    return Table(("model", "equal_bitwise", "max_abs_error_to_eager", "min-cut_agrees"), tuple(lines))


def summary(rows: Sequence[TextRow]) -> str:
    return as_text(table(rows))


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    return {
        "Models": str(len({r["model"] for r in rows})),
        "Settings": str(len({name_of(r) for r in rows})),
        "Budgets": str(len({r["memory_budget"] for r in rows})),
        "Equal": str(sum(r["equal_bitwise"] == "true" for r in rows)),
        "Unequal": str(sum(r["equal_bitwise"] != "true" for r in rows)),
        "Fallbacks": str(sum(int(r["fallbacks"]) for r in rows)),
        "MaxError": f"{max(float(r['max_abs_error']) for r in rows):.1g}",
        "MinCutDisagrees": str(sum(r["min_cut_agrees"] != "true" for r in rows)),
    }


SPEC = Experiment(
    name="gradients",
    label="Table 2",
    title="Gradients: ours against the default partition (bitwise) and eager",
    cases=tuple({"model": m, "preset": "tiny", "config": c, "memory_budget": b} for m, c in MODELS for b in BUDGETS),
    smoke=tuple(
        {"model": m, "preset": "tiny", "config": c, "memory_budget": b}
        for m, c, b in (("mlp", "", None), ("mlp", "", 0.0), ("lstm", "seq=3 dropout=0.1", 0.5))
    ),
    results=("equal_bitwise", "max_abs_error", "agree", "min_cut_agrees", "fallbacks", "compared_tensors"),
    run=run,
    summary=summary,
    minutes=10,
    table=table,
    numbers=numbers,
)
