"""What a call takes, as measured; measuring leaves no trace."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from made_calls import aten, mm, signature, spec
from torch import Tensor

from optpart import torch_private as tp
from optpart.cost import profiled, timing
from optpart.cost.cache import Cache
from optpart.cost.inputs import Call, make_call, real_calls
from optpart.cost.model import get_cost_model
from optpart.cost.profiled import Profiled
from optpart.cost.timing import measure_time
from optpart.cost.workspace import measure
from optpart.graph import Signature

# --------------------------------------------------------------------------- measuring leaves no trace


def random_calls() -> tuple[Signature, ...]:
    x = torch.ones(64)
    return (
        signature(aten.native_dropout.default, x, 0.5, True),
        signature(aten.bernoulli.default, x * 0.5),
        signature(aten.rand_like.default, x),
        signature(aten.add_.Tensor, x, x),
    )


@pytest.mark.parametrize("work", [measure, lambda calls: [measure_time(s) for s in calls]], ids=["memory", "time"])
def test_random_numbers_stay_the_users(work: Callable[[Any], Any]) -> None:
    calls = random_calls()
    torch.manual_seed(3)
    torch.rand(5)
    state = torch.get_rng_state()
    work(calls)
    with tp.FakeTensorMode():  # what a partitioner runs in
        work(calls)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("work", [measure, lambda calls: [measure_time(s) for s in calls]], ids=["memory", "time"])
def test_no_tensor_is_left(work: Callable[[Any], Any]) -> None:
    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(found), Tensor) for found in gc.get_objects())

    calls = (*random_calls(), mm(8))
    before = alive()
    work(calls)
    measure((Signature("aten.mm.default", ()),))  # fails halfway
    assert alive() == before


def test_mutating_calls_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def seconds(call: Call) -> float:
        seen.append(float(call.args[0][0]))
        call()
        return 1.0

    monkeypatch.setattr(timing, "_seconds_on_cpu", seconds)
    call = signature(aten.mul_.Tensor, torch.ones(16), torch.ones(16))
    with real_calls():
        assert make_call(call).mutates
    assert measure_time(call).repeats == timing.LEAST_SLOW
    assert len(seen) == timing.LEAST_SLOW
    assert len(set(seen)) == 1


# ----------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("times", "repeats", "median"),
    [
        ([1e-3] * 99, timing.LEAST, 1000.0),
        ([1e-3, 2e-3, 1.5e-3] * 99, timing.MOST, 1500.0),
        ([1e-3, 9.0, 1e-3, 1e-3, 1e-3, 1e-3], 3, 1000.0),  # one disturbed repeat used up the seconds
        ([0.2] * 99, timing.LEAST_SLOW, 200_000.0),
        ([0.0] * 99, timing.LEAST, 0.001),  # below the clock's resolution, but not free
    ],
)
def test_when_repeats_end(times: list[float], repeats: int, median: float) -> None:
    found = timing.repeat(iter(times))
    assert (found.repeats, found.time) == (repeats, median)


def test_the_error_is_that_of_the_median() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = 1 + 0.05 * torch.randn(2000, 30, generator=generator, dtype=torch.float64)
    errors = [timing._relative_error(row.tolist()) for row in samples]
    true = float(samples.quantile(0.5, dim=1).std())
    assert 0.8 * true < sum(errors) / len(errors) < 1.2 * true


def test_a_time_is_kept_and_shared(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [mm(4), mm(5)]
    first = Profiled(cache)
    times = [first.timing(s) for s in calls]
    assert all(t.time > 0 and timing.LEAST_SLOW <= t.repeats <= timing.MOST and not t.reason for t in times)
    monkeypatch.setattr(profiled, "measure_time", lambda s, **_: pytest.fail("measured again"))
    assert [Profiled(cache).timing(s) for s in calls] == times


def test_what_cannot_be_timed_is_an_estimate_and_not_kept(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    x = spec(torch.ones(256, 256))
    call = Signature("some_higher_order_op", (x,), (), (x,))
    found = Profiled(cache).timing(call)
    assert found.repeats == 0
    assert found.time == get_cost_model("roofline").runtime(call)
    assert "higher-order" in found.reason
    assert found.reason in caplog.text
    assert cache.rows() == []
