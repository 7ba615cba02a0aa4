"""The table of devices: complete, consistent, chosen by the card that is there."""

from __future__ import annotations

import pytest
import torch
from written_calls import H100

from optpart.cost import devices
from optpart.cost.devices import DEVICES, default_device, device_rows, get_device


def test_rows_are_complete_and_consistent() -> None:
    assert len({row.name for row in DEVICES}) == len(DEVICES)
    for row in DEVICES:
        assert row.source
        assert row.bandwidth > 0
        assert 0 < row.fp64 <= row.fp32
        assert row.peak("float64") <= row.peak("float32") <= row.peak("tf32") <= row.peak("float16")
        assert row.peak("complex64") == row.peak("float32") / 4
        assert row.peak("int64") == row.peak("float32")
    assert get_device("v100").peak("bfloat16") == 15.7e12  # no such unit: at the float32 rate
    assert H100.peak("float8_e4m3fn") == H100.peak("float8_e5m2") == 1979e12
    assert get_device("cpu-2core").peak("float32") == 2 * 2.5e9 * 32


@pytest.mark.parametrize(
    ("reported", "row"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "h100-sxm"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "h100-sxm"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_the_card_that_torch_reports_chooses_the_row(monkeypatch: pytest.MonkeyPatch, reported: str, row: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: reported)
    assert get_device("cuda:0") == default_device("cuda") == get_device(row)
    assert default_device("cpu").name == "cpu-2core"


def test_without_a_card_the_h100_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {default_device(kind).name for kind in ("cuda", "meta", "xpu")} == {devices.ASSUMED_GPU}


def test_device_rows_are_printable() -> None:
    rows = device_rows()
    assert [row["device"] for row in rows] == [row.name for row in DEVICES]
    assert rows[-1]["bf16_tflops"] == 1307.4
    assert all(set(row) == set(rows[0]) for row in rows)
