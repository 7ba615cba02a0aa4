"""Measured steps: the allocator's peak against the simulator's, to the byte, and what a measurement leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from steps import PLANS, Broken, planned
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import models
import optpart
from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.cost.model import build_problem
from optpart.liveness import simulate
from optpart.measuring import measured_peak, measured_time
from optpart.plans import Plan


@pytest.mark.parametrize(("name", "budget"), [("mlp", None), ("mlp", 0.0), ("gpt", 0.3), ("vit", None), ("mobilenet", 0.5)])
def test_the_prediction_is_exact(name: str, budget: float | None) -> None:
    """Convolutions, batch norm, attention and its workspace, with and without a budget: not a byte of difference."""
    loaded = models.load(name, "tiny")
    part = optpart.Partitioner(memory_budget=budget, on_failure="raise")
    found = optpart.measure(loaded.model, loaded.batch, partitioner=part, repeats=1)
    assert found.difference_bytes == 0
    assert found.measured_peak_bytes == found.resident_bytes + found.peak_bytes == found.predicted_peak_bytes
    if budget is not None:
        assert found.measured_peak_bytes <= part.partitions[-1].result.budget_bytes


def two_dropouts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x @ w, 0.3).sin(), 0.2).sum()


@pytest.mark.parametrize("plan", ["nothing again", "all again", "repeats 1", "repeats 2"])
def test_the_prediction_is_exact_with_random_ops(plan: str) -> None:
    """The peak is at a replayed draw, where the generator's state is there twice, or in a forward that saves it."""
    seen: list[tuple[Capture, Plan]] = []
    args = (torch.randn(100, 50, requires_grad=True), torch.randn(50, 80, requires_grad=True))
    found = optpart.measure(two_dropouts, args, partitioner=planned(PLANS[plan], seen), repeats=1)
    [(captured, made)] = seen
    graph = captured.graph
    live = simulate(build_problem(graph, measure_memory=True), made)
    assert found.measured_peak_bytes == live.peak_bytes
    replays = live.peak_step >= len(made.forward) and made.sequence[live.peak_step] in made.forward
    assert replays is (plan != "nothing again")
    assert graph.ops[made.sequence[live.peak_step]].rng_state is not None


@pytest.mark.parametrize("name", ["gpt", "diffusion"])
def test_the_prediction_is_exact_for_models_with_dropout(name: str) -> None:
    loaded = models.load(name, "tiny", {"dropout": "0.1"})
    part = optpart.Partitioner(memory_budget=0.0, on_failure="raise", time_limit=5)
    assert optpart.measure(loaded.model, loaded.batch, partitioner=part, repeats=1).difference_bytes == 0


def test_levels_of_the_allocator() -> None:
    def step() -> None:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(300, dtype=torch.uint8)
        del a
        c = torch.empty(500, dtype=torch.uint8)
        del b, c

    kept = torch.empty(10**6)
    assert measured_peak(step) == 1300
    assert measured_peak(lambda: kept.add_(1)) < 100
    calls: list[str] = []
    assert measured_time(lambda: calls.append("step"), 3, before=lambda: calls.append("before")) >= 0.0
    assert calls == ["before", "step"] * 4


def test_no_second_profiler() -> None:
    """It would end the first one, and its results with it."""
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(RuntimeError, match="a profiler is running"):
        measured_peak(lambda: None)


def test_any_partition_function() -> None:
    """PyTorch's own are measured too; nothing is predicted for them."""
    loaded = models.load("mlp", "tiny")
    found = optpart.measure(loaded.model, loaded.batch, partitioner=tp.default_partition, repeats=1)
    assert (found.predicted_peak_bytes, found.difference_bytes) == (None, None)
    ours = optpart.measure(loaded.model, loaded.batch, repeats=1)
    assert found.resident_bytes == ours.resident_bytes
    assert found.measured_peak_bytes >= ours.measured_peak_bytes


def test_a_model_is_left_as_it_was() -> None:
    """Batch norm updates its buffers, dropout draws: both in the copy."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    before = copy.deepcopy(model.state_dict())
    optpart.measure(model, (torch.randn(5, 4),), repeats=1)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    assert all(p.grad is None for p in model.parameters())


def test_tensors_of_a_function_keep_their_gradients() -> None:
    """They are resident and read by the graph, although they are no arguments."""
    w = torch.randn(4, 4, requires_grad=True)
    gradient = torch.full((4, 4), 3.0)
    w.grad = gradient
    found = optpart.measure(lambda x: (x @ w).sin(), (torch.randn(6, 4),), repeats=1)
    assert w.grad is gradient
    assert torch.equal(gradient, torch.full((4, 4), 3.0))
    assert found.resident_bytes == 4 * (4 * 4 + 6 * 4)
    assert found.difference_bytes == 0


def test_an_argument_is_resident_with_all_of_its_storage() -> None:
    base = torch.randn(100)
    found = optpart.measure(lambda x, y: (x * x + y).sum(), (base[:10].requires_grad_(), torch.randn(10)), repeats=1)
    assert found.resident_bytes == 4 * 20  # the arguments are copied, and a copy is no longer a view
    shared = torch.randn(8, 8, requires_grad=True)
    twice = optpart.measure(lambda x: (shared @ x).sum() + shared[2:].sin().sum(), (torch.randn(8),), repeats=1)
    assert twice.resident_bytes == 4 * (64 + 8)


def test_the_loss_is_part_of_the_step() -> None:
    def wasteful(out: torch.Tensor) -> torch.Tensor:
        return (out * torch.ones(1000)[:, None, None]).sum()

    args = (torch.randn(3, 4, requires_grad=True),)
    alone = optpart.measure(torch.sin, args, repeats=1)
    assert alone.difference_bytes == 0
    with_loss = optpart.measure(torch.sin, args, loss=wasteful, repeats=1)
    assert with_loss.difference_bytes >= 1000 * 3 * 4 * 4


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks a tensor between two graphs for it
def test_several_graphs_predict_nothing() -> None:
    found = optpart.measure(Broken(), (torch.randn(3, 4),), repeats=1)
    assert found.predicted_peak_bytes is None
    assert found.resident_bytes == 4 * (2 * (16 + 4) + 12)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="no tensor that needs a gradient"):
        optpart.measure(lambda x: x + 1, (torch.ones(3),))
    with pytest.raises(ValueError, match="expected 'inductor' or 'aot_eager'"):
        optpart.measure(torch.sin, (torch.ones(3, requires_grad=True),), compiler="gcc")


@pytest.mark.slow
@pytest.mark.inductor
def test_under_inductor_both_are_there() -> None:
    """The cache on the disk is not asked: a partitioner that does not run would predict nothing."""
    loaded = models.load("mlp", "tiny")
    for _ in range(2):
        found = optpart.measure(loaded.model, loaded.batch, compiler="inductor", repeats=1)
        assert found.predicted_peak_bytes is not None
        assert found.measured_peak_bytes > found.resident_bytes
