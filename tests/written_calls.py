"""Signatures written down by hand, and those of calls as they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optpart.cost.devices import get_device
from optpart.graph import Graph, Op, Region, Signature, TensorSpec, Value, ValueKind
from optpart.units import Bytes

H100 = get_device("h100")


def spec(
    *shape: int, dtype: str = "float32", device: str = "cuda:0", stride: tuple[int, ...] | None = None
) -> TensorSpec:
    if stride is None:
        stride = torch.empty(shape, device="meta").stride()
    return TensorSpec(shape, stride, dtype, device)


def call(target: str, *args: Any, out: TensorSpec | tuple[TensorSpec | None, ...], **kwargs: Any) -> Signature:
    outputs = out if isinstance(out, tuple) else (out,)
    return Signature(f"aten.{target}", args, tuple(kwargs.items()), outputs)


def mm(m: int, k: int, n: int, dtype: str = "float32", device: str = "cuda:0") -> Signature:
    a, b, c = (spec(*s, dtype=dtype, device=device) for s in ((m, k), (k, n), (m, n)))
    return call("mm.default", a, b, out=c)


def chain(*signatures: Signature) -> Graph:
    """A forward of ops in a row, each reading the value before it."""
    values = [Value(0, "x", Bytes(8), ValueKind.INPUT)]
    values += [Value(i, f"v{i}", Bytes(8), ValueKind.COMPUTED, i - 1) for i in range(1, len(signatures) + 1)]
    ops = tuple(Op(i, f"op{i}", s, Region.FORWARD, (i,), (i + 1,)) for i, s in enumerate(signatures))
    return Graph(tuple(values), ops, forward_outputs=(len(signatures),))


class Recorder(TorchDispatchMode):
    """The Signature of every call that runs inside, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.signatures: list[Signature] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outputs = tuple(
            as_data(o) if isinstance(o, torch.Tensor) else None
            for o in (out if isinstance(out, (tuple, list)) else (out,))
        )
        named = tuple((k, as_data(v)) for k, v in (kwargs or {}).items())
        self.signatures.append(Signature(str(func), as_data(args), named, outputs))
        return out


def as_data(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return TensorSpec(tuple(arg.shape), arg.stride(), str(arg.dtype).removeprefix("torch."), str(arg.device))
    if isinstance(arg, (tuple, list)):
        return tuple(as_data(a) for a in arg)
    return arg if arg is None or isinstance(arg, (bool, int, float, str)) else str(arg)


def recorded(step: Callable[[], Any]) -> list[Signature]:
    with Recorder() as recorder:
        step()
    return recorder.signatures


def attention(op: str, b: int, h: int, q: int, k: int, d: int) -> tuple[Signature, Signature]:
    queries, keys, sums = spec(b, h, q, d), spec(b, h, k, d), spec(b, h, q)
    return (
        call(f"{op}.default", queries, keys, keys, 0.0, True, out=(queries, sums)),
        call(
            f"{op}_backward.default", queries, queries, keys, keys, queries, sums, 0.0, True, out=(queries, keys, keys)
        ),
    )


class Block(torch.nn.Module):
    """Attention written out, a convolution and an MLP: [batch, tokens, width] -> a scalar."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.mix = torch.nn.Conv1d(width, width, 3, padding=1)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(1, 2), -1) @ v
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return (x + self.down(torch.nn.functional.gelu(self.up(x)))).square().mean()
