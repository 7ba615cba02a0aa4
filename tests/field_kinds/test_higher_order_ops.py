"""Operators that take functions: control flow, scans, functorch transforms."""

from __future__ import annotations

import pytest
import torch
from steps import Case, leaf, run_case
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(
        x.sum() > 0, lambda x, w: (x.sin() @ w).exp(), lambda x, w: x.cos() @ w, (x.exp(), w.sin())
    ).sin()


def scanned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return scan(lambda carry, row: ((carry * row).sin(), (carry + row).cos()), w[0], x)[1].exp()


def scanned_together(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return associative_scan(lambda a, b: a * b, x.sin(), 0, combine_mode="generic").cos() @ w


def mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return map_rows(lambda row, w: (row * w[0]).sin(), x.exp(), w).cos()


def looped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (start, x @ w))[1].cos()


def two() -> list[torch.Tensor]:
    return [leaf(8, 8), leaf(8, 8)]


CASES: dict[str, Case] = {
    "cond": lambda: (branches, two()),
    "scan": lambda: (scanned, two()),
    "associative_scan": lambda: (scanned_together, two()),
    "map": lambda: (mapped, two()),
    "while_loop": lambda: (looped, two()),
    "grad": lambda: (lambda x, w: torch.func.grad(lambda t: (t @ w).sin().sum())(x) * x, two()),
    "vmap": lambda: (lambda x, w: torch.func.vmap(lambda t: (t @ w).sin())(x).exp(), two()),
    "jvp": lambda: (lambda x, w: torch.func.jvp(lambda t: (t @ w).sin(), (x,), (w,))[1].exp(), two()),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    run_case(name, CASES[name])
