"""Floating-point operations of a call, by torch's own counter.

``torch.utils.flop_counter.flop_registry`` maps operators to formulas over shapes: matrix products,
convolutions, attention, and whatever a user registers with ``register_flop_formula``.  A formula is
called as FlopCounterMode calls it, with meta tensors made from the signature, so both give one count:

    mm [m, k] x [k, n]                    2 m k n
    convolution                           2 batch out_pixels prod(weight)
    attention [b, h, q, d] x [b, h, k, d] 4 b h q k d     (its backward: 10 b h q k d)

A causal mask is not halved: torch does not.  This differs from the registry in two things:

1. Operators that it lacks although they are its operators under another name (attention on the CPU,
   integer and grouped products) are counted: ``SAME_AS`` and ``GROUPED_PRODUCTS``.
2. Its weight gradient of a grouped convolution ignores the groups, which makes a depthwise one
   ``groups`` times too expensive (seen in 2.13); that part is divided by the groups.

Everything else has no formula.  Pointwise and reduction kernels are bound by the bytes they move.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from optpart.cost.bytes import BytesModel, bytes_moved, packet_name, tensors
from optpart.cost.devices import Device, whole_nanoseconds
from optpart.graph import Argument, Signature, TensorSpec
from optpart.units import Flops, Microseconds

# Operator -> the registered operator that has the same leading arguments and does the same products.
SAME_AS = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_fused_attention_overrideable": "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_fused_attention_overrideable_backward":
        "aten._scaled_dot_product_flash_attention_backward",
    "aten._int_mm": "aten.mm",
    "aten._scaled_mm_v2": "aten.mm",
    "aten._addmm_activation": "aten.addmm",
    "aten.addbmm": "aten.baddbmm",
}  # fmt: skip
GROUPED_PRODUCTS = ("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2")


def count_flops(signature: Signature) -> Flops | None:
    """FLOPs of one run of a call, or None if there is no formula for it (torch is imported here).

    A formula that fails on the call counts as none, with a RuntimeWarning: a wrong formula for one
    operator must not stop a compilation.
    """
    name = packet_name(signature.target)
    formula = _formula(name)
    try:
        if name in GROUPED_PRODUCTS:
            return _grouped_mm(*signature.args[:2])
        if formula is None:
            return None
        if name == "aten.convolution_backward":
            return _convolution_backward(formula, signature)
        return _call(formula, signature)
    except Exception as error:  # a registered formula is anybody's code
        warnings.warn(f"the FLOP formula of {signature.target} failed ({error!r}); not counted", RuntimeWarning, 2)
        return None


def _formula(name: str) -> Callable[..., Any] | None:
    """The registered formula of an operator ("aten.mm") or a higher-order operator ("flex_attention")."""
    import torch
    from torch.utils.flop_counter import flop_registry

    namespace, _, op = SAME_AS.get(name, name).rpartition(".")
    packet = getattr(getattr(torch.ops, namespace or "higher_order"), op, None)
    return None if packet is None else flop_registry.get(packet)


def _call(formula: Callable[..., Any], signature: Signature) -> Flops:
    outputs = tuple(_meta(out) for out in signature.outputs)
    return Flops(
        formula(
            *(_meta(argument) for argument in signature.args),
            **{name: _meta(argument) for name, argument in signature.kwargs},
            out_val=outputs[0] if len(outputs) == 1 else outputs,
        )
    )


def _meta(argument: Argument) -> Any:
    """The argument with each TensorSpec replaced by a meta tensor, which is what formulas take."""
    import torch

    if isinstance(argument, TensorSpec):
        return torch.empty_strided(argument.shape, argument.stride, dtype=getattr(torch, argument.dtype), device="meta")
    if isinstance(argument, (tuple, list)):
        return [_meta(item) for item in argument]
    return argument


def _convolution_backward(formula: Callable[..., Any], signature: Signature) -> Flops:
    """Gradients of input and weight counted apart, the weight's divided by the groups."""
    *rest, groups, (of_input, of_weight, _) = signature.args
    grad_input = _call(formula, replace(signature, args=(*rest, groups, (of_input, False, False))))
    grad_weight = _call(formula, replace(signature, args=(*rest, groups, (False, of_weight, False))))
    return Flops(grad_input + grad_weight // groups)


def _grouped_mm(a: TensorSpec, b: TensorSpec) -> Flops:
    """[m, k] x [g, k, n], [g, m, k] x [k, n], [m, k] x [k, n]: the groups share m, n or k; else g full products."""
    groups = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    return Flops(2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1])


def counter_key() -> str:
    """What the counts depend on beside the signature: torch's version and the formulas that users registered."""
    import torch
    from torch.utils.flop_counter import flop_registry

    foreign = sorted(
        f"{op}={formula.__module__}.{getattr(formula, '__qualname__', type(formula).__name__)}"
        for op, formula in flop_registry.items()
        if not formula.__module__.startswith("torch.")
    )
    return " ".join((f"torch-{torch.__version__}", *foreign))


def compute_dtype(signature: Signature) -> str:
    """The dtype that a product is computed in: that of its first tensor."""
    return next((tensor.dtype for tensor in tensors(signature)), "float32")


@dataclass(frozen=True, slots=True)
class FlopsModel:
    """Time = FLOPs / the device's peak rate for the call's dtype.

    A call without a formula takes one nanosecond if it moves bytes (PyTorch's own estimate, 1 FLOP,
    does the same); one that is not ATen's (a custom or higher-order operator) is priced by the bytes
    it moves, since nothing says that it is cheap.
    """

    device: Device

    @property
    def name(self) -> str:
        return f"flops:{self.device.name}"

    def runtime(self, signature: Signature) -> Microseconds:
        flops = count_flops(signature)
        if flops is None and not signature.target.startswith(("aten.", "prims.")):
            return BytesModel(self.device).runtime(signature)
        if flops:
            return whole_nanoseconds(flops / self.device.peak(compute_dtype(signature)))
        return whole_nanoseconds(1e-9 if bytes_moved(signature) else 0.0)

    def key(self) -> str:
        return f"flops 1 {counter_key()} {self.device.key()}"
