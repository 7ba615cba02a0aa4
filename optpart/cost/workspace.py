r"""Memory of a call as the allocator sees it: what it needs while it runs, and what it leaves behind.

       highest ........ ______
                  _____/      \__             workspace = highest - level after the call
       after .... |              \______      level after the call: its outputs
              ____|

The simulator counts outputs from the start of the call on, so outputs + workspace is its highest level
exactly, also for a kernel that allocates its outputs late and its scratch early.

What the outputs really take is noted too.  It can be more than the graph says: ``mse_loss`` on the CPU
returns a scalar in the storage of the elementwise losses, and ``batch_norm`` of bfloat16 there returns its
statistics in float32, where fake tensors say bfloat16.

Measured in one call after one warm-up, so that what a library allocates once and keeps is left out:

* on the CPU from the profiler's allocation events, all calls in one session of it.  It sees what goes
  through PyTorch's allocator; a library's own ``malloc`` is seen by nobody, a measured peak included;
* on CUDA from the caching allocator's peak, which is reset.

No rule spares some calls the measuring: ``x * 2`` allocates 8 bytes for the number (and 4 more to convert
it), a product of mixed dtypes a converted copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optpart.cost.cache import Cache, default_cache
from optpart.cost.devices import default_device
from optpart.cost.inputs import Call, Unrunnable, device_of_call, make_call, real_calls
from optpart.cost.machine import environment, environments
from optpart.cost.roofline import Roofline
from optpart.graph import Signature
from optpart.problem import Problem
from optpart.units import Bytes, format_time

logger = logging.getLogger(__name__)

MEMORY = "memory 1"  # and the version of the value's form
LIMIT_SECONDS = 20.0
# For the estimate of the whole: a call's own cost (making it, and the profiler's share), and how many of its runs
# a measurement is worth (filling the inputs takes a few, warm-up and measuring one each; no machine reaches its roofline).
SECONDS_EACH, RUNS_EACH = 5e-3, 10


@dataclass(frozen=True, slots=True)
class Footprint:
    """``workspace``: freed again before the call returns.  ``held``: the storages that it returns, in order."""

    workspace: Bytes
    held: tuple[Bytes, ...]

    def to_json(self) -> list[Any]:
        return [self.workspace, list(self.held)]


def footprint_from_json(data: Sequence[Any]) -> Footprint:
    """The inverse of :meth:`Footprint.to_json`."""
    return Footprint(Bytes(data[0]), tuple(map(Bytes, data[1])))


Found = dict[Signature, Footprint | str]  # a string is the reason why there is none


def workspace(signature: Signature, *, custom: bool = False) -> Bytes:
    """The workspace of one call, measured now; a custom operator's only if ``custom`` says so.

    Raises:
        Unrunnable: the call cannot be run here; the message says why.
    """
    found = measure((signature,), custom=custom)[signature]
    if isinstance(found, str):
        raise Unrunnable(found)
    return found.workspace


def measure(signatures: Iterable[Signature], *, custom: bool = False) -> Found:
    """The footprint of each call, measured now, or the reason why there is none; ``custom`` as above."""
    distinct = list(dict.fromkeys(signatures))
    devices = {s: device_of_call(s) for s in distinct}
    on_cuda = {s for s in distinct if devices[s].startswith("cuda")}
    with real_calls(devices.values()):
        found = {s: _on_cuda(s, custom) for s in distinct if s in on_cuda}
        return found | _on_cpu([s for s in distinct if s not in on_cuda], custom)


def _on_cpu(signatures: Sequence[Signature], custom: bool) -> Found:
    from torch.profiler import ProfilerActivity, profile, record_function

    from optpart import torch_private as tp

    if not signatures:
        return {}
    if tp.profiler_running():
        return dict.fromkeys(signatures, "a profiler is running, and a second one would end it")
    found: Found = {}
    held: dict[Signature, tuple[Bytes, ...]] = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        for i, signature in enumerate(signatures):
            try:
                call = _warmed_up(signature, custom)
                with record_function(f"optpart {i}"):
                    out = call()
                held[signature] = _held(call, out)
                del out, call
            except Exception as error:  # a call with made-up inputs may fail in any way
                found[signature] = _reason(signature, error)
    events = tp.allocations_within(prof, "optpart ")
    for i, signature in enumerate(signatures):
        if signature not in found:
            level = highest = 0
            for nbytes in events[f"optpart {i}"]:
                level += nbytes
                highest = max(highest, level)
            found[signature] = Footprint(Bytes(highest - max(level, 0)), held[signature])
    return found


def _on_cuda(signature: Signature, custom: bool) -> Footprint | str:
    import torch

    try:
        call = _warmed_up(signature, custom)
        device = device_of_call(signature)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = call()
        torch.cuda.synchronize(device)
        highest, level = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        return Footprint(Bytes(highest - max(level, before)), _held(call, out))
    except Exception as error:  # as on the CPU
        return _reason(signature, error)


def _warmed_up(signature: Signature, custom: bool) -> Call:
    call = make_call(signature, custom=custom)
    call()
    return call


def _held(call: Call, out: Any) -> tuple[Bytes, ...]:
    """Bytes of the distinct storages of what a call returned, its arguments' left out."""
    import torch

    from optpart import torch_private as tp

    def storages(tree: Any) -> dict[int, Bytes]:
        found = (t.untyped_storage() for t in tp.tree_leaves(tree) if isinstance(t, torch.Tensor))
        return {storage.data_ptr(): Bytes(storage.nbytes()) for storage in found}

    given = storages((call.args, dict(call.kwargs)))
    return tuple(nbytes for pointer, nbytes in storages(out).items() if pointer not in given)


