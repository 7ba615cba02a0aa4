"""The row "here" of the device table: two ceilings, measured on the device at hand when that is asked for.

    bandwidth    = bytes read and written by a copy of one large tensor to another    / its time
    rate[dtype]  = 2 n^3 floating-point operations of a product of n x n matrices     / its time

Each time is that of the fastest of ``REPEATS`` runs: a ceiling is what nothing disturbed.  Types that are not in
``DTYPES`` run at the float32 rate, as everywhere.  A calibration holds for one ``machine.environment`` (the number of
threads is part of it) and is kept in the cache of measurements; ``roofline:here`` and its like are priced by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from optpart.cost.bytes import bytes_moved
from optpart.cost.cache import Cache, Row, default_cache
from optpart.cost.devices import Device, get_device
from optpart.cost.inputs import Unrunnable
from optpart.cost.machine import environment, present_device
from optpart.cost.timing import fastest
from optpart.graph import Signature, TensorSpec

HERE = "here"
CEILINGS = "ceilings 1"  # kind of measurement, and the version of the value's form
WHAT = Signature("optpart.ceilings")
REPEATS = 9
# Elements of the copied tensor (float32): 256 MiB and 1 GiB, far above any cache.  n of the product: tens of
# milliseconds on a core, and on a card of 50 TFLOP/s.
COPIED = {"cpu": 1 << 26, "cuda": 1 << 28}
SIDE = {"cpu": 1024, "cuda": 8192}
DTYPES = {
    "cpu": {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"},
    "cuda": {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"},
}

Tell = Callable[[str], Any]


def calibrate(device: str | None = None, *, tell: Tell = lambda _: None, cache: Cache | None = None) -> Device:
    """Measure the ceilings of a device ("cpu", "cuda:0"; by default the one of :func:`device_here`) and keep them.

    Raises:
        RuntimeError: there is no such device here, or a call cannot be run (too little memory).
    """
    device = device or present_device()
    kind, where = device.partition(":")[0], environment(device)
    tell(f"a copy of {4 * COPIED[kind] >> 20} MiB")
    found = {"bandwidth": _bandwidth(device, COPIED[kind])}
    for rate, dtype in DTYPES[kind].items():
        tell(f"a product of {SIDE[kind]} x {SIDE[kind]} matrices, {rate}")
        with _tf32(rate == "tf32"):
            found[rate] = _rate(device, SIDE[kind], dtype)
    (cache or default_cache()).replace([Row(CEILINGS, where, WHAT, found)])
    return _row(where, found)


def device_here(cache: Cache | None = None) -> Device:
    """The calibrated row of the first GPU, or of the CPU where there is none.

    Raises:
        ValueError: it is not calibrated.
    """
    where = environment(present_device())
    found = (cache or default_cache()).get(CEILINGS, where, (WHAT,))
    if not found:
        raise ValueError(f"device 'here' is not calibrated ({where}); 'optpart devices --calibrate' does it")
    return _row(where, found[WHAT])


def calibrations(cache: Cache | None = None) -> list[Device]:
    """All calibrations that are kept, of other numbers of threads too; no torch is needed to list them."""
    return [_row(row.environment, row.value) for row in (cache or default_cache()).rows(CEILINGS)]


def find_device(name: str) -> Device:
    """:func:`~optpart.cost.devices.get_device`, and "here".

    Raises:
        ValueError: there is no such row, or it is not calibrated.
    """
    return device_here() if name.lower() == HERE else get_device(name)


def _row(where: str, found: dict[str, float]) -> Device:
    return Device(HERE, **found, source=f"measured on {where}")  # type: ignore[arg-type]  # numbers by field


def _tensor(device: str, dtype: str, *shape: int) -> TensorSpec:
    strides = (shape[1], 1) if len(shape) == 2 else (1,)
    return TensorSpec(shape, strides, dtype, device)


def _bandwidth(device: str, elements: int) -> float:
    """GB/s."""
    x = _tensor(device, "float32", elements)
    copy = Signature("aten.copy_.default", (x, x), (), (x,))
    return bytes_moved(copy) / _seconds(copy) / 1e9


def _rate(device: str, n: int, dtype: str) -> float:
    """TFLOP/s."""
    x = _tensor(device, dtype, n, n)
    return 2 * n**3 / _seconds(Signature("aten.mm.default", (x, x), (), (x,))) / 1e12


def _seconds(call: Signature) -> float:
    try:
        return fastest(call, REPEATS)
    except Unrunnable as error:
        raise RuntimeError(f"no calibration: {error}") from error


@contextlib.contextmanager
def _tf32(on: bool) -> Iterator[None]:
    """Products of float32 matrices on TF32 units inside, if ``on``."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if on:
        matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        if on:
            matmul.fp32_precision = before
