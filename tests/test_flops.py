"""FLOPs: exact numbers on small signatures, torch's own count on a real step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from written_calls import Block, attention, call, mm, recorded, spec

from optpart.cost.flops import SAME_AS, count_flops
from optpart.graph import Signature


def test_flops_of_products() -> None:
    assert count_flops(mm(3, 5, 7)) == 2 * 3 * 5 * 7
    a, b, c = spec(4, 3, 5), spec(4, 5, 7), spec(4, 3, 7)
    assert count_flops(call("bmm.default", a, b, out=c)) == 2 * 4 * 3 * 5 * 7
    assert count_flops(call("baddbmm.default", c, a, b, out=c)) == 2 * 4 * 3 * 5 * 7
    assert count_flops(call("addmm.default", spec(7), spec(3, 5), spec(5, 7), out=spec(3, 7))) == 2 * 3 * 5 * 7
    assert (
        count_flops(call("_int_mm.default", spec(3, 5, dtype="int8"), spec(5, 7, dtype="int8"), out=spec(3, 7))) == 210
    )
    assert count_flops(call("_grouped_mm.default", spec(6, 5), spec(4, 5, 7), out=spec(6, 7))) == 2 * 6 * 5 * 7
    assert count_flops(call("_grouped_mm.default", a, b, out=c)) == 2 * 4 * 3 * 5 * 7


def convolution(groups: int, mask: tuple[bool, bool, bool] = (True, True, True)) -> tuple[Signature, Signature]:
    """A 3x3 convolution [2, 8, 10, 10] -> [2, 16, 10, 10], and its backward."""
    x, w, y = spec(2, 8, 10, 10), spec(16, 8 // groups, 3, 3), spec(2, 16, 10, 10)
    how = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    grads = tuple(s if wanted else None for s, wanted in zip((x, w, spec(16)), mask, strict=True))
    return (
        call("convolution.default", x, w, spec(16), *how, out=y),
        call("convolution_backward.default", y, x, w, (16,), *how, mask, out=grads),
    )


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_flops_of_convolutions(groups: int) -> None:
    forward, backward = convolution(groups)
    macs = 2 * 16 * 100 * (8 // groups) * 9
    assert count_flops(forward) == 2 * macs
    assert count_flops(backward) == 4 * macs
    assert count_flops(convolution(groups, (True, False, True))[1]) == 2 * macs
    assert count_flops(convolution(groups, (False, True, False))[1]) == 2 * macs


@pytest.mark.parametrize(
    "op",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    ],
)
def test_flops_of_attention(op: str) -> None:
    forward, backward = attention(op, 2, 3, 8, 16, 4)
    assert count_flops(forward) == 4 * 2 * 3 * 8 * 16 * 4
    assert count_flops(backward) == 10 * 2 * 3 * 8 * 16 * 4


def test_every_operator_named_in_same_as_exists() -> None:
    for name, registered in SAME_AS.items():
        assert getattr(torch.ops.aten, registered.removeprefix("aten.")) in flop_registry
        assert hasattr(torch.ops.aten, name.removeprefix("aten."))


def test_flops_equal_torchs_count_of_a_training_step() -> None:
    torch.manual_seed(0)
    block, x = Block(8), torch.randn(2, 6, 8, requires_grad=True)
    signatures = recorded(lambda: block(x).backward())
    with FlopCounterMode(display=False) as counter:
        block(x).backward()
    counts = [count_flops(s) for s in signatures]
    assert sum(c or 0 for c in counts) == counter.get_total_flops() > 0
    assert {s.target.split(".")[1] for s, c in zip(signatures, counts, strict=True) if c} == {
        str(op).split(".")[1] for op in counter.get_flop_counts()["Global"]
    }


def test_attention_on_the_cpu_is_counted_though_torch_counts_none() -> None:
    q = torch.randn(2, 3, 8, 4, requires_grad=True)
    signatures = recorded(
        lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    )
    counts = {s.target: c for s in signatures if (c := count_flops(s))}
    assert counts == {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": 4 * 2 * 3 * 8 * 8 * 4,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 10 * 2 * 3 * 8 * 8 * 4,
    }


def test_calls_without_a_formula_count_none() -> None:
    x = spec(3, 5)
    for target in ("aten.gelu.default", "mylib.fused_norm.default", "some_higher_order_op", "no.such.op", "7"):
        assert count_flops(Signature(target, (x,), (), (x,))) is None


def test_higher_order_operators_of_the_registry_are_counted() -> None:
    q = spec(2, 3, 8, 4)
    for target in ("flex_attention", "higher_order.flex_attention"):
        assert count_flops(Signature(target, (q, q, q), (), (q, spec(2, 3, 8)))) == 4 * 2 * 3 * 8 * 8 * 4


def test_a_formula_that_fails_is_reported_and_not_counted() -> None:
    broken = call("mm.default", spec(3, 5), spec(6, 7), out=spec(3, 7))
    with pytest.warns(RuntimeWarning, match="aten.mm.default failed"):
        assert count_flops(broken) is None
