"""The smallest peak that is reached where activations are most of the memory, and what it costs.

Rivals: PyTorch at the budget of its smallest peak (all of them are tried by simulation), and
``torch.utils.checkpoint`` around every block, every second, every third, as compiled (PyTorch's min-cut honours
the checkpoints).  Each is measured, and our plan is given just that peak.  The last row of a model is our own
smallest peak, ``memory_budget=0.0``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.common import OURS, THEIRS, Model, answer_of, as_text, load, mib, ours, percent, problem_of, theirs
from experiments.registry import Experiment, Row, Table, TextRow, number
from optpart.pytorch_plans import PytorchAnswer, pytorch_answer

if TYPE_CHECKING:
    from torch import nn

MODELS = ("gpt", "llama")
SHAPE = "layers=12 batch=16 seq=256 width=128"
RIVALS = ("nothing recomputed", "PyTorch's smallest", "checkpoint every 1", "checkpoint every 2", "checkpoint every 3")
ALONE = "optpart's smallest"
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)


def checkpointed(model: Any, every: int) -> nn.Module:
    """A copy of a model whose blocks 0, every, 2 * every, ... are recomputed in the backward."""
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Checkpoint(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, *args: Any) -> Any:
            return checkpoint(self.block, *args, use_reentrant=False)

    changed: nn.Module = copy.deepcopy(model)
    blocks: Any = changed.blocks
    for i in range(0, len(blocks), every):
        blocks[i] = Checkpoint(blocks[i])
    return changed


def rival(model: Model, batch: tuple[Any, ...], method: str) -> tuple[Model, PytorchAnswer]:
    """The model to be run, and PyTorch's partition of it; the smallest simulated peak for "PyTorch's smallest"."""
    if method.startswith("checkpoint"):
        model = checkpointed(model, int(method.split()[-1]))
    captured, problem = problem_of(model, batch)
    if method == RIVALS[0]:
        return model, pytorch_answer(captured, problem, "default")
    if method == RIVALS[1]:
        answers = [answer_of(captured, problem, budget) for budget in BUDGETS]
        return model, min((a for a in answers if a.plan), key=lambda a: (a.peak_bytes or 0, a.overhead or 0.0))
    return model, pytorch_answer(captured, problem, "min-cut")


def run(case: Row) -> Row:
    model, batch = load(case)
    method = str(case["method"])
    if method == ALONE:
        return ours(model, batch, 0.0)
    changed, answer = rival(model, batch, method)
    peak, columns = theirs(changed, batch, answer, "rival_")
    return {"rival_budget": answer.budget, **columns, **ours(model, batch, peak)}


def table(rows: Sequence[TextRow]) -> Table:
    header = "model at_the_peak_of MiB overhead_% ours_% bound_% our_peak_MiB"
    lines = (
        (
            r["model"],
            r["method"],
            mib(number(r, "rival_measured_peak_bytes")),
            percent(number(r, "rival_overhead")),
            percent(number(r, "overhead")),
            percent(number(r, "bound")),
            mib(number(r, "measured_peak_bytes")),
        )
        for r in rows
    )
    return Table(tuple(header.split()), tuple(lines))


def smallest(rows: Sequence[TextRow]) -> Iterator[tuple[TextRow, TextRow]]:
    """By model: our smallest peak, and the rival of the lowest one.  Models that are not finished are left out."""
    for model in dict.fromkeys(r["model"] for r in rows):
        by_method = {r["method"]: r for r in rows if r["model"] == model}
        mine = by_method.pop(ALONE, None)
        if mine and by_method:
            yield mine, min(by_method.values(), key=lambda r: int(r["rival_measured_peak_bytes"]))


def below(mine: TextRow, rival: TextRow) -> str:
    return f"{100 * (1 - int(mine['measured_peak_bytes']) / int(rival['rival_measured_peak_bytes'])):.1f}"


def summary(rows: Sequence[TextRow]) -> str:
    said = [
        f"  {mine['model']}: {mib(number(mine, 'measured_peak_bytes'))} MiB, {below(mine, rival)} % below "
        f"{rival['method']} ({mib(number(rival, 'rival_measured_peak_bytes'))} MiB)"
        for mine, rival in smallest(rows)
    ]
    return "\n".join([as_text(table(rows)), *said])


def numbers(rows: Sequence[TextRow]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for mine, rival in smallest(rows):
        model = mine["model"].capitalize()
        found |= {
            f"{model}Peak": mib(number(mine, "measured_peak_bytes")),
            f"{model}Overhead": percent(number(mine, "overhead")),
            f"{model}Bound": percent(number(mine, "bound")),
            f"{model}Rival": rival["method"],
            f"{model}RivalPeak": mib(number(rival, "rival_measured_peak_bytes")),
            f"{model}RivalOverhead": percent(number(rival, "rival_overhead")),
            f"{model}Below": below(mine, rival),
            f"{model}AtRivalOverhead": percent(number(rival, "overhead")),
            f"{model}AtRivalBound": percent(number(rival, "bound")),
        }
    return found


SPEC = Experiment(
    name="smallest_peak",
    label="Table 4",
    title="Smallest reachable peak, and overhead at the rivals' peaks",
    cases=tuple(
        {"model": m, "preset": "default", "config": SHAPE, "method": method}
        for m in MODELS
        for method in (*RIVALS, ALONE)
    ),
    smoke=tuple(
        {"model": "gpt", "preset": "tiny", "config": "layers=3", "method": method}
        for method in (RIVALS[1], RIVALS[3], ALONE)
    ),
    results=("rival_budget", *("rival_" + name for name in THEIRS), *OURS),
    run=run,
    summary=summary,
    minutes=30,
    table=table,
    numbers=numbers,
)
