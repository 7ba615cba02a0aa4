"""Peak rates and memory bandwidths of common devices, each row with its source.

Rates are the *dense* rates of the units that matrix products run on (tensor or matrix cores where the
device has them for that type), since products are what the FLOP counter counts.  Vendors' sheets since
Ampere lead with rates under 2:4 sparsity; those are halved here.  A rate that a sheet does not give is
None: the device has no unit for the type, and the work is taken to run at the float32 rate.

These are ceilings, and no kernel reaches them.  A plan depends on ratios of costs only, and those are
what the ceilings approximate; where that is too coarse, measure (a profiled cost model).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from optpart.units import Microseconds

# Which rate a tensor's dtype is computed at; every other dtype (wide integers) runs at float32's.
_RATE = {"float64": "fp64", "float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16"}
_RATE |= {"int8": "int8", "uint8": "int8", "complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}


@dataclass(frozen=True, slots=True)
class Device:
    """One row: ``bandwidth`` in GB/s (10**9 bytes), rates in TFLOP/s (TOP/s for ``int8``), None = no such unit.

    ``reported`` is a pattern of what ``torch.cuda.get_device_name`` says; ``source`` is where the numbers are from.
    """

    name: str
    bandwidth: float
    fp64: float
    fp32: float
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    reported: str = ""
    source: str = ""

    def peak(self, dtype: str) -> float:
        """FLOP/s for tensors of ``dtype`` ("float32", ..., or "tf32": float32 tensors on TF32 units).

        FLOP counters take a complex multiply-add for two operations; it is eight, so complex types
        get a quarter of the real rate.
        """
        rate: float | None = getattr(self, "fp8" if dtype.startswith("float8") else _RATE.get(dtype, "fp32"))
        return (self.fp32 if rate is None else rate) * 1e12 / (4 if dtype.startswith("complex") else 1)

    def key(self) -> str:
        """The row's numbers as text, for cache keys."""
        return repr(astuple(self)[:9])


_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_AMPERE = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_MI300X = (
    "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
)

DEVICES: tuple[Device, ...] = (
    # Assumed, not any one product: 2 cores x 2.5 GHz x 32 FLOP a cycle (AVX2: 2 FMA units x 8 floats x 2),
    # fed by one channel of DDR4-3200 (3,200 MT/s x 8 bytes).
    Device("cpu-2core", 25.6, fp64=0.08, fp32=0.16, source="assumed: 2 cores, 2.5 GHz, AVX2, one DDR4-3200 channel"),
    Device("v100", 900, 7.8, 15.7, None, 125, None, None, None, r"V100",
           "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"),
    Device("a100-40gb", 1555, 19.5, 19.5, 156, 312, 312, None, 624, r"A100.*40GB", _AMPERE),
    # The SXM module; the PCIe card of 80 GB has 1,935 GB/s.
    Device("a100-80gb", 2039, 19.5, 19.5, 156, 312, 312, None, 624, r"A100", _AMPERE),
    # float64 on A10G, L4 and RTX 4090: 1/64 of float32 (CUDA C++ Programming Guide, arithmetic throughput, 8.6 and 8.9).
    Device("a10g", 600, 0.49, 31.5, 35, 70, 70, None, 140, r"\bA10G\b",
           "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"),
    Device("l4", 300, 0.47, 30.3, 60, 121, 121, 242.5, 242.5, r"\bL4\b", _ADA),
    Device("rtx4090", 1008, 1.29, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6, r"RTX 4090$", _ADA),
    Device("h100-pcie", 2000, 51, 51, 378, 756.5, 756.5, 1513, 1513, r"H100 PCIe", _HOPPER),
    Device("h100-sxm", 3350, 67, 67, 494.5, 989.5, 989.5, 1979, 1979, r"H100", _HOPPER),
    Device("h200", 4800, 67, 67, 494.5, 989.5, 989.5, 1979, 1979, r"\bH200\b",
           "https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/hpc-datasheet-sc23-h200"),
    Device("b200", 8000, 40, 80, 1100, 2250, 2250, 4500, 4500, r"\bG?B200\b",
           "https://resources.nvidia.com/en-us-blackwell-architecture"),
    Device("mi300x", 5300, 163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9, r"MI300X", _MI300X),
)  # fmt: skip

ALIASES = {"a100": "a100-80gb", "h100": "h100-sxm"}
ASSUMED_GPU = "h100-sxm"


def get_device(name: str) -> Device:
    """The row called ``name``: "h100-sxm", an alias ("h100"), or a torch device ("cpu", "cuda", "cuda:0").

    Raises:
        ValueError: there is no such row; the message lists the rows and the closest name.
    """
    given = name.lower()
    kind = given.partition(":")[0]
    if kind in ("cpu", "cuda", "meta"):
        return default_device(kind)
    rows = {row.name: row for row in DEVICES}
    if (row := rows.get(ALIASES.get(given, given))) is None:
        raise unknown_name("device", name, (*rows, *ALIASES, "cpu", "cuda", "here"))
    return row


def default_device(device_type: str) -> Device:
    """The row that a graph on this torch device type is priced with.

    "cpu" is "cpu-2core".  "cuda" is the card that torch reports, if there is one and it has a row.  A card
    without a row, a machine without a card, and every other type ("meta", "xpu", ...) get the H100.
    """
    if device_type == "cpu":
        return DEVICES[0]
    if device_type == "cuda":
        import torch

        if torch.cuda.is_available():
            reported = torch.cuda.get_device_name()
            for row in DEVICES:
                if row.reported and re.search(row.reported, reported):
                    return row
    return next(row for row in DEVICES if row.name == ASSUMED_GPU)


def device_rows(more: Iterable[Device] = ()) -> list[dict[str, str | float | None]]:
    """The table, and ``more`` rows, for printing or JSON: one dict a device, units in the keys."""
    rates = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    return [
        {"device": row.name}
        | {f"{rate}_tflops": getattr(row, rate) for rate in rates}
        | {"bandwidth_gb_per_s": row.bandwidth, "source": row.source}
        for row in (*DEVICES, *more)
    ]


def whole_nanoseconds(seconds: float) -> Microseconds:
    """A time in microseconds that is a whole number of nanoseconds, and at least one unless it is zero.

    Whole, so that sums and differences of costs can be taken exactly in integers; at least one, so
    that no work is free.
    """
    return Microseconds(max(round(seconds * 1e9), 1) / 1000 if seconds > 0 else 0.0)


def unknown_name(what: str, given: str, accepted: Iterable[str]) -> ValueError:
    """The error for a name that is none of ``accepted``, with the closest one."""
    names = list(accepted)
    close = difflib.get_close_matches(given.lower(), names, 1, 0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return ValueError(f"no {what} is called {given!r}{hint}; accepted: {', '.join(names)}")
