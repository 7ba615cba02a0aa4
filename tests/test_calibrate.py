"""The device "here": what is measured, how it is kept, listed and used.  How fast this machine is, is no test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optpart.cli import main
from optpart.cost import calibrate as calibration
from optpart.cost.cache import Cache, default_cache
from optpart.cost.calibrate import calibrate, calibrations, device_here
from optpart.cost.machine import environment
from optpart.cost.model import get_cost_model
from optpart.cost.roofline import Roofline
from optpart.graph import Signature, TensorSpec


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty one, which is the default one too."""
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path))
    return default_cache()


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> list[Signature]:
    """Every call takes a second."""
    calls: list[Signature] = []

    def fastest(call: Signature, repeats: int) -> float:
        assert repeats == calibration.REPEATS
        calls.append(call)
        return 1.0

    monkeypatch.setattr(calibration, "fastest", fastest)
    return calls


def test_ceilings_are_work_over_time(cache: Cache, fastest: list[Signature]) -> None:
    told: list[str] = []
    found = calibrate("cpu", tell=told.append)
    assert found.bandwidth == 2 * 4 * calibration.COPIED["cpu"] / 1e9  # float32, read once and written once
    assert found.fp32 == found.fp64 == found.bf16 == 2 * calibration.SIDE["cpu"] ** 3 / 1e12
    assert (found.name, found.fp16) == ("here", None)
    assert environment("cpu") in found.source
    assert len(told) == len(fastest) == 4


def test_small_calls_that_are_really_run(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "COPIED", {"cpu": 1000})
    monkeypatch.setattr(calibration, "SIDE", {"cpu": 8})
    found = calibrate("cpu")
    assert min(found.bandwidth, found.fp64, found.fp32, found.bf16 or 0) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="'here' is the GPU")
def test_roofline_here(cache: Cache, fastest: list[Signature], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"'here' is not calibrated \(torch .*\); 'optpart devices --calibrate' does it"
    ):
        get_cost_model("roofline:here")
    found = calibrate()
    model = get_cost_model("roofline:here")
    assert model == Roofline(found) == Roofline(device_here())
    assert model.name == "roofline:here"
    x = TensorSpec((10**6,), (1,), "float32", "cpu")
    assert model.runtime(Signature("aten.neg.default", (x,), (), (x,))) == round(8e6 / found.bandwidth) / 1000
    monkeypatch.setattr(calibration, "fastest", lambda *_: 0.5)
    calibrate()  # once more: the newer one holds, and plans by the older one are not served
    assert get_cost_model("roofline:here").key() != model.key()
    assert device_here().bandwidth == 2 * found.bandwidth


def test_a_calibration_is_of_a_number_of_threads(cache: Cache, fastest: list[Signature]) -> None:
    threads = torch.get_num_threads()
    calibrate("cpu")
    try:
        torch.set_num_threads(threads + 1)
        with pytest.raises(ValueError, match=f"{threads + 1} threads"):
            device_here()
        calibrate("cpu")
    finally:
        torch.set_num_threads(threads)
    assert [f"{n} threads" in row.source for n, row in zip((threads, threads + 1), calibrations())] == [True, True]


def test_the_command(cache: Cache, fastest: list[Signature], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    assert "here" not in [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert main(["devices", "--calibrate"]) == 0
    captured = capfd.readouterr()
    assert "measuring a copy of 256 MiB" in captured.err
    *others, here = captured.out.splitlines()
    assert here.startswith("here        0.5369 GB/s; TFLOP/s: fp64 0.002147, fp32 0.002147")
    assert here.endswith(f"measured on {environment('cpu')}")
    assert all("https://" in line or "assumed" in line for line in others)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device(cache: Cache) -> None:
    with pytest.raises(RuntimeError, match="no CUDA device here to measure 'cuda' on"):
        calibrate("cuda")
