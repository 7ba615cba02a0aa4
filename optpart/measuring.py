"""What a training step takes when it runs: peak memory and time, beside what was predicted.

No measured number comes from our own simulator.  Memory is what the allocator says: on the CPU the
profiler's allocation events, on CUDA the allocator's own peak.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from optpart import torch_private as tp
from optpart.cost.workspace import with_measured_memory
from optpart.liveness import simulate
from optpart.partitioner import Partition, Partitioner
from optpart.units import Bytes, Microseconds

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Measurement:
    """One training step as it ran: forward and backward.  Sizes in bytes, ``seconds`` the median wall time of a step.

    ``peak_bytes``: the allocator's highest level during the step above its level before the step.
    ``resident_bytes``: what was there before and the graph reads: storages of parameters, buffers, arguments.
    ``predicted_peak_bytes``: the simulator's peak of the plan that ran, to be compared with
    ``measured_peak_bytes``; None if no plan of ours ran, or several graphs did.
    """

    peak_bytes: Bytes
    resident_bytes: Bytes
    predicted_peak_bytes: Bytes | None
    seconds: float

    @property
    def measured_peak_bytes(self) -> Bytes:
        """What ``Liveness.peak_bytes`` predicts: everything resident included."""
        return Bytes(self.resident_bytes + self.peak_bytes)

    @property
    def difference_bytes(self) -> int | None:
        """Measured - predicted; None without a prediction."""
        return None if self.predicted_peak_bytes is None else self.measured_peak_bytes - self.predicted_peak_bytes


def measure(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    partitioner: Callable[..., Any] | None = None,
    compiler: str = "aot_eager",
    loss: Loss | None = None,
    seed: int = 0,
    repeats: int = 5,
) -> Measurement:
    """Compile a model, run a training step, and say what it took, beside what was predicted.

    The step runs on a copy of the model; a function's own tensors are used as they are, and get their
    gradients back.

    Args:
        model: module or function.
        example_args: its arguments.
        partitioner: a Partitioner, or any other ``partition_fn``; default settings, strict, if None.
        compiler: "aot_eager" (nothing is compiled: the order is the plan's) or "inductor".
        loss: makes a scalar of what the model returns, and is part of the step; by default every output that
            needs a gradient gets ones.
        seed: of torch's generators, set before each step.
        repeats: steps that are timed.

    Raises:
        ValueError: an unknown compiler, or nothing that the model returns needs a gradient.
    """
    partitioner = partitioner or Partitioner(on_failure="raise")
    partitions: list[Partition] = getattr(partitioner, "partitions", [])
    known = len(partitions)
    # a partitioner that Inductor's cache answers for does not run, and then nothing would be predicted
    options = {"options": {"force_disable_caches": True}} if compiler == "inductor" else {}
    backend = functools.partial(tp.compiler_backend(compiler, partitioner), **options)
    measured = measure_backend(model, example_args, backend, loss=loss, seed=seed, repeats=repeats)
    new = partitions[known:]
    plan = new[0].result.plan if len(new) == 1 and new[0].result is not None else None
    if plan is None or new[0].problem is None:
        return measured
    problem = new[0].problem
    if isinstance(partitioner, Partitioner) and partitioner.settings.workspace == "measured":
        problem = with_measured_memory(problem)  # without a budget, nobody has asked for workspaces yet
    return replace(measured, predicted_peak_bytes=simulate(problem, plan).peak_bytes)


def measure_backend(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    backend: Callable[..., Any],
    *,
    loss: Loss | None = None,
    seed: int = 0,
    repeats: int = 5,
) -> Measurement:
    """:func:`measure` for any backend of ``torch.compile``; predicts nothing."""
    with training_step(model, example_args, backend, loss=loss, seed=seed) as step:
        peak = step.peak()
        seconds = measured_time(step.run, repeats, before=step.clear, device=step.device) * 1e-6
        return Measurement(peak, step.resident_bytes, None, seconds)


@dataclass(frozen=True)
class Step:
    """A compiled training step, warm.  ``clear()`` (seed, no gradients) comes before each ``run()``."""

    run: Callable[[], None]
    clear: Callable[[], None]
    resident_bytes: Bytes
    device: str

    def peak(self) -> Bytes:
        """:func:`measured_peak` of one run."""
        self.clear()
        return measured_peak(self.run, self.device)


@contextlib.contextmanager
def training_step(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    backend: Callable[..., Any],
    *,
    loss: Loss | None = None,
    seed: int = 0,
) -> Iterator[Step]:
    """Compile a copy of the model, run it twice, and hand out its step; gradients are put back at the end."""
    model = copy.deepcopy(model)
    args = tp.tree_map(fresh, tuple(example_args))
    graphs: list[list[torch.Tensor]] = []  # what each graph reads
    before: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def recording(gm: Any, inputs: Sequence[Any]) -> Any:
        graphs.append([t for t in inputs if isinstance(t, torch.Tensor)])
        before.extend((t, t.grad) for t in graphs[-1] if t.is_leaf)
        clear()
        return backend(gm, inputs)

    def clear() -> None:
        torch.manual_seed(seed)
        for t, _ in before:
            t.grad = None  # a gradient that is there already would be added to, and no new one made

    function = tp.compile_fresh(model, recording)

    def run() -> None:
        out = function(*args)
        if loss is not None:
            loss(out).backward()  # type: ignore[no-untyped-call]  # torch's annotation is missing
            return
        outs = [t for t in tp.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not outs:
            raise ValueError("the model returns no tensor that needs a gradient")
        torch.autograd.backward(outs, [torch.ones_like(t) for t in outs])

    try:
        for _ in range(2):  # the first one compiles, the second one takes what a library allocates once
            clear()
            run()
        # of several graphs the later ones read what the earlier ones made in the step
        there = graphs[0] if len(graphs) == 1 else [*graphs[0], *_tensors(model, args)]
        device = next((t.device.type for t in there if t.device.type != "cpu"), "cpu")
        resident = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in there}
        yield Step(run, clear, Bytes(sum(resident.values())), device)
    finally:
        for t, grad in before:
            t.grad = grad


def _tensors(model: Callable[..., Any], args: Sequence[Any]) -> list[torch.Tensor]:
    own = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    return own + [t for t in tp.tree_leaves(args) if isinstance(t, torch.Tensor)]


def fresh(value: Any) -> Any:
    """A leaf of the same contents and strides; what is no tensor stays as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)


def measured_peak(step: Callable[[], Any], device: str = "cpu") -> Bytes:
    """The highest allocation level during ``step()`` above the level at its start, from the allocator itself.

    On the CPU from the profiler's allocation events, on CUDA from ``torch.cuda.max_memory_allocated``.

    Raises:
        RuntimeError: on the CPU, and a profiler is running already: a second one would end it.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return Bytes(torch.cuda.max_memory_allocated() - before)
    from torch.profiler import ProfilerActivity, profile

    if tp.profiler_running():
        raise RuntimeError("memory cannot be measured while a profiler is running: a second one would end it")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    level = peak = 0
    for nbytes in tp.allocation_events(prof):
        level += nbytes
        peak = max(peak, level)
    return Bytes(peak)


def measured_time(
    step: Callable[[], Any], repeats: int = 5, *, before: Callable[[], Any] = lambda: None, device: str = "cpu"
) -> Microseconds:
    """Median wall time of ``step()`` in microseconds, after one warm-up; ``before()`` runs ahead of each, untimed."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    times = []
    for _ in range(repeats + 1):
        before()
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    return Microseconds(sorted(times[1:])[repeats // 2] * 1e6)
