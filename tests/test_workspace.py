"""Workspaces of calls: exact, measured only where they count, without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from made_calls import Losses, aten, mm, signature, zoo_graph
from torch import Tensor

from optpart import torch_private as tp
from optpart.cost import workspace
from optpart.cost.cache import Cache
from optpart.cost.inputs import make_call, real_calls
from optpart.cost.model import build_problem
from optpart.cost.workspace import Footprint, footprints, measure, with_measured_memory
from optpart.graph import Signature
from optpart.liveness import resident_bytes, simulate
from optpart.measuring import measured_peak
from optpart.partitioner import Partitioner
from optpart.settings import Settings
from optpart.units import Bytes


@torch.library.custom_op("optpart_tests::scratch", mutates_args=())
def scratch(x: Tensor, before: int, after: int, storage: int) -> Tensor:
    """Bytes by construction: ``before`` freed before the output is allocated, ``after`` allocated beside it."""
    del_me = torch.empty(before, dtype=torch.uint8)
    del del_me
    out = torch.empty(storage, dtype=torch.uint8)
    torch.empty(after, dtype=torch.uint8)
    return out[: x.numel()]


@pytest.mark.parametrize(
    ("before", "after", "storage", "expected"),
    [
        (0, 0, 64, Footprint(Bytes(0), (Bytes(64),))),
        (0, 4096, 64, Footprint(Bytes(4096), (Bytes(64),))),
        (4096, 0, 64, Footprint(Bytes(4032), (Bytes(64),))),  # scratch and output are never there together
        (512, 4096, 64, Footprint(Bytes(4096), (Bytes(64),))),
        (100, 0, 1024, Footprint(Bytes(0), (Bytes(1024),))),
    ],
)
def test_footprint_of_a_call_that_is_known_byte_by_byte(
    before: int, after: int, storage: int, expected: Footprint
) -> None:
    call = signature(torch.ops.optpart_tests.scratch.default, torch.ones(64), before, after, storage)
    assert measure((call,), custom=True) == {call: expected}
    assert "custom operator" in str(measure((call,))[call])


def kernels() -> Iterator[Signature]:
    x, weight = torch.ones(2, 8, 16, 16), torch.ones(8, 8, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    yield signature(aten.convolution.default, x, weight, None, *shape)
    yield signature(aten.convolution_backward.default, x, x, weight, [8], *shape, [True] * 3)
    y, one = torch.ones(32, 64), torch.ones(32, 1)
    yield signature(aten.native_layer_norm_backward.default, y, y, [64], one, one, y[0], y[0], [True] * 3)
    q = torch.ones(1, 2, 64, 16)
    attention = aten._scaled_dot_product_flash_attention_for_cpu
    yield signature(attention.default, q, q, q)
    yield signature(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default, q, q, q, q, q, q[..., 0], 0.0, False
    )
    yield signature(aten.add.Tensor, torch.ones(1000, dtype=torch.int64), torch.ones(1000))
    yield signature(aten.copy_.default, y, y)


@pytest.mark.parametrize("call", list(kernels()), ids=lambda call: call.target)
def test_workspace_of_kernels_is_what_the_allocator_says(call: Signature) -> None:
    with real_calls():
        prepared = make_call(call)
        prepared()
        kept: list[Any] = []
        highest = measured_peak(lambda: kept.append(prepared()))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tp.tree_leaves(kept)}
    for t in tp.tree_leaves((prepared.args, dict(prepared.kwargs))):
        if isinstance(t, Tensor):
            storages.pop(t.untyped_storage().data_ptr(), None)
    assert workspace.workspace(call) == highest - sum(storages.values())


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_predicted_peak_is_the_measured_one(autocast: bool) -> None:
    torch.manual_seed(0)
    model, x = Losses(), torch.randn(4, 3, 16, 16)
    partitioner = Partitioner(memory_budget=10**9, on_failure="raise")
    compiled = tp.compile_fresh(model, tp.aot_eager_backend(partitioner))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = compiled(x)
        loss.backward()

    step()
    model.zero_grad(set_to_none=True)
    measured = measured_peak(step)
    (found,) = partitioner.partitions
    assert found.problem is not None
    assert found.result is not None
    assert found.result.plan is not None
    assert any(found.problem.workspace)
    assert simulate(found.problem, found.result.plan).peak_bytes - resident_bytes(found.problem) == measured


def test_only_a_budget_has_workspaces_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo_graph()
    with_none = build_problem(graph)
    assert not any(with_none.workspace)
    assert with_none.graph is graph
    with_some = build_problem(graph, measure_memory=True)
    assert any(with_some.workspace)
    assert with_some.runtime == with_none.runtime
    assert all(a.nbytes <= b.nbytes for a, b in zip(graph.values, with_some.graph.values))
    assert [s.measure_memory for s in (Settings(), Settings(memory_budget=0.5))] == [False, True]
    assert not Settings(memory_budget=0.5, workspace="none").measure_memory
    with pytest.raises(ValueError, match=r"workspace='all'.*'measured' or 'none'"):
        Settings(workspace="all")  # type: ignore[arg-type]


def test_random_ops_need_their_generator_once_more() -> None:
    problem = build_problem(zoo_graph())
    found = with_measured_memory(problem, lambda calls: {s: Footprint(Bytes(7), ()) for s in calls})
    states = [op for op in problem.graph.ops if op.rng_state is not None]
    assert states
    for op in problem.graph.ops:
        state = 0 if op.rng_state is None else problem.graph.values[op.rng_state].nbytes
        assert (found.workspace[op.id], found.aside(op.id)) == (7, state)


def test_what_takes_too_long_is_not_measured(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    small, large = mm(2), mm(64)
    footprints((small,), cache)
    found = footprints((small, large), cache, limit=0.0)
    assert isinstance(found[small], Footprint)  # known already
    assert "measuring would take about" in str(found[large])
    problem = build_problem(zoo_graph())
    with caplog.at_level("INFO"):
        assert with_measured_memory(problem, lambda calls: dict.fromkeys(calls, "no time")) == problem
    assert "no measured workspace for some calls: no time" in caplog.text


def test_the_users_profiler_goes_on() -> None:
    with torch.profiler.profile(profile_memory=True) as prof:
        found = measure((mm(4),))
        torch.ones(3).sin()
    assert "profiler is running" in str(list(found.values()))
    assert "aten::sin" in {event.key for event in prof.key_averages()}
