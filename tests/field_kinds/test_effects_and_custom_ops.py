"""Ops that PyTorch does not ship, ops with effects, collectives: each runs once, and on its own side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from steps import PLANS, Case, leaf, planned, run_case, step
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.distributed import _functional_collectives as collectives
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp
from optpart.partitioner import Partitioner

RUNS: Counter[str] = Counter()


@torch.library.custom_op("optpart_tests::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    RUNS["slow"] += 1
    return x.sin()


@torch.library.custom_op("optpart_tests::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    RUNS["pair"] += 1
    return x.sin(), x.cos()


@torch.library.custom_op("optpart_tests::several", mutates_args=())
def several(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [x * i for i in range(n)]


@torch.library.custom_op("optpart_tests::fill_", mutates_args={"out"})
def fill_(x: torch.Tensor, out: torch.Tensor) -> None:
    RUNS["fill_"] += 1
    out.copy_(x * 2)


@torch.library.custom_op("optpart_tests::count_", mutates_args={"counter"})
def count_(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    counter.add_(1)
    return x * 2


@torch.library.custom_op("optpart_tests::log", mutates_args=())
def log(x: torch.Tensor) -> torch.Tensor:
    RUNS["log"] += 1
    return x.clone()


@torch.library.custom_op("optpart_tests::constant", mutates_args=())
def constant(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


slow.register_fake(torch.empty_like)
pair.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
several.register_fake(lambda x, n: [torch.empty_like(x) for _ in range(n)])
fill_.register_fake(lambda x, out: None)
count_.register_fake(lambda x, counter: torch.empty_like(x))
log.register_fake(torch.empty_like)
constant.register_fake(torch.empty_like)


def keep_input(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def keep_outputs(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output)


def keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


slow.register_autograd(lambda ctx, t: t * ctx.saved_tensors[0].cos(), setup_context=keep_input)
pair.register_autograd(
    lambda ctx, t, u: t * ctx.saved_tensors[1] - u * ctx.saved_tensors[0], setup_context=keep_outputs
)
several.register_autograd(lambda ctx, ts: (sum(t * i for i, t in enumerate(ts)), None), setup_context=keep_nothing)
log.register_autograd(lambda ctx, t: t.clone(), setup_context=keep_nothing)
_register_effectful_op(torch.ops.optpart_tests.log.default, _EffectType.ORDERED)


class KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y


class CustomInBackward(KeepsResult):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return slow(tangent * ctx.saved_tensors[0])


class MutatesInBackward(KeepsResult):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        out = torch.empty_like(tangent)
        fill_(ctx.saved_tensors[0], out)
        return tangent * out


class LogsInBackward(KeepsResult):
    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return log(tangent * ctx.saved_tensors[0]) + log(ctx.saved_tensors[0])


class SumsOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return collectives.all_reduce(tangent, "sum", dist.group.WORLD)


def mutating(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = x.detach() * 1
    before = out.cos()
    fill_(x.detach().sin(), out)
    doubled = count_((x @ w).detach(), out)
    return ((x @ w) * out * before).exp() * doubled


class Filled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.randn(8, 8))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w) * self.b.sin()
        fill_(x.detach(), self.b)
        return y.exp() * self.b.cos()


def asserted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x == x).all())
    return (x @ w).sin()


def two() -> list[torch.Tensor]:
    return [leaf(8, 8), leaf(8, 8)]


CASES: dict[str, Case] = {
    "custom op": lambda: (lambda x, w: slow(x @ w).tanh() @ w, two()),
    "two results": lambda: (lambda x, w: [t.sin() for t in pair((x @ w).tanh())], two()),
    "one of two results": lambda: (lambda x, w: pair((x @ w).tanh())[1].exp(), two()),
    "a list of results": lambda: (lambda x, w: [t.sin() for t in several((x @ w).tanh(), 3)], two()),
    "no gradient": lambda: (lambda x, w: constant(x.detach()) * (x @ w).sin(), two()),
    "mutating": lambda: (mutating, two()),
    "mutating a buffer": lambda: (Filled(), two(), {"calls": 2}),
    "custom op in the backward": lambda: (lambda x, w: CustomInBackward.apply(x @ w).sin(), two()),
    "mutating in the backward": lambda: (lambda x, w: MutatesInBackward.apply(x @ w).sin(), two()),
    "effect": lambda: (lambda x, w: log(log(x @ w).tanh() @ w).sin(), two()),
    "effects in the backward": lambda: (lambda x, w: LogsInBackward.apply(log(x @ w)).sin(), two()),
    "assert": lambda: (asserted, two()),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


@pytest.mark.parametrize("plan", PLANS)
def test_custom_ops_and_effects_run_once(plan: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = pair(slow(x @ w).tanh())
        return (log(first).tanh() * second) @ w

    RUNS.clear()
    step(fn, two(), tp.aot_eager_backend(planned(PLANS[plan])))
    assert RUNS == {"slow": 1, "pair": 1, "log": 1}


@pytest.mark.parametrize("settings", [{}, {"memory_budget": 0.0}])
def test_ours_runs_them_once(settings: dict[str, Any]) -> None:
    RUNS.clear()
    backend = tp.aot_eager_backend(Partitioner(on_failure="raise", **settings))
    step(lambda x, w: pair(slow(x @ w).tanh())[0].exp() @ w, two(), backend)
    assert RUNS == {"slow": 1, "pair": 1}


# --------------------------------------------------------------------------------------- collectives


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


COLLECTIVES: dict[str, Case] = {
    "all_reduce": lambda: (lambda x, w: (SumsOverRanks.apply(x @ w).sin() @ w).exp(), two()),
    "all_gather": lambda: (
        lambda x, w: (collectives.all_gather_tensor_autograd(x @ w, 0, dist.group.WORLD).sin() @ w).exp(),
        two(),
    ),
    "reduce_scatter": lambda: (
        lambda x, w: collectives.reduce_scatter_tensor_autograd((x @ w).exp(), "sum", 0, dist.group.WORLD).sin() @ w,
        two(),
    ),
    "in a checkpoint": lambda: (
        lambda x, w: checkpoint(lambda x, w: SumsOverRanks.apply(x @ w).sin() @ w, x, w, use_reentrant=False),
        two(),
    ),
}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str) -> None:
    run_case(name, COLLECTIVES[name], plans=("all again", "all early"))


@pytest.mark.usefixtures("one_rank")
def test_a_collective_runs_once_unless_it_is_tagged() -> None:
    def reduced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (SumsOverRanks.apply(x @ w).sin() @ w).exp()

    seen: list[Any] = []
    step(reduced, two(), tp.aot_eager_backend(planned(PLANS["all again"], seen)))
    step(
        lambda x, w: checkpoint(reduced, x, w, use_reentrant=False),
        two(),
        tp.aot_eager_backend(planned(PLANS["all again"], seen)),
    )
    runs = [
        max(n for o, n in plan.counts.items() if "all_reduce" in captured.graph.ops[o].target) for captured, plan in seen
    ]
    assert runs == [1, 2]
