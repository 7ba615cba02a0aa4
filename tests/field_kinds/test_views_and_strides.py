"""Views of every kind, strides, complex and sparse values: what is saved is the storage, what is read the view."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import Case, close, leaf, partitions, run_case, step, without_dynamo
from torch import nn

complex64 = torch.complex64


def written_through_views(x: torch.Tensor) -> torch.Tensor:
    a = x.sin()
    a[0] = a[1] * 2
    a[:, 1].mul_(3)
    return a.cos()


def heads(x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.sin().view(4, 3, 2).unbind(1)
    return (q.cos() * k.sin()) @ v.T


def transposed_tangent(out: torch.Tensor, generator: torch.Generator) -> None:
    out.backward(torch.randn(6, 4, generator=generator).t())


def expanded_tangent(out: torch.Tensor, generator: torch.Generator) -> None:
    out.sum().backward()


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()


def convolutions() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    return net.to(memory_format=torch.channels_last)


CASES: dict[str, Case] = {
    "as_strided": lambda: (lambda x: torch.as_strided(x.sin(), (3, 3), (1, 4)).cos(), [leaf(4, 4)]),
    "as_strided input": lambda: (lambda x: torch.as_strided(x, (3, 3), (1, 4)).cos(), [leaf(4, 4)]),
    "expand": lambda: (lambda x: x.sin().expand(3, 4).cos() * 2, [leaf(1, 4)]),
    "transposed outputs": lambda: (lambda x: (x.sin().t(), x.cos().t().exp()), [leaf(4, 6)]),
    "unfold": lambda: (lambda x: x.sin().unfold(1, 3, 2).exp(), [leaf(4, 8)]),
    "diagonal": lambda: (lambda x: x.sin().diagonal().exp() + torch.diag(x.cos().exp()), [leaf(4, 4)]),
    "reshape that copies": lambda: (
        lambda x, w: (x.sin().transpose(1, 2).reshape(2, 6) @ w).cos(),
        [leaf(2, 3, 2), leaf(6, 4)],
    ),
    "flip and roll": lambda: (lambda x: x.sin().flip(0).cos().roll(1, 0).exp(), [leaf(4, 3)]),
    "squeeze, movedim, flatten": lambda: (
        lambda x: x.sin().unsqueeze(0).squeeze(0).movedim(0, 1).flatten().exp(),
        [leaf(3, 4)],
    ),
    "views of one tensor": lambda: (heads, [leaf(4, 6)]),
    "two slices": lambda: (lambda x: x.exp()[::2].sin() * x.exp()[1::2].cos(), [leaf(8, 4)]),
    "select_scatter": lambda: (
        lambda x, y: torch.select_scatter(x.sin(), y.cos(), 0, 1).exp(),
        [leaf(3, 4), leaf(4)],
    ),
    "written through views": lambda: (written_through_views, [leaf(3, 4)]),
    "gather and index_select": lambda: (
        lambda x, i: x.sin().gather(1, i).exp() + x.cos().index_select(0, i[0, :2]).sum(),
        [leaf(3, 4), torch.tensor([[0, 1], [2, 3], [1, 1]])],
    ),
    "index_put": lambda: (
        lambda x, i: x.sin().index_put((i,), x.cos()[:2], accumulate=True).exp(),
        [leaf(3, 4), torch.tensor([0, 2])],
    ),
    "zero-stride tangent": lambda: (lambda x: x.sin(), [leaf(4, 6)], {"loss": expanded_tangent}),
    "transposed tangent": lambda: (lambda x: x.cos(), [leaf(4, 6)], {"loss": transposed_tangent}),
    "channels last": lambda: (convolutions(), [channels_last(2, 3, 8, 8)], {"calls": 2}),
    "interpolate": lambda: (lambda x: F.interpolate(x.sin(), scale_factor=2, mode="bilinear").cos(), [leaf(1, 2, 4, 4)]),
    "einsum": lambda: (
        lambda x, y: torch.einsum("bij,bjk->bik", x.sin(), y).cos(),
        [leaf(2, 3, 4), leaf(2, 4, 3)],
    ),
    "complex": lambda: (
        lambda x, y: (x * y).exp().abs() + (x.conj() * y).real.sin(),
        [leaf(4, dtype=complex64), leaf(4, dtype=complex64)],
    ),
    "complex output": lambda: (
        lambda x, y: (x * y).exp().sin(),
        [leaf(4, dtype=complex64), leaf(4, dtype=complex64)],
    ),
    "view_as_real": lambda: (lambda x: torch.view_as_real(torch.view_as_complex(x.sin()).exp()).cos(), [leaf(4, 2)]),
    "real and imaginary parts": lambda: (lambda x: x.sin().real.exp() + x.cos().imag.exp(), [leaf(4, dtype=complex64)]),
    "fft": lambda: (lambda x: torch.fft.irfft(torch.fft.rfft(x.sin()) * 2).cos(), [leaf(4, 8)]),
    "sparse gradient": lambda: (
        lambda w: F.embedding(torch.tensor([1, 2, 2]), w, sparse=True).sin(),
        [leaf(10, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])


def product(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(s, x.exp()).sin()


def product_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(x.sin().relu().to_sparse(), w.exp()).sin()


@pytest.mark.parametrize("fn", [product, product_inside])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_sparse(fn: Any) -> None:
    """Dynamo traces no sparse tensors, so without it."""
    first = torch.eye(4).to_sparse() if fn is product else leaf(4, 4)
    args = [first, leaf(4, 4)]
    eager = step(fn, args)
    for name, partition in partitions(("all again", "repeats 1")):
        close(step(without_dynamo(fn, partition), args), eager, name)
