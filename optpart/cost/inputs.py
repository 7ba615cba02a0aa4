"""A Signature as a call that can be run: the operator, and tensors with shapes, strides and values that fit.

A signature has no data.  What a kernel does may depend on it all the same, so each tensor argument gets a
*role*, from the argument's name in the operator's schema and from its dtype:

==============  ==========================================  ==================================================
role            values                                      for example
==============  ==========================================  ==================================================
normal          normal                                      floating arguments
positive        0.5 .. 1.5                                  variances, scales, what a root or logarithm is of
unit            0 .. 1                                      probabilities, outputs of a softmax or sigmoid
negative        -1.5 .. -0.5                                log-probabilities
mask            false or true, evenly                       bool arguments
true            true                                        what is asserted
offsets         0 .. n in equal steps                       where the sequences of a packed batch start
below n         0 .. n-1, evenly                            indices and classes
==============  ==========================================  ==================================================

An integer argument of a pointwise operator gets 1 .. 8.  One that no rule knows gets values below the
smallest dimension of the call: an index into whatever dimension it is meant for, since an index out of
range ends the process on some devices.  Values come from a generator with a fixed seed, and repeat after
``BLOCK`` elements, so that filling a large tensor takes as long as copying it.

``real_calls`` is what the calls run under, in the middle of a compilation too: real tensors, no autograd,
no autocast, and the user's random numbers as they were.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optpart.cost.bytes import packet_name, tensor_bytes, tensors
from optpart.cost.machine import free_bytes
from optpart.graph import Argument, Signature, TensorSpec
from optpart.units import format_bytes

if TYPE_CHECKING:
    import torch

BLOCK = 1 << 20
SEED = 0


class Unrunnable(Exception):
    """A call that cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its arguments; calling it runs it once.  ``mutates``: it writes to its arguments."""

    operator: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mutates: bool

    def __call__(self) -> Any:
        return self.operator(*self.args, **self.kwargs)


def make_call(signature: Signature, *, custom: bool = False) -> Call:
    """The call of a signature with fresh tensors, to be made and run under :func:`real_calls`.

    ``custom`` allows operators that torch does not ship, those with effects excepted.  They are somebody's
    code, which may count its runs or trust its inputs: a compilation must not run it by itself.

    Raises:
        Unrunnable: there is no such operator here, its device is missing, it would talk to other
            processes, or it is a custom operator that must not run.
    """
    import torch

    operator = _operator(signature.target, custom)
    _check_device(signature)
    _check_memory(signature)
    schema = operator._schema
    names = [argument.name for argument in schema.arguments]
    bound = dict(zip(names, signature.args)) | dict(signature.kwargs)
    operands = _Operands(packet_name(signature.target), bound, torch.Tag.pointwise in operator.tags)
    try:
        made = {name: operands.make(name, argument) for name, argument in bound.items()}
        if operands.packet in POOLS:
            made["indices"].copy_(_pool_indices(operands.packet, made))
    except Unrunnable:
        raise
    except Exception as error:  # a dtype without random numbers, too little memory
        raise Unrunnable(f"no inputs for {signature.target}: {error!r}") from error
    return Call(
        operator,
        tuple(made[name] for name in names[: len(signature.args)]),
        {name: made[name] for name, _ in signature.kwargs},
        schema.is_mutable,
    )


@contextlib.contextmanager
def real_calls(devices: Iterable[str] = ()) -> Iterator[None]:
    """Real tensors inside (a partitioner runs under fake ones), no gradients, no autocast.

    The random states of the CPU and of the ``devices`` that the calls run on are put back at the end.
    """
    import torch

    from optpart import torch_private as tp

    cuda = sorted({device for device in devices if device.startswith("cuda")}) if torch.cuda.is_available() else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(tp.unset_fake_temporarily())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(cuda))
        for kind in ("cpu", "cuda") if cuda else ("cpu",):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def device_of_call(signature: Signature) -> str:
    """The device that a call runs on: the first of its tensors that is not the CPU ("cuda:0"), else "cpu"."""
    given = dict(signature.kwargs).get("device")
    found = [spec.device for spec in (*tensors(signature), *signature.outputs) if spec is not None]
    return next((device for device in (*found, given) if device and not device.startswith("cpu")), "cpu")


# --------------------------------------------------------------------------------------- the operator


def _operator(target: str, custom: bool) -> Any:
    """The operator overload called ``target`` ("aten.mm.default")."""
    import torch

    from optpart import torch_private as tp

    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), name, None), overload or " ", None)
    if not isinstance(found, tp.OpOverload):
        raise Unrunnable(f"{target} is no operator with a schema (a higher-order operator, or Python's own)")
    if "c10d" in namespace or namespace == "symm_mem":
        raise Unrunnable(f"{target} talks to other processes")
    if namespace not in ("aten", "prims"):
        if not custom:
            raise Unrunnable(f"{target} is a custom operator, which runs only when a profile is asked for")
        if found._schema.is_mutable or not found._schema.returns:
            raise Unrunnable(f"{target} is a custom operator with effects")
    return found


def _check_device(signature: Signature) -> None:
    import torch

    device = device_of_call(signature)
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return
    if kind != "cuda":
        raise Unrunnable(f"{signature.target} runs on {device!r}; measured are 'cpu' and 'cuda'")
    if not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count():
        raise Unrunnable(f"{signature.target} runs on {device!r}, and this machine has no such device")


def _check_memory(signature: Signature) -> None:
    """Inputs, outputs and as much again as workspace have to fit into half of what is free: a process that runs
    out of memory on the CPU is killed without a word."""
    device = device_of_call(signature)
    outputs = [spec for spec in signature.outputs if spec is not None]
    needed = sum(map(tensor_bytes, tensors(signature))) + 2 * sum(map(tensor_bytes, outputs))
    if (free := free_bytes(device)) is not None and needed > free // 2:
        raise Unrunnable(
            f"{signature.target} needs about {format_bytes(needed)} on {device!r}, where {format_bytes(free)} are free"
        )


# -------------------------------------------------------------------------------------- the arguments

# Arguments whose role is not to be seen from their dtype: by name, or by operator and name.
_BY_ROLE = {
    "positive": "rstd var std running_var save_var save_invstd invstd scale scale_a scale_b total_weight "
    "rsqrt.self sqrt.self log.self log2.self log10.self log1p.self pow.self xlogy.other multinomial.self poisson.self",
    "unit": "grid bernoulli.self bernoulli.p _softmax_backward_data.output sigmoid_backward.output tanh_backward.output "
    "binary_cross_entropy.self binary_cross_entropy.target binary_cross_entropy_backward.self "
    "binary_cross_entropy_backward.target",
    "negative": "_log_softmax_backward_data.output nll_loss_forward.self nll_loss_backward.self "
    "nll_loss2d_forward.self nll_loss2d_backward.self",
    "offsets": "offs offsets cum_seq_q cum_seq_k cu_seqlens_q cu_seqlens_k",
    "true": "_assert_async.self",
}
ROLES = {argument: role for role, arguments in _BY_ROLE.items() for argument in arguments.split()}
STATISTICS = frozenset(("mean", "rstd", "save_mean", "save_invstd"))
POOLS = frozenset(("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward"))


@dataclass(frozen=True, slots=True)
class _Operands:
    """The arguments of one call by name, still without data."""

    packet: str
    bound: Mapping[str, Argument]
    pointwise: bool

    def make(self, name: str, argument: Argument) -> Any:
        """The argument as the operator takes it."""
        import torch

        if isinstance(argument, TensorSpec):
            return self._tensor(name, argument, self._limit(name))
        if isinstance(argument, (tuple, list)):
            if name == "indices":
                return [self._index(at, index) for at, index in zip(self._indexed(argument), argument)]
            return [self.make(name, item) for item in argument]
        if isinstance(argument, str):
            if name == "generator":
                return None  # an object that a signature cannot hold
            if name == "device":
                return torch.device(argument)
            value = getattr(torch, argument.removeprefix("torch."), None) if argument.startswith("torch.") else None
            return value if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)) else argument
        return argument

    def _indexed(self, indices: Sequence[Argument]) -> Iterator[int]:
        """For each item of a list of indices the dimension that it indexes; a mask covers as many as it has."""
        at = 0
        for index in indices:
            yield at
            at += len(index.shape) if isinstance(index, TensorSpec) and index.dtype == "bool" else 1

    def _index(self, at: int, index: Argument) -> Any:
        return self._tensor("indices", index, self.bound["self"].shape[at]) if index is not None else None

    def _limit(self, name: str) -> int:
        """Exclusive upper limit for the values of an integer argument."""
        bound, base = self.bound, self.bound.get("self")
        if name == "indices" and "weight" in bound:
            return int(bound["weight"].shape[0])  # embedding
        if name == "indices" and "num_weights" in bound:
            return int(bound["num_weights"])
        if isinstance(base, TensorSpec):
            if name == "index" and isinstance(dim := bound.get("dim"), int):  # gather, scatter, index_select, ...
                return base.shape[dim] if base.shape else 1
            if name == "target":  # classes
                return base.shape[1 if len(base.shape) > 1 else 0] if base.shape else 1
        if self._role(name) == "offsets":
            first = next(a for a in bound.values() if isinstance(a, TensorSpec))
            return first.shape[-3] if "seq" in name else first.shape[0]
        if self.pointwise:
            return 9
        operands = tensors(Signature("", tuple(bound.values())))
        return min((size for operand in operands for size in operand.shape), default=1)

    def _tensor(self, name: str, spec: TensorSpec, limit: int) -> torch.Tensor:
        import torch

        if len(spec.stride) != len(spec.shape):
            raise Unrunnable("a sparse tensor: a signature does not say where its values are")
        span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride))
        span = 0 if 0 in spec.shape else span
        block = min(span, BLOCK)
        values = self._values(name, spec, block, limit).to(getattr(torch, self._dtype(name, spec)))
        if span > block:
            values = values.repeat(-(-span // block))
        return values.as_strided(spec.shape, spec.stride)

    def _role(self, name: str) -> str | None:
        return ROLES.get(f"{self.packet.rpartition('.')[2]}.{name}", ROLES.get(name))

    def _dtype(self, name: str, spec: TensorSpec) -> str:
        """Statistics on the CPU are in the weight's dtype, whatever the fake kernels say (seen in 2.13, mixed dtypes)."""
        weight = self.bound.get("weight")
        if name in STATISTICS and spec.device == "cpu" and isinstance(weight, TensorSpec):
            return weight.dtype
        return spec.dtype

    def _values(self, name: str, spec: TensorSpec, count: int, limit: int) -> torch.Tensor:
        """``count`` values of the argument's role, in a dtype that has random numbers."""
        import torch

        dtype: torch.dtype = getattr(torch, spec.dtype)
        role = self._role(name)
        draw = _generator(spec.device)
        draw.manual_seed(SEED)
        if role == "offsets" and not dtype.is_floating_point:
            first = limit // max(count, 1) if name == "offs" else 0  # a grouped product leaves out the first start
            return torch.linspace(first, limit, count, device=spec.device)
        if dtype.is_floating_point and role is None:
            return torch.randn(count, generator=draw, device=spec.device)
        if dtype.is_complex:
            return torch.randn(count, generator=draw, device=spec.device, dtype=dtype)
        uniform = torch.rand(count, generator=draw, device=spec.device)
        if dtype is torch.bool:
            return uniform < (2.0 if role == "true" else 0.5)
        if not dtype.is_floating_point:
            low = 1 if self.pointwise else 0
            return torch.randint(low, max(limit, low + 1), (count,), generator=draw, device=spec.device)
        return uniform + {"positive": 0.5, "negative": -1.5}.get(str(role), 0.0)


@functools.cache
def _generator(device: str) -> torch.Generator:
    import torch

    return torch.Generator(device)


def _pool_indices(packet: str, made: Mapping[str, Any]) -> Any:
    """The positions of the maxima of ``self``, from the forward: near each other, and inside each window."""
    import torch

    forward = getattr(torch.ops.aten, packet.removeprefix("aten.").removesuffix("_backward"))
    window = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return forward(made["self"], *(made[name] for name in window))[1]
