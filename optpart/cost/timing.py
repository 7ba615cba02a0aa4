"""Time of a call on the machine at hand, with inputs as in ``cost.inputs``.

    time = median over repeats after ``WARM_UP`` runs; repeats go on until

        standard error of the median  <  3 % of it        (at least 5 repeats)
        or 30 repeats, or 0.3 s                           (at least 3)

The standard error is 1.2533 * 1.4826 * MAD / sqrt(n): that of the median of n normal values, with the
spread estimated by the median absolute deviation, which a few disturbed repeats do not move.

* Caches are cold: a buffer of ``EVICT`` bytes is written before every repeat.  In a step other ops run
  between two runs of one, so their data is gone from the caches that are a core's own, and a pointwise op
  on warm inputs looks three to five times as fast as it is there.  (Seven models of the zoo, one busy
  core: the ops' times added up to 55-76 % of a step's CPU time on warm caches, to 77-102 % on cold ones.)
* What is timed is the call from Python, as the graphs of aot_eager make it: an op that launches no
  kernel takes a few microseconds.
* On CUDA the time is between two events around the call, of which the host's share is part where the
  device waits for it.
* A call that writes to its arguments gets fresh ones for every repeat.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from optpart.cost.inputs import Call, Unrunnable, device_of_call, make_call, real_calls
from optpart.graph import Signature
from optpart.units import Microseconds

T = TypeVar("T")

WARM_UP = 2
LEAST, MOST = 5, 30
LEAST_SLOW = 3  # of a call that uses up its seconds before
RELATIVE_ERROR = 0.03
SECONDS = 0.3
EVICT = {"cpu": 32 << 20, "cuda": 256 << 20}


@dataclass(frozen=True, slots=True)
class Timing:
    """A call's median time, the relative standard error of it, and of how many repeats.

    ``reason`` says why the call was not timed; the time is an estimate then, of 0 repeats.
    """

    time: Microseconds
    error: float
    repeats: int
    reason: str = ""


def measure_time(signature: Signature, *, custom: bool = False) -> Timing:
    """Time one call now; a custom operator's only if ``custom`` says so.

    Raises:
        Unrunnable: the call cannot be run here; the message says why.
    """
    return _run(signature, custom, repeat)


def fastest(signature: Signature, repeats: int) -> float:
    """Seconds of the fastest of some runs of a call, after ``WARM_UP`` others.

    Raises:
        Unrunnable: the call cannot be run here; the message says why.
    """
    return _run(signature, False, lambda runs: min(itertools.islice(runs, repeats)))


def _run(signature: Signature, custom: bool, take: Callable[[Iterator[float]], T]) -> T:
    """What ``take`` makes of the seconds of one warm run after another."""
    device = device_of_call(signature)
    with real_calls((device,)):
        try:
            call = make_call(signature, custom=custom)
            for _ in range(WARM_UP):
                call()
            return take(_runs(call, signature, device))
        except Unrunnable:
            raise
        except Exception as error:  # a call with made-up inputs may fail in any way
            raise Unrunnable(f"{signature.target} failed on made-up inputs: {error!r}") from error


def _runs(call: Call, signature: Signature, device: str) -> Iterator[float]:
    """The seconds of one run after another, without end."""
    import torch

    kind = device.partition(":")[0]
    evict = torch.empty(EVICT[kind], dtype=torch.uint8, device=device)
    seconds = _seconds_on_cuda if kind == "cuda" else _seconds_on_cpu
    while True:
        if call.mutates:  # never a custom operator
            call = make_call(signature)
        evict.fill_(1)
        yield seconds(call)


def repeat(seconds: Iterator[float]) -> Timing:
    """Draw times until their median is known well enough; see the module's docstring for the rule."""
    times: list[float] = []
    while len(times) < MOST:
        times.append(next(seconds))
        enough = len(times) >= LEAST and _relative_error(times) < RELATIVE_ERROR
        if enough or (len(times) >= LEAST_SLOW and math.fsum(times) > SECONDS):
            break
    nanoseconds = max(round(statistics.median(times) * 1e9), 1)
    return Timing(Microseconds(nanoseconds / 1000), _relative_error(times), len(times))


def _relative_error(times: list[float]) -> float:
    median = statistics.median(times)
    deviation = statistics.median(abs(t - median) for t in times)
    return 1.2533 * 1.4826 * deviation / math.sqrt(len(times)) / median if median > 0 else 0.0


def _seconds_on_cpu(call: Call) -> float:
    start = time.perf_counter()
    out = call()
    seconds = time.perf_counter() - start
    del out  # freeing the outputs belongs to their last reader
    return seconds


def _seconds_on_cuda(call: Call) -> float:
    import torch

    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
