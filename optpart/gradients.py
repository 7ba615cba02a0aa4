"""Gradients of a partition, compared with three yardsticks: runs of the same model, seed and inputs under

* eager PyTorch, the yardstick for the numbers (within the dtype's tolerance);
* PyTorch's default partition under aot_eager, the yardstick for the bits (same kernels, same order);
* PyTorch's min-cut, which is reported and not trusted (it is wrong where buffers are read and then updated).

Inductor's own kernels can be further from eager's than a tolerance for rounding allows (convolutions on a CPU: 4 % of
the largest entry for one gradient of a U-Net, whatever the partition).  Where that happens, the error of the default
partition under Inductor is measured too, and ours may be twice as far from eager as that one is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from optpart import torch_private as tp
from optpart.measuring import Loss, fresh
from optpart.partitioner import Partitioner


@dataclass(frozen=True)
class GradientCheck:
    """Gradients (of parameters and inputs), outputs and buffers of one step, against three yardsticks.

    ``equal_bitwise``: ours == default partition, bit for bit.  ``max_abs_error``: ours - eager, the
    largest over all compared tensors.  ``agree``: ours is within tolerance of eager, and of the default
    partition.  ``min_cut_agrees``: PyTorch's min-cut does (None: it could not be run).  ``compilers_error``: the default
    partition's own largest error under the compiler; None where it was not needed.
    """

    equal_bitwise: bool
    max_abs_error: float
    agree: bool
    min_cut_agrees: bool | None
    fallbacks: int
    compared: int
    compilers_error: float | None = None


# Relative tolerance by dtype, torch.testing's own defaults; the absolute one is relative to the largest
# entry, since a sum in another order is off by a share of its terms, not of its result.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}
ABSOLUTE = 1e-5  # torch.testing's own for float32: a gradient that is zero but for rounding has no size of its own
SLACK = 100  # kernels under Inductor sum in another order; this many roundings may add up


def check_gradients(
    model: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    partitioner: Partitioner | None = None,
    compiler: str = "aot_eager",
    loss: Loss | None = None,
    seed: int = 0,
) -> GradientCheck:
    """Run one step four ways and compare; the model and the inputs are left as they were.

    Args:
        model: module or function; what it returns is summed (every floating tensor that needs a
            gradient) unless ``loss`` says how to make a scalar of it.
        example_args: its arguments.
        partitioner: the partitioner under test; the default settings, strict, if None.
        compiler: "aot_eager" or "inductor", for the partitioner under test.
        seed: of torch's generators, set before every run, so that dropout draws the same numbers.
    """
    partitioner = partitioner or Partitioner(on_failure="raise")
    eager = _run(model, example_args, loss, seed)
    default = _run(model, example_args, loss, seed, tp.aot_eager_backend(tp.default_partition))
    try:
        min_cut = _run(model, example_args, loss, seed, tp.aot_eager_backend(tp.min_cut_partition))
    except Exception:  # a defect of PyTorch's: reported as "could not be run"
        min_cut = None
    before = partitioner.fallbacks
    ours = _run(model, example_args, loss, seed, tp.compiler_backend(compiler, partitioner))
    agree, compilers_error = _close(ours, eager) and _close(ours, default), None
    if not agree and compiler != "aot_eager":
        theirs = _run(model, example_args, loss, seed, tp.compiler_backend(compiler, _Default()))
        compilers_error = max((_error(a, b) for a, b in zip(theirs, eager)), default=0.0)
        agree = _close(ours, eager, [2 * _error(a, b) for a, b in zip(theirs, eager)])
    return GradientCheck(
        equal_bitwise=len(ours) == len(default) and all(_same_bits(a, b) for a, b in zip(ours, default)),
        max_abs_error=max((_error(a, b) for a, b in zip(ours, eager)), default=0.0),
        agree=agree,
        min_cut_agrees=None if min_cut is None else _close(min_cut, eager),
        fallbacks=partitioner.fallbacks - before,
        compared=len(ours),
        compilers_error=compilers_error,
    )


class _Default(tp.CustomPartitionerFn):
    """PyTorch's default partition, where Inductor takes a partitioner."""

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        kwargs.pop("compiler", None)
        return tp.default_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> bytes:
        return b"optpart: PyTorch's default partition"


def _run(
    model: Callable[..., Any], args: Sequence[Any], loss: Loss | None, seed: int, backend: Callable[..., Any] | None = None
) -> list[torch.Tensor | None]:
    """Outputs, gradients of parameters and inputs, and buffers after one step on copies."""
    model = copy.deepcopy(model)
    args = tp.tree_map(fresh, tuple(args))
    function = model if backend is None else tp.compile_fresh(model, backend)
    torch.manual_seed(seed)
    out = function(*args)
    scalar = _scalar(out) if loss is None else loss(out)
    scalar.backward()  # type: ignore[no-untyped-call]  # torch's annotation is missing
    tensors = [t for t in tp.tree_leaves(out) if isinstance(t, torch.Tensor)]
    inputs = [a.grad for a in tp.tree_leaves(args) if isinstance(a, torch.Tensor) and a.requires_grad]
    changed = [a for a in tp.tree_leaves(args) if isinstance(a, torch.Tensor)]
    module = [] if not isinstance(model, torch.nn.Module) else [*(p.grad for p in model.parameters()), *model.buffers()]
    return [None if t is None else t.detach() for t in (*tensors, *inputs, *changed, *module)]


def _scalar(out: Any) -> torch.Tensor:
    parts = [t for t in tp.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not parts:
        raise ValueError("the model returns no tensor that needs a gradient")
    if len(parts) == 1 and parts[0].dim() == 0 and not parts[0].is_complex():
        return parts[0]
    return torch.stack([(p.abs() if p.is_complex() else p).sum().float() for p in parts]).sum()


def _same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def _error(a: torch.Tensor | None, b: torch.Tensor | None) -> float:
    if a is None or b is None or a.shape != b.shape:
        return 0.0 if a is b else float("inf")
    if a.numel() == 0:
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    return float((a.to(wide) - b.to(wide)).abs().nan_to_num(posinf=float("inf")).max())


def _close(
    a: Sequence[torch.Tensor | None], b: Sequence[torch.Tensor | None], allowed: Sequence[float] | None = None
) -> bool:
    """Within rounding of each other, or (``allowed``, for each tensor) within an error that others have too."""
    if len(a) != len(b):
        return False
    for x, y, more in zip(a, b, [0.0] * len(a) if allowed is None else allowed):
        if x is None or y is None or x.shape != y.shape:
            if x is not y:
                return False
            continue
        relative = TOLERANCE.get(x.dtype.to_real() if x.is_complex() else x.dtype, 0.0) * SLACK
        size = float(y.abs().nan_to_num().max()) if y.numel() and y.dtype is not torch.bool else 0.0
        if _error(x, y) > max(relative * size + ABSOLUTE, more):
            return False
    return True
