"""PyTorch's partitions as plans: the example by hand, real models by the checker, its known faults by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import models
from optpart import pytorch_plans
from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.cost.model import build_problem
from optpart.liveness import simulate
from optpart.planning import capture_joint, trace
from optpart.problem import Problem
from optpart.pytorch_plans import NoPlan, measured_answer, pytorch_answer, pytorch_plan
from optpart.validate import validate

TINY = ("mlp", "gpt", "resnet", "lstm")


def captured(model: Callable[..., Any], *args: torch.Tensor) -> tuple[Capture, Problem]:
    [(joint, name)] = trace(model, args, "model")
    found = capture_joint(joint, name)
    return found, build_problem(found.graph)


@functools.cache
def tiny(name: str) -> tuple[Capture, Problem]:
    loaded = models.load(name, "tiny", fake=True)
    return captured(loaded.model, *loaded.batch)


def saved(capture: Capture, method: str, budget: float | None = None) -> set[str]:
    plan = pytorch_plan(capture, method, budget)
    return {capture.graph.values[v].name for v in plan.saved(capture.graph)}


def recomputed(capture: Capture, method: str, budget: float | None = None) -> set[str]:
    return {capture.graph.ops[o].name for o in pytorch_plan(capture, method, budget).recomputes()}


def test_the_four_inputs() -> None:
    """PyTorch's tutorial: min-cut keeps the sum and recomputes one cos, the default partition keeps both."""

    def four(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        x = a + b + c + d
        return x.cos().cos()

    capture, problem = captured(four, *(torch.randn(2, 4, requires_grad=True) for _ in range(4)))
    assert saved(capture, "min-cut") == {"add_2"}
    assert recomputed(capture, "min-cut") == {"cos"}
    assert saved(capture, "default") == {"add_2", "cos"}
    assert recomputed(capture, "default") == set()
    assert recomputed(capture, "budget", 0.0) == {"add", "add_1", "add_2", "cos"}  # PyTorch keeps all inputs
    answer = pytorch_answer(capture, problem, "min-cut")
    assert (answer.saved_bytes, answer.problem) == (32, "")
    assert answer.overhead == pytest.approx(problem.runtime[3] / problem.total_time)


@pytest.mark.parametrize("name", TINY)
def test_real_models_give_valid_plans(name: str) -> None:
    capture, problem = tiny(name)
    before = capture.joint.graph.python_code("self").src
    for method in ("default", "min-cut"):
        plan = pytorch_plan(capture, method)
        assert validate(problem, plan).faults == ()
        answer = pytorch_answer(capture, problem, method)
        assert answer.plan == plan
        assert answer.problem == ""
        assert (answer.peak_bytes, answer.overhead) == (simulate(problem, plan).peak_bytes, simulate(problem, plan).overhead)
    assert capture.joint.graph.python_code("self").src == before


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("method", ["default", "min-cut"])
def test_saved_bytes_are_those_of_the_forward_graph(name: str, method: str) -> None:
    """Counted again, from the storages that PyTorch's forward graph returns beside the model's outputs."""
    capture, problem = tiny(name)
    module = tp.copy_module(capture.joint)
    primals = [n for n in module.graph.find_nodes(op="placeholder") if "tangents" not in n.name]
    static = {n.name for n in capture.static_nodes}
    partition = tp.default_partition if method == "default" else tp.min_cut_partition
    indices = [i for i, n in enumerate(primals) if n.name in static]
    n = capture.num_fwd_outputs
    forward, _ = partition(module, (), num_fwd_outputs=n, static_lifetime_input_indices=indices)
    returned = forward.graph.output_node().args[0]
    kept = [r for r in returned[n:] if isinstance(r.meta["val"], torch.Tensor)]
    free = [p for p in primals if p.name in static] + [r for r in returned[:n] if isinstance(r, torch.fx.Node)]
    storages = {r.meta["val"].untyped_storage()._cdata: r.meta["val"].untyped_storage().nbytes() for r in kept}
    for node in free:
        storages.pop(node.meta["val"].untyped_storage()._cdata, None)
    assert pytorch_answer(capture, problem, method).saved_bytes == sum(storages.values())


def test_a_smaller_budget_saves_less() -> None:
    capture, problem = tiny("gpt")
    answers = [pytorch_answer(capture, problem, "budget", b) for b in (1.0, 0.5, 0.0)]
    most, some, least = (a.saved_bytes for a in answers)
    assert most > some > least
    assert answers[0].plan == pytorch_plan(capture, "min-cut")
    assert [a.budget for a in answers] == [1.0, 0.5, 0.0]


class Checkpointed(nn.Module):
    """Dropout inside a checkpoint: PyTorch wraps the calls, and they lose their names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def block(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.linear(x).sin(), 0.3)
        return functional.dropout(x.relu(), 0.3).sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False).cos().sum()


def test_wrapped_random_ops_are_found() -> None:
    capture, problem = captured(Checkpointed(), torch.randn(4, 8, requires_grad=True))
    random = {op.name: op.rng_state for op in capture.graph.ops if op.rng_state is not None}
    assert len(random) == 2
    for method in ("default", "min-cut"):
        assert set(random) <= recomputed(capture, method)
        answer = pytorch_answer(capture, problem, method)
        assert answer.problem == ""
        assert answer.saved_bytes >= sum(problem.sizes[v] for v in random.values())


class Dropout(nn.Module):
    """No checkpoint: under a memory budget PyTorch redoes the dropout, with another mask."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.linear(x).sin(), 0.5).square().sum()


def test_other_random_numbers_are_named() -> None:
    capture, problem = captured(Dropout(), torch.randn(4, 8, requires_grad=True))
    assert pytorch_answer(capture, problem, "min-cut").problem == ""
    answer = pytorch_answer(capture, problem, "budget", 0.0)
    assert "draws other random numbers" in answer.problem
    state = next(op.rng_state for op in capture.graph.ops if op.rng_state is not None)
    assert answer.peak_bytes < problem.sizes[state]  # 5,056 bytes that PyTorch does not keep, and nobody counts


class Counter(nn.Module):
    """Reads a buffer and updates it: min-cut recomputes from what the buffer holds afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.steps.exp()).sin()
        self.steps.add_(1.0)
        return y.sum()


def test_reads_of_an_overwritten_buffer_are_named() -> None:
    capture, problem = captured(Counter(), torch.randn(4, 8, requires_grad=True))
    assert pytorch_answer(capture, problem, "default").problem == ""
    assert "overwritten" in pytorch_answer(capture, problem, "min-cut").problem


class Widened(Counter):
    """Capture copies this buffer, since what reads it is 64 times larger."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.steps.expand(64, 8).exp()).sin()
        self.steps.add_(1.0)
        return y.sum()


def test_our_copies_of_overwritten_inputs_are_not_pytorchs() -> None:
    """It runs exp again, which reads the buffer itself: the gradient is wrong, and the answer says so."""
    x = torch.randn(64, 8, requires_grad=True)
    capture, problem = captured(Widened(), x)
    [copy] = [op for op in capture.graph.ops if op.target == "aten.clone.default"]
    default = pytorch_answer(capture, problem, "default")
    assert default.problem == ""
    assert default.plan is not None
    assert default.plan.forward[0] == copy.id
    wrong = pytorch_answer(capture, problem, "min-cut")
    assert "in the backward reads" in wrong.problem
    assert "which is overwritten" in wrong.problem
    assert "clone" not in wrong.problem
    for partition, right in ((tp.default_partition, True), (tp.min_cut_partition, False)):
        compiled = torch.compile(Widened(), backend=tp.aot_eager_backend(partition))
        [found] = torch.autograd.grad(compiled(x), x)
        [expected] = torch.autograd.grad(x.sin().sum(), x)  # exp(0) is 1
        assert torch.equal(found, expected) is right
        torch.compiler.reset()


@pytest.mark.parametrize("name", ["resnet", "unet", "mobilenet"])
def test_a_batch_norm_that_runs_again_needs_no_running_statistics(name: str) -> None:
    """They are overwritten, and PyTorch reads them once more; nothing that the backward uses comes of it."""
    loaded = models.load(name, "tiny")
    capture, _ = captured(loaded.model, *loaded.batch)
    problem = build_problem(capture.graph, measure_memory=True)
    answer = pytorch_answer(capture, problem, "budget", 0.3)
    assert answer.problem == ""
    assert answer.plan is not None
    assert any("batch_norm" in capture.graph.ops[o].target for o in answer.plan.recomputes())
    measured = measured_answer(answer, loaded.model, loaded.batch)
    assert measured.measured_peak_bytes == answer.peak_bytes


def test_a_failing_partitioner_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("Node getitem_3 was invalid, but is output\nand more")

    capture, problem = tiny("mlp")
    monkeypatch.setattr(pytorch_plans.tp, "min_cut_partition", fails)
    with pytest.raises(NoPlan, match=r"AssertionError: Node getitem_3 was invalid, but is output$"):
        pytorch_plan(capture, "min-cut")
    answer = pytorch_answer(capture, problem, "min-cut")
    assert (answer.plan, answer.peak_bytes, answer.saved_bytes, answer.overhead) == (None,) * 4
    assert "getitem_3" in answer.problem
    assert pytorch_answer(capture, problem, "default").problem == ""


def test_an_unknown_node_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that do something else than the joint graph are refused, not guessed at."""

    def partition(*args: Any, **kw: Any) -> Any:
        forward, backward = default(*args, **kw)
        output = backward.graph.output_node()
        with backward.graph.inserting_before(output):
            backward.graph.call_function(torch.ops.aten.neg.default, (output.args[0][0],))
        return forward, backward

    capture, _ = tiny("mlp")
    default = tp.default_partition
    monkeypatch.setattr(pytorch_plans.tp, "default_partition", partition)
    with pytest.raises(NoPlan, match="a node 'neg_default' that the joint graph does not have"):
        pytorch_plan(capture, "default")


@pytest.mark.parametrize(
    ("method", "budget", "text"),
    [
        ("mincut", None, "expected one of default, min-cut, budget"),
        ("budget", None, "'budget' takes a number from 0.0 to 1.0"),
        ("budget", 1.5, "'budget' takes a number from 0.0 to 1.0"),
        ("default", 0.5, "the others none"),
    ],
)
def test_wrong_arguments(method: str, budget: float | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pytorch_plan(tiny("mlp")[0], method, budget)
