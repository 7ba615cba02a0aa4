"""``optpart profile``: what it measures, keeps, writes and takes over.  How long anything takes is no test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from optpart.cli import main
from optpart.cost import profiled
from optpart.cost.cache import default_cache
from optpart.cost.machine import environment
from optpart.cost.profiled import TIME, load_profile
from optpart.cost.timing import Timing
from optpart.graph import Signature
from optpart.units import Microseconds

MODEL = ("mlp", "--preset", "tiny")


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Signature]:
    """A cache of its own; the calls that are timed, in order, each of which takes a microsecond more than the one before."""
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "cache"))
    calls: list[Signature] = []

    def measure_time(signature: Signature, *, custom: bool = False) -> Timing:
        assert custom  # a profile is asked for: custom operators run
        calls.append(signature)
        return Timing(Microseconds(float(len(calls))), 0.01, 5)

    monkeypatch.setattr(profiled, "measure_time", measure_time)
    return calls


def run(capfd: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["profile", *MODEL, "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_each_distinct_call_is_timed_once(capfd: pytest.CaptureFixture[str], measured: list[Signature]) -> None:
    found = run(capfd)
    n = len(measured)
    assert found["distinct"] == found["measured_now"] == n == len(set(measured))
    assert found["environments"] == [environment("cpu")]
    assert found["config"]["preset"] == "tiny"
    assert sum(k["distinct"] for k in found["operators"]) == n < sum(k["ops"] for k in found["operators"])
    times = [k["microseconds"] for k in found["operators"]]
    assert times == sorted(times, reverse=True)
    assert sum(times) == found["microseconds"]
    assert len(default_cache().rows(TIME)) == n
    again = run(capfd)
    assert len(measured) == n
    assert again == found | {"measured_now": 0}


def test_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *MODEL]) == 0
    out = capfd.readouterr().out
    assert out.startswith("mlp: ")
    assert f"on {environment('cpu')}" in out
    assert "median 1.0%, largest 1.0%" in out
    assert "aten.addmm.default" in out


def test_interrupted_and_taken_up_again(
    capfd: pytest.CaptureFixture[str], measured: list[Signature], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = profiled.measure_time

    def stop(signature: Signature, **keywords: Any) -> Timing:
        if len(measured) == 3:
            raise KeyboardInterrupt
        return timed(signature, **keywords)

    monkeypatch.setattr(profiled, "measure_time", stop)
    assert main(["profile", *MODEL]) == 130
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "what is measured is kept" in captured.err
    assert len(default_cache().rows(TIME)) == 3
    monkeypatch.setattr(profiled, "measure_time", timed)
    assert run(capfd)["measured_now"] == len(measured) - 3


def test_a_profile_plans_on_another_machine(
    capfd: pytest.CaptureFixture[str], measured: list[Signature], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "there.json"
    here = run(capfd, "--export", str(file))
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "another"))
    planned = ["plan", *MODEL, "--no-gradients", "--no-compare", "--json", "--cost-model", f"profiled:{file}"]
    assert main(planned) == 0
    assert json.loads(capfd.readouterr().out)["cost_model"] == "profiled:there.json"
    n = len(measured)
    assert run(capfd, "--import", str(file)) == here | {"measured_now": 0}  # the same kind of machine
    assert len(measured) == n


def test_a_profile_of_another_machine_is_not_taken_for_this_one(
    capfd: pytest.CaptureFixture[str], measured: list[Signature], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "there.json"
    run(capfd, "--export", str(file))
    rows = [replace(row, environment="torch 9 | cuda Z9000") for row in load_profile(str(file)).profile.rows]
    file.write_text(json.dumps(profiled.Profile(tuple(rows)).to_json()))
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "another"))
    assert main(["profile", *MODEL, "--import", str(file), "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["measured_now"] == len(set(measured))
    assert (
        f"measured on torch 9 | cuda Z9000: another machine; to plan for it, use --cost-model profiled:{file}"
        in captured.err
    )
    assert {row.environment for row in default_cache().rows()} == {environment("cpu"), "torch 9 | cuda Z9000"}


def test_what_cannot_be_run_is_an_estimate_and_says_so(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = profiled.measure_time

    def fail(signature: Signature, **keywords: Any) -> Timing:
        if signature.target == "aten.relu.default":
            raise profiled.Unrunnable("it rained")
        return timed(signature, **keywords)

    monkeypatch.setattr(profiled, "measure_time", fail)
    file = tmp_path / "there.json"
    found = run(capfd, "--export", str(file))
    assert found["estimated"] == [{"operator": "aten.relu.default", "reason": "it rained"}]
    assert found["measured_now"] == found["distinct"] - 1
    assert main(["profile", *MODEL]) == 0
    assert "priced by roofline: it rained" in capfd.readouterr().out
    monkeypatch.setattr(profiled, "measure_time", timed)
    assert run(capfd, "--import", str(file))["measured_now"] == 1  # an estimate is not taken over as a measurement


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["profile", "gtp"], 2, "did you mean 'gpt'?"),
        (["profile", *MODEL, "--import", "no-such-file"], 2, "no profile in 'no-such-file'"),
        (["profile", *MODEL, "--export", "no/such/place"], 2, "cannot write no/such/place"),
        (["profile", *MODEL, "--device", "xpu"], 2, "device 'xpu': expected cpu, cuda, or cuda with a number"),
        pytest.param(
            *(["profile", *MODEL, "--device", "cuda"], 4, "no CUDA device here to measure 'cuda' on; import a profile"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_wrong_arguments(arguments: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert text in captured.err
