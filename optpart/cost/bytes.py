"""Bytes that a call moves: each input read once, each output written once.

    bytes = sum over tensor inputs of numel * itemsize  +  the same over tensor outputs

as if nothing stayed in a cache, which is what one kernel per call does.  ``numel`` counts distinct
elements: a dimension of stride 0 (``expand``) is read once, and overlapping windows (``as_strided``,
``unfold``) no more than the storage they span.

Where that would be far off, the call says what it reads: a gather reads of its table what it returns
(an embedding of 512 tokens does not read 50,257 rows), ``zeros_like`` reads nothing, ``empty`` moves
nothing.  A tensor passed twice counts twice: a signature cannot tell ``mul(x, x)`` from ``mul(x, y)``.
No torch is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from optpart.cost.devices import Device, whole_nanoseconds
from optpart.graph import Argument, Signature, TensorSpec
from optpart.units import Bytes, Microseconds

_BY_SIZE = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 "
    "quint8 qint8 quint4x2 quint2x4 bits8 bits1x8 bits2x4 bits4x2",
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 complex32 qint32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
ITEMSIZE = {name: size for size, names in _BY_SIZE.items() for name in names.split()}

# Operators by qualified name without the overload.  The first tensor of a gather is read where the output
# takes from it; the first tensor of a fill or copy lends its shape only; an allocation moves nothing.
GATHERS = frozenset(
    ("aten.embedding", "aten.index", "aten._unsafe_index", "aten.index_select", "aten.gather", "aten.take")
)
FILLS = frozenset(
    ("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.rand_like", "aten.randn_like", "aten.randint_like",
     "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.zero", "aten.zero_", "aten.fill", "aten.fill_",
     "aten.copy", "aten.copy_")
)  # fmt: skip
ALLOCATIONS = frozenset(
    ("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.empty_permuted", "aten.new_empty",
     "aten.new_empty_strided")
)  # fmt: skip


def packet_name(target: str) -> str:
    """The operator without its overload: ``"aten.mm"`` of ``"aten.mm.default"``."""
    return ".".join(target.split(".")[:2])


def tensors(signature: Signature) -> Iterator[TensorSpec]:
    """The tensor arguments of a call in order, those in lists included."""
    yield from _tensors(signature.args)
    for _, argument in signature.kwargs:
        yield from _tensors(argument)


def _tensors(argument: Argument) -> Iterator[TensorSpec]:
    if isinstance(argument, TensorSpec):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _tensors(item)


def tensor_bytes(spec: TensorSpec) -> Bytes:
    """Bytes of the distinct elements that a tensor refers to.

    Raises:
        ValueError: the dtype is none of torch's.
    """
    if spec.dtype not in ITEMSIZE:
        raise ValueError(f"unknown dtype {spec.dtype!r}; known: {', '.join(ITEMSIZE)}")
    if 0 in spec.shape:
        return Bytes(0)
    numel = math.prod(size for size, stride in zip(spec.shape, spec.stride, strict=True) if stride)
    span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride, strict=True))
    return Bytes(min(numel, span) * ITEMSIZE[spec.dtype])


def bytes_moved(signature: Signature) -> Bytes:
    """Bytes that one run of a call reads and writes; see the module's docstring."""
    name = packet_name(signature.target)
    if name in ALLOCATIONS:
        return Bytes(0)
    written = sum(tensor_bytes(out) for out in signature.outputs if out is not None)
    read = [tensor_bytes(tensor) for tensor in tensors(signature)]
    if name in FILLS:
        del read[:1]
    elif name in GATHERS and read:
        read[0] = Bytes(min(read[0], written))
    return Bytes(written + sum(read))


@dataclass(frozen=True, slots=True)
class BytesModel:
    """Time = bytes moved / bandwidth of the device."""

    device: Device

    @property
    def name(self) -> str:
        return f"bytes:{self.device.name}"

    def runtime(self, signature: Signature) -> Microseconds:
        return whole_nanoseconds(bytes_moved(signature) / (self.device.bandwidth * 1e9))

    def key(self) -> str:
        return f"bytes 1 {self.device.key()}"
