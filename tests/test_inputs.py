"""Inputs that are made up: every call of a graph runs with them."""

from __future__ import annotations

import json

import pytest
import torch
from made_calls import aten, signature, spec, zoo_graph
from torch import Tensor

from optpart import torch_private as tp
from optpart.cost import workspace
from optpart.cost.cache import Cache
from optpart.cost.inputs import Unrunnable, make_call, real_calls
from optpart.cost.profiled import Profiled
from optpart.cost.timing import measure_time
from optpart.cost.workspace import footprints, measure
from optpart.graph import Signature, TensorSpec, signature_from_json, signature_to_json


def test_every_call_of_a_graph_runs_and_returns_what_the_graph_says() -> None:
    signatures = list(dict.fromkeys(op.signature for op in zoo_graph().ops))
    assert len(signatures) > 60
    with real_calls():
        for s in signatures:
            outputs = [t for t in tp.tree_leaves(make_call(s)()) if isinstance(t, Tensor)]
            found = [(o.shape, o.dtype) for o in map(spec, outputs)]
            assert found == [(o.shape, o.dtype) for o in s.outputs if o is not None], s.target
            assert all(o.isfinite().all() for o in outputs), s.target


def test_a_signature_from_json_makes_the_same_call() -> None:
    with real_calls():
        for s in dict.fromkeys(op.signature for op in zoo_graph().ops):
            again = signature_from_json(json.loads(json.dumps(signature_to_json(s))))
            assert again == s
            first, second = make_call(s), make_call(again)
            for a, b in zip(tp.tree_leaves((first.args, first.kwargs)), tp.tree_leaves((second.args, second.kwargs))):
                assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_strides_and_layouts_are_those_of_the_signature() -> None:
    x = torch.ones(4, 6, 2)
    tensors = (x.mT, x[:, ::2], x[:1].expand(5, -1, -1), x.to(memory_format=torch.preserve_format)[..., 0], x[:0])
    with real_calls():
        for tensor in tensors:
            (made,) = make_call(signature(aten.neg.default, tensor)).args
            assert spec(made) == spec(tensor)


def test_values_are_spread_and_within_their_limits() -> None:
    table, tokens = torch.ones(50, 3), torch.zeros(400, dtype=torch.int64)
    mask = torch.ones(50, dtype=torch.bool)
    with real_calls():
        weight, indices = make_call(signature(aten.embedding.default, table, tokens)).args
        assert (int(indices.min()), int(indices.max())) == (0, 49)
        assert weight.unique().numel() > 100
        _, (first, none, last) = make_call(
            signature(aten.index.Tensor, torch.ones(9, 2, 3), [tokens, None, tokens])
        ).args
        assert (int(first.max()), none, int(last.max())) == (8, None, 2)
        _, (mask, columns) = make_call(Signature("aten.index.Tensor", (spec(table), (spec(mask), spec(tokens))))).args
        assert 0.2 < mask.float().mean() < 0.8
        assert int(columns.max()) == 2
        (large,) = make_call(Signature("aten.neg.default", (spec(torch.empty(2**20 + 5)),))).args
        assert large.count_nonzero() == large.numel()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("triton_kernel_wrapper_functional", "no operator with a schema"),
        ("_operator.mul", "no operator with a schema"),
        ("aten.no_such_thing.default", "no operator with a schema"),
        ("_c10d_functional.all_reduce.default", "other processes"),
        ("aten.mm.default", "made-up inputs"),  # without its arguments
    ],
)
def test_what_cannot_be_run_says_why(target: str, reason: str) -> None:
    (found,) = measure((Signature(target, ()),)).values()
    assert isinstance(found, str)
    assert reason in found
    with pytest.raises(Unrunnable, match=reason):
        measure_time(Signature(target, ()))


def test_too_large_for_this_machine() -> None:
    huge = TensorSpec((2**30, 2**20), (2**20, 1), "float32", "cpu")
    with pytest.raises(Unrunnable, match=r"needs about 12288\.00 TiB on 'cpu'"):
        workspace.workspace(Signature("aten.neg.default", (huge,), (), (huge,)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named() -> None:
    x = TensorSpec((2, 2), (2, 1), "float32", "cuda:0")
    call = Signature("aten.mm.default", (x, x), (), (x,))
    with pytest.raises(RuntimeError, match="no CUDA device here to measure 'cuda:0' on; import a profile"):
        Profiled(Cache()).runtime(call)
    assert "no CUDA device" in str(footprints((call,), Cache())[call])
