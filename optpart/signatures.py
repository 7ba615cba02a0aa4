"""The signature of an fx node's call: operator, shapes, strides, dtypes and scalars as plain data.

Sizes that are symbols are taken by their hints, without a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from optpart import torch_private as tp
from optpart.graph import Signature, TensorSpec


class Signatures:
    """Makes signatures, and remembers the tensors of the nodes that it has seen."""

    def __init__(self) -> None:
        self._specs: dict[fx.Node, TensorSpec] = {}

    def of(self, node: fx.Node) -> Signature:
        """The signature of a ``call_function`` node whose fake results stand in ``meta["val"]``."""
        target = node.target
        return Signature(
            target=str(target) if not callable(target) or hasattr(target, "name") else _target_name(target),
            args=tuple(self._argument(a) for a in node.args),
            kwargs=tuple((k, self._argument(a)) for k, a in sorted(node.kwargs.items())),
            outputs=tuple(
                _spec(t) if isinstance(t, torch.Tensor) else None for t in tp.tree_leaves(node.meta.get("val"))
            ),
        )

    def _argument(self, a: Any) -> Any:
        if isinstance(a, fx.Node):
            value = a.meta.get("val")
            if isinstance(value, torch.Tensor):
                if a not in self._specs:
                    self._specs[a] = _spec(value)
                return self._specs[a]
            return self._argument(value) if not isinstance(value, fx.Node) else None
        if isinstance(a, torch.Tensor):
            return _spec(a)
        if isinstance(a, torch.SymInt):
            return tp.size_hint(a)
        if isinstance(a, (list, tuple)):
            return tuple(self._argument(x) for x in a)
        if a is None or isinstance(a, (bool, int, float, str)):
            return a
        return str(a)


def _spec(tensor: torch.Tensor) -> TensorSpec:
    try:
        stride = tuple(tp.size_hint(s) for s in tensor.stride())
    except RuntimeError:  # a sparse tensor has no strides
        stride = ()
    shape = tuple(tp.size_hint(s) for s in tensor.shape)
    return TensorSpec(shape, stride, str(tensor.dtype).removeprefix("torch."), str(tensor.device))


def _target_name(target: Callable[..., Any]) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".lstrip(".")