def _reason(signature: Signature, error: Exception) -> str:
    return str(error) if isinstance(error, Unrunnable) else f"{signature.target} failed on made-up inputs: {error!r}"


# ------------------------------------------------------------------------------------- a whole graph


def footprints(
    signatures: Iterable[Signature],
    cache: Cache | None = None,
    limit: float = LIMIT_SECONDS,
    *,
    custom: bool = False,
) -> Found:
    """The footprint of each call, from the cache where it is known, measured where it is not.

    If measuring what the cache lacks is expected to take more than ``limit`` seconds, none of it is measured.
    """
    cache = cache or default_cache()
    found: Found = {}
    where: dict[str, list[Signature]] = {}
    for signature in dict.fromkeys(signatures):
        try:
            where.setdefault(environment(device_of_call(signature)), []).append(signature)
        except RuntimeError as error:  # no such device
            found[signature] = str(error)
    for place, calls in where.items():
        found |= {s: footprint_from_json(value) for s, value in cache.get(MEMORY, place, calls).items()}
    missing = [s for calls in where.values() for s in calls if s not in found]
    expected = expected_seconds(missing)
    if expected > limit:
        return found | dict.fromkeys(missing, f"measuring would take about {format_time(expected * 1e6)}")
    new = measure(missing, custom=custom)
    for place, calls in where.items():
        rows = {s: f.to_json() for s in calls if isinstance(f := new.get(s), Footprint)}
        new |= {s: footprint_from_json(value) for s, value in cache.put(MEMORY, place, rows).items()}
    return found | new


def with_measured_memory(problem: Problem, lookup: Callable[[Iterable[Signature]], Found] = footprints) -> Problem:
    """The problem with the workspace of its ops, and with values as large as the storages that the ops return.

    An op without a footprint keeps what it has, and the log says why.
    """
    graph = problem.graph
    found = lookup(op.signature for op in graph.ops)
    for reason in dict.fromkeys(reason for reason in found.values() if isinstance(reason, str)):
        logger.info("no measured workspace for some calls: %s", reason)
    spaces, values = list(problem.workspace), list(graph.values)
    for op in graph.ops:
        if not isinstance(footprint := found.get(op.signature), Footprint):
            continue
        spaces[op.id] = footprint.workspace
        if len(op.writes) == len(footprint.held):
            for v, nbytes in zip(op.writes, footprint.held):
                values[v] = replace(values[v], nbytes=Bytes(max(values[v].nbytes, nbytes)))
    return replace(problem, graph=replace(graph, values=tuple(values)), workspace=tuple(spaces))


def memory_key() -> str:
    """All that footprints depend on beside the signature: for cache keys."""
    return f"memory 1 {' & '.join(environments())} table {default_cache().identity()}"


def expected_seconds(signatures: Iterable[Signature]) -> float:
    """About how long measuring these calls takes, by roofline."""
    models = {kind: Roofline(default_device(kind)) for kind in ("cpu", "cuda")}
    runtimes = (models[device_of_call(s).partition(":")[0]].runtime(s) for s in signatures)
    return sum(SECONDS_EACH + RUNS_EACH * runtime * 1e-6 for runtime in runtimes)
