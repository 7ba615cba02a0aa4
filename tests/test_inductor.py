"""Under Inductor: gradients within tolerance, draws, settings in the cache key, options that travel.

One compile takes 20 to 30 s on two cores, so three tiny models stand for all at one budget;
``python -m pytest -m "slow and inductor"`` runs the whole matrix, and plans of other kinds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import PLANS, close, leaf, planned, step
from torch import nn
from torch.utils.checkpoint import checkpoint

import optpart
import optpart_models as zoo
from optpart import torch_private as tp

pytestmark = pytest.mark.inductor


def check(name: str, budget: float | None) -> None:
    loaded = zoo.load(name, "tiny")
    partitioner = optpart.Partitioner(memory_budget=budget, time_limit=10, on_failure="raise")
    found = optpart.check_gradients(loaded.model, loaded.batch, partitioner=partitioner, compiler="inductor")
    assert partitioner.partitions, "Inductor did not ask the partitioner"
    assert found.agree, found
    assert found.fallbacks == 0


@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_three_models_at_one_budget(name: str) -> None:
    check(name, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 1.0, 0.5, 0.2, 0.0])
@pytest.mark.parametrize("name", zoo.names())
def test_every_model_at_every_budget(name: str, budget: float | None) -> None:
    check(name, budget)


def test_the_backend_is_found_by_name_and_takes_options() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(8, 16)

    def step(w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square().sum()

    (expected,) = torch.autograd.grad(step(weight), weight)
    compiled = torch.compile(step, backend="optpart", options={"memory_budget": 1.0, "on_failure": "raise"})
    (found,) = torch.autograd.grad(compiled(weight), weight)
    torch.testing.assert_close(found, expected)


# -------------------------------------------------------------------------------- plans of every kind


class InductorPlan(tp.CustomPartitionerFn):
    """A plan that is built without a solver, as Inductor's ``custom_partitioner_fn``."""

    def __init__(self, plan: str) -> None:
        self.plan = plan

    def __call__(self, gm: Any, joint_inputs: Any, **kw: Any) -> Any:
        kw.pop("compiler", None)
        return planned(PLANS[self.plan], redo_random=False)(gm, joint_inputs, **kw)

    def uuid(self) -> bytes:
        return self.plan.encode()


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.b.cos()).sin()
        self.b.mul_(0.9).add_(y.detach().mean(0) * 0.1)
        return y.exp()


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm((x @ w).sin(), (8,)) @ w


KINDS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], dict[str, Any]]] = {
    "views and norms": (lambda x, w: block(x, w).t().exp()[1:], lambda: [leaf(4, 8), leaf(8, 8)], {}),
    "overwritten buffer": (Average(), lambda: [leaf(4, 8)], {"calls": 2}),
    "checkpoint": (
        lambda x, w: checkpoint(block, x, w, use_reentrant=False).exp(),
        lambda: [leaf(4, 8), leaf(8, 8)],
        {},
    ),
    "symbolic sizes": (
        lambda x, w: (x @ w).sin().view(-1).exp() * x.shape[0],
        lambda: [leaf(4, 8), leaf(8, 8)],
        {"dynamic": True},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    fn, args, options = KINDS[name]
    given = args()
    eager = {k: v for k, v in options.items() if k != "dynamic"}
    backend = tp.compiler_backend("inductor", InductorPlan("all again"))
    close(step(fn, given, backend, **options), step(fn, given, **eager), name)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_the_mask_is_the_forwards(inside: bool) -> None:
    """Inductor draws from seeds, which are saved; the numbers are not eager's."""

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5).square()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropped, x, use_reentrant=False) if inside else dropped(x)

    x = (torch.rand(32, 32) + 0.5).requires_grad_()
    out = torch.compile(fn, backend=tp.compiler_backend("inductor", InductorPlan("all again")))(x)
    out.sum().backward()
    assert torch.equal(x.grad != 0, out != 0)
    assert 0 < out.count_nonzero() < out.numel()


@torch.compiler.nested_compile_region
def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().exp()


