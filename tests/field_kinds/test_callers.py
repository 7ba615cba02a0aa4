"""Who calls a partition_fn, and around what: functorch without Dynamo, hooks, graph breaks, subclasses, two backwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_module, make_boxed_func
from steps import (
    PLANS,
    Case,
    backward,
    close,
    compare,
    fresh,
    leaf,
    partitions,
    planned,
    run_case,
    step,
    without_dynamo,
)
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._inductor.decomposition import select_decomp_table
from torch.testing._internal.two_tensor import TwoTensor

from optpart import torch_private as tp


def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.dropout((x @ w).sin(), 0.5) @ w).exp()


def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).sin()
    torch._dynamo.graph_break()
    z = (y @ w).exp()
    torch._dynamo.graph_break()
    return z.cos() * y


def hooked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).sin()
    y.register_hook(lambda tangent: tangent * 2)
    return y @ w


def without_gradient_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (x @ w).exp().sum()
    return (x @ w).sin() * scale


def packed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 1):
        return ((x @ w).sin() @ w).exp()


CONSTANT = torch.arange(64.0).view(8, 8) / 64


def twice(out: torch.Tensor, generator: torch.Generator) -> None:
    out.sum().backward(retain_graph=True)
    out.square().sum().backward()


def three_times(out: torch.Tensor, generator: torch.Generator) -> None:
    for _ in range(3):
        out.backward(torch.randn(8, 8, generator=generator), retain_graph=True)


def two() -> list[torch.Tensor]:
    return [leaf(8, 8), leaf(8, 8)]


CASES: dict[str, Case] = {
    "graph breaks": lambda: (broken, two(), {"fullgraph": False}),
    "hook": lambda: (hooked, two()),
    "no_grad inside": lambda: (without_gradient_inside, two()),
    "saved-tensor hooks": lambda: (packed, two(), {"fullgraph": False}),
    "constants": lambda: (lambda x, w: (x @ w * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])).sin() * CONSTANT.sin(), two()),
    "backward twice": lambda: (dropped, two(), {"loss": twice}),
    "backward three times": lambda: (dropped, two(), {"loss": three_times}),
    "modules in place": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True)),
        [leaf(3, 4)],
    ),
    "a deep chain": lambda: (nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(8)]), [leaf(3, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


def decomposed(partition: Any) -> Any:
    return tp.aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition, decompositions=select_decomp_table()
    )


def test_inductors_decompositions() -> None:
    """Norms, softmax, gelu and dropout in their parts."""
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3), nn.Softmax(-1))
    args = [leaf(4, 8)]
    expected = step(net, args, decomposed(tp.default_partition))
    for name, partition in partitions(tuple(PLANS)):
        compare(step(net, args, decomposed(partition)), expected, name)


@pytest.mark.parametrize("fn", [dropped, lambda x, w: (x, (x @ w).sin(), w.t())])
def test_aot_function(fn: Any) -> None:
    eager = step(fn, args := two())
    for name, partition in partitions(("nothing again", "all again", "repeats 1")):
        close(step(without_dynamo(fn, partition), args), eager, name)


def test_aot_module() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 8))

    def run(partition: Any) -> list[Any]:
        model = function = copy.deepcopy(net)
        if partition is not None:
            function = aot_module(model, lambda module, _: make_boxed_func(module.forward), partition_fn=partition)
        torch.manual_seed(0)
        x = torch.randn(4, 8, requires_grad=True)
        out = function(x)
        backward(out, torch.Generator().manual_seed(1))
        return [out.detach(), x.grad, *(p.grad for p in model.parameters())]

    eager = run(None)
    for name, partition in partitions(("nothing again", "all again", "repeats 1")):
        close(run(partition), eager, name)


def test_tensor_subclass() -> None:
    """A subclass of two tensors: the joint graph has the inner ones."""
    x, w = (TwoTensor(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(2))

    def run(backend: Any) -> list[Any]:
        given = [t.detach().clone().requires_grad_() for t in (x, w)]
        function = dropless if backend is None else torch.compile(dropless, backend=backend, fullgraph=True)
        out = function(*given)
        out.sum().backward()
        return [out.a.detach(), out.b.detach(), given[0].grad.a, given[1].grad.b]

    def dropless(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ w).exp()

    eager = run(None)
    for name, partition in partitions(("all again", "repeats 1")):
        torch.compiler.reset()
        close(run(tp.aot_eager_backend(partition)), eager, name)


def test_compiled_autograd() -> None:
    """The backward graph is traced again, into one for the whole step."""
    args = two()

    def run(partition: Any) -> list[Any]:
        torch.compiler.reset()
        torch.manual_seed(0)
        given = [fresh(a) for a in args]
        function = torch.compile(dropped, backend=tp.aot_eager_backend(partition))
        with compiled_autograd._enable(torch.compile(backend="eager")):
            out = function(*given)
            out.sum().backward()
        return [out.detach(), *(a.grad for a in given)]

    expected = run(tp.default_partition)
    for name in ("all again", "repeats 1"):
        compare(run(planned(PLANS[name])), expected, name)
