"""Ops with several results: each result is saved alone, all come back together, a tuple is never saved."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from steps import Case, leaf, run_case
from torch import nn

eye = torch.eye


def statistics(x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x.sin(), 1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1)


CASES: dict[str, Case] = {
    "split": lambda: (lambda x: [t.sin() * i for i, t in enumerate(x.sin().split([3, 5, 8], 1), 1)], [leaf(4, 16)]),
    "unbind": lambda: (lambda x: sum(t.exp() * (i + 1) for i, t in enumerate(x.sin().unbind(0))), [leaf(5, 8)]),
    "chunk": lambda: (lambda x: [t.cos() for t in x.exp().chunk(2, 1)], [leaf(4, 8)]),
    "split of a concatenation": lambda: (
        lambda x, y: torch.split(torch.cat([x.sin(), y.cos()]), [1, 2, 1])[1].exp(),
        [leaf(2, 3), leaf(2, 3)],
    ),
    "layer_norm": lambda: (lambda x, w, b: F.layer_norm(x.sin(), (16,), w, b).sin(), [leaf(4, 16), leaf(16), leaf(16)]),
    "group_norm": lambda: (lambda x, w: F.group_norm(x.sin(), 2, w).tanh(), [leaf(2, 4, 5, 5), leaf(4)]),
    "batch_norm, two steps": lambda: (nn.BatchNorm2d(3), [leaf(2, 3, 4, 4)], {"calls": 2}),
    "instance_norm": lambda: (nn.InstanceNorm2d(3, affine=True), [leaf(2, 3, 4, 4)]),
    "attention": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q.sin(), k, v, is_causal=True).sin(),
        [leaf(2, 2, 8, 4), leaf(2, 2, 8, 4), leaf(2, 2, 8, 4)],
    ),
    "attention module": lambda: (nn.MultiheadAttention(8, 2, batch_first=True), [leaf(2, 4, 8)] * 3),
    "var_mean": lambda: (statistics, [leaf(4, 16)]),
    "topk and sort": lambda: (lambda x: x.sin().topk(3, 1)[0].sin() + x.cos().sort(1)[0][:, :3].cos(), [leaf(4, 16)]),
    "median and max": lambda: (lambda x: x.sin().median(1)[0].exp() + x.cos().max(1)[0], [leaf(4, 5)]),
    "cummax": lambda: (lambda x: x.sin().cummax(1)[0].exp(), [leaf(4, 5)]),
    "max_pool": lambda: (lambda x: F.max_pool2d(x.sin(), 2).cos(), [leaf(2, 3, 8, 8)]),
    "max_unpool": lambda: (
        lambda x: F.max_unpool2d(*F.max_pool2d(x.sin(), 2, return_indices=True), 2).cos(),
        [leaf(1, 2, 4, 4)],
    ),
    "qr": lambda: (lambda x: torch.linalg.qr(x @ x.T + 10 * eye(6))[1].sin(), [leaf(6, 6)]),
    "svd": lambda: (lambda x: torch.linalg.svd(x.sin())[1], [leaf(4, 3)]),
    "eigh": lambda: (lambda x: torch.linalg.eigh(x.sin() + x.sin().T)[0].sin(), [leaf(4, 4)]),
    "lu_factor": lambda: (lambda x: torch.linalg.lu_factor(x.sin() + 3 * eye(4))[0].sin(), [leaf(4, 4)]),
    "slogdet": lambda: (lambda x: torch.linalg.slogdet(x.sin() + 3 * eye(4))[1].sin(), [leaf(4, 4)]),
    "foreach": lambda: (
        lambda x, y: torch._foreach_mul(torch._foreach_sin([x, y]), torch._foreach_cos([y, x])),
        [leaf(3, 3), leaf(3, 3)],
    ),
    "embedding_bag": lambda: (
        lambda w, i: F.embedding_bag(i, w.sin()).cos(),
        [leaf(5, 4), torch.tensor([[1, 2], [2, 0]])],
    ),
    "cross_entropy": lambda: (
        lambda x, t: F.cross_entropy(x.sin(), t, label_smoothing=0.1),
        [leaf(5, 4), torch.tensor([1, 2, -100, 0, 1])],
    ),
    "lstm cell": lambda: (nn.LSTMCell(4, 5), [leaf(3, 4)]),
    "transformer layer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), [leaf(2, 4, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])