@pytest.mark.slow
@pytest.mark.parametrize("second", ["another weight", "the same weight"])
def test_two_calls_of_a_region(second: str) -> None:
    """Gradients are wrong with PyTorch 2.13's own partitions: Inductor mixes up results that a region hands through."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return region(region(x, w), w if second == "the same weight" else w.sin()).cos()

    args = [leaf(8, 8), leaf(8, 8)]
    backend = tp.compiler_backend("inductor", optpart.Partitioner(on_failure="raise"))
    close(step(fn, args, backend), step(fn, args), second)


# ---------------------------------------------------------------------------------------- the cache

COMPILE = """
import json, sys
import torch
from torch._dynamo.utils import counters
from optpart.partitioner import Partitioner
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(3)])
x = torch.randn(64, 16)
found = []
for budget in json.loads(sys.argv[1]):
    torch.compiler.reset()
    counters.clear()
    partitioner = Partitioner(memory_budget=budget, on_failure="raise")
    net.zero_grad()
    torch.compile(net, options={"custom_partitioner_fn": partitioner})(x).sum().backward()
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    runs = [p.result.plan.counts.total() for p in partitioner.partitions]
    found.append([hits, runs, float(net[0][0].weight.grad.double().sum())])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_budgets_are_two_plans_also_from_a_warm_cache(tmp_path: Path) -> None:
    """In one process and across two: another budget misses, the same one hits."""
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}

    def compiled(budgets: list[float]) -> list[Any]:
        command = [sys.executable, "-c", COMPILE, json.dumps(budgets)]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found: list[Any] = json.loads(out.stdout.splitlines()[-1])
        return found

    (hits_a, runs_a, a), (hits_b, runs_b, b) = compiled([1.0, 0.0])
    assert (hits_a, hits_b) == (0, 0)
    assert runs_a != runs_b  # the smaller budget runs more
    (hits_b, none, b_again), (hits_c, runs_c, c) = compiled([0.0, 0.5])
    assert (hits_b, none) == (1, [])  # a hit: the partitioner is not asked
    assert hits_c == 0
    assert runs_c
    for gradient in (b, b_again, c):
        assert gradient == pytest.approx(a, rel=1e-4)


# ------------------------------------------------------------------------------ the peak of a plan holds


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Twice(nn.Module):
    """Checkpointed blocks that run twice: their recomputes depend on nothing that the backward makes."""

    def __init__(self, blocks: int = 6, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def once(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.once(x).mean() + self.once(x.cos()).square().mean()


def over_budget(hold_order: bool) -> float:
    """The measured peak as a share of the budget."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(256, 64)
    partitioner = optpart.Partitioner(memory_budget=0.0, hold_order=hold_order, on_failure="raise", time_limit=20)
    found = optpart.measure(model, (x,), partitioner=partitioner, compiler="inductor", repeats=1)
    result = partitioner.partitions[-1].result
    assert result is not None
    assert result.budget_bytes is not None
    return found.measured_peak_bytes / result.budget_bytes


def test_a_budget_holds() -> None:
    """At the smallest peak that there is, where each of a hundred small values moves it by 2 %: 1.09 was measured, and 1.85
    without.  Larger models stay within 3 % (below)."""
    assert over_budget(hold_order=True) <= 1.2


@pytest.mark.slow
def test_a_budget_does_not_hold_by_itself() -> None:
    """The other side of the test above: if this fails, torch has learned to keep an order, and the waits may go."""
    assert over_budget(hold_order=False) > 1.2


@pytest.mark.slow
def test_the_users_own_checkpoints_hold_without_a_budget() -> None:
    """pytorch/pytorch issue 193193: with PyTorch's min-cut this is 2.8 times the peak of eager checkpointing."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(256, 64)
    partitioner = optpart.Partitioner(on_failure="raise")
    found = optpart.measure(model, (x,), partitioner=partitioner, compiler="inductor", repeats=1)
    assert found.predicted_peak_bytes is not None
    assert found.measured_peak_bytes <= 1.15 * found.predicted_peak_bytes  # buffers are reused: no option forbids it here


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.5, 0.1, 0.0])
@pytest.mark.parametrize("name", ["gpt", "llama", "unet"])
def test_budgets_hold_for_models(name: str, budget: float) -> None:
    loaded = zoo.load(name, "default", {} if name == "unet" else {"layers": "2"})
    partitioner = optpart.Partitioner(memory_budget=budget, on_failure="raise", time_limit=30)
    found = optpart.measure(loaded.model, loaded.batch, partitioner=partitioner, compiler="inductor", repeats=1)
    result = partitioner.partitions[-1].result
    assert result is not None
    assert result.budget_bytes is not None
    assert found.measured_peak_bytes <= 1.03 * result.budget_bytes


def test_held_steps_keep_gradients() -> None:
    torch.manual_seed(0)
    model, x = Twice(blocks=2, width=16), torch.randn(32, 16)
    partitioner = optpart.Partitioner(memory_budget=0.0, on_failure="raise", time_limit=20)
    found = optpart.check_gradients(model, (x,), partitioner=partitioner, compiler="inductor")
    assert found.agree, found
