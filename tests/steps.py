"""One training step, run many ways, compared bit for bit: what tests of gradients are made of.

A partition may be anything that the graph's flags allow, not only what a solver likes today.  So plans
are built here directly, without a solver:

* ``nothing again``: every forward op once, and what only the backward needs runs there;
* ``all early``: what only the backward needs runs in the forward as well, and is saved;
* ``all again``: only what may not be redone is saved, and the rest runs again just before its reader;
* ``random``: a random set is saved;
* ``repeats``: a random set is saved, and ops run again in the backward at random, several times, also
  where their value was saved;
* ``walk``: many small random changes, of the order too.

Every plan has to pass the independent checker before it is emitted, and has to give what PyTorch's
default partition gives, bit for bit (outputs, gradients, inputs and buffers after the step, and the state
of the random generator), which in turn has to be close to eager.
"""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from conventions import check_conventions
from functorch.compile import aot_function, make_boxed_func
from strategies import walk
from torch import nn

from optpart import torch_private as tp
from optpart.capture import Capture, capture
from optpart.cost.model import build_problem
from optpart.graph import Graph, Region, ValueKind
from optpart.partitioner import Partitioner
from optpart.plans import Plan, just_in_time
from optpart.rewrite import rewrite
from optpart.validate import validate

Planner = Callable[[Graph], Plan]

# ----------------------------------------------------------------------------------------------- plans


def keeping(graph: Graph, saved: frozenset[int]) -> Plan:
    """``just_in_time`` with ``saved``, and with the values of every op that would run again and may not."""
    while True:
        plan = just_in_time(graph, saved)
        again = {v for o in plan.recomputes() if not graph.ops[o].recomputable for v in graph.ops[o].writes}
        if again <= saved:
            return plan
        saved |= again


def saving(*regions: Region) -> Planner:
    """Save what ops of these regions compute, as far as it may be saved (checkpoint tags may ask for recomputes)."""

    def make(graph: Graph) -> Plan:
        written = (v for op in graph.in_region(*regions) for v in op.writes)
        return keeping(graph, frozenset(v for v in written if graph.values[v].savable))

    return make


def all_again(graph: Graph) -> Plan:
    return keeping(graph, frozenset())


def some_saved(seed: int) -> Planner:
    def make(graph: Graph) -> Plan:
        draw = random.Random(seed)
        early = [v for v in graph.values if v.producer is not None and graph.ops[v.producer].region is not Region.BACKWARD]
        return keeping(graph, frozenset(v.id for v in early if v.savable and draw.random() < 0.5))

    return make


def repeats(seed: int) -> Planner:
    def make(graph: Graph) -> Plan:
        draw = random.Random(seed)
        plan = some_saved(seed)(graph)
        saved, early = set(plan.saved(graph)), set(plan.forward)
        backward: list[int] = []
        done: set[int] = set()

        def there(v: int) -> bool:
            value = graph.values[v]
            if value.producer is None:
                return value.kind is ValueKind.STATIC or value.savable
            return value.producer in done or v in saved

        def ready(o: int) -> bool:
            op = graph.ops[o]
            return op.recomputable and (o in early or o in done) and all(map(there, op.reads_again if o in early else op.reads))

        for o in plan.backward:
            for again in sorted(early | done):
                if draw.random() < 0.2 and ready(again):
                    backward.append(again)
                    done.add(again)
            backward.append(o)
            done.add(o)
        return Plan(plan.forward, tuple(backward))

    return make


def walked(seed: int) -> Planner:
    """Another order, ops that run for nobody: as far as the checker lets a random walk go."""

    def make(graph: Graph) -> Plan:
        plan = some_saved(seed)(graph)
        return [plan, *walk(build_problem(graph, "unit"), plan, random.Random(seed), 60)][-1]

    return make


PLANS: dict[str, Planner] = {
    "nothing again": saving(Region.FORWARD),
    "all early": saving(Region.FORWARD, Region.EITHER),
    "all again": all_again,
    "random 1": some_saved(1),
    "random 2": some_saved(2),
    "repeats 1": repeats(1),
    "repeats 2": repeats(2),
    "walk 1": walked(1),
    "walk 2": walked(2),
}


def few(name: str) -> tuple[str, ...]:
    """Two plans for a case: the one that redoes most, and one of the others in turn."""
    others = [p for p in PLANS if p != "all again"]
    return "all again", others[zlib.crc32(name.encode()) % len(others)]


def planned(make_plan: Planner, seen: list[tuple[Capture, Plan]] | None = None, **options: Any) -> Callable[..., Any]:
    """A ``partition_fn`` that emits ``make_plan(graph)``; what it captured and planned is appended to ``seen``."""

    def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **kw: Any) -> Any:
        static = kw.get("static_lifetime_input_indices")
        captured = capture(joint, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_indices=static, **options)
        if not captured.graph.in_region(Region.BACKWARD) and not captured.graph.backward_outputs:
            return tp.default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kw)
        plan = make_plan(captured.graph)
        verdict = validate(build_problem(captured.graph, "unit"), plan)
        assert verdict.ok, verdict.faults
        if seen is not None:
            seen.append((captured, plan))
        forward, backward = rewrite(captured, plan)
        check_conventions(joint, forward, backward, num_fwd_outputs)
        return forward, backward

    return partition


# ----------------------------------------------------------------------------------------------- steps


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tp.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def fresh(value: Any) -> Any:
    """A leaf of the same contents and strides."""
    if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
        return value
    if value.layout is not torch.strided:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)


def backward(out: Any, generator: torch.Generator) -> None:
    """Gradients for random tangents, one for each output that has a gradient."""
    outs = [t for t in tensors(out) if t.requires_grad]
    torch.autograd.backward(outs, [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outs])


@contextlib.contextmanager
def only_our_warnings() -> Iterator[None]:
    """Dynamo does itself what torch warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* should not be instantiated", DeprecationWarning)
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        yield


@only_our_warnings()
def step(
    fn: Callable[..., Any],
    args: Sequence[Any],
    backend: Callable[..., Any] | None = None,
    *,
    loss: Callable[[Any, torch.Generator], None] = backward,
    dynamic: bool | None = False,
    fullgraph: bool = True,
    calls: int = 1,
) -> list[torch.Tensor | None]:
    """Everything that ``calls`` steps on copies of a module (or on a function) and its arguments leave behind:
    outputs, gradients, the arguments, buffers and the generator's state."""
    if isinstance(fn, nn.Module):
        fn = copy.deepcopy(fn)
    args = tp.tree_map(fresh, tuple(args))
    run = fn
    if backend is not None:
        torch.compiler.reset()
        run = torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    left: list[Any] = []
    for _ in range(calls):
        out = run(*args)
        loss(out, generator)
        left += [t.detach().clone() for t in tensors(out)]
    for a in tensors(args):
        left += [a, a.grad if a.is_leaf else None]
    if isinstance(fn, nn.Module):
        left += [t for p in fn.parameters() for t in (p, p.grad)]
        left += list(fn.buffers())
    return [None if t is None else t.detach() for t in (*left, torch.get_rng_state())]


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy(force=True).tobytes() == b.numpy(force=True).tobytes()


def compare(found: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None], what: str) -> None:
    assert len(found) == len(expected), f"{what}: {len(found)} results, expected {len(expected)}"
    wrong = [i for i, (a, b) in enumerate(zip(found, expected)) if not same_bits(a, b)]
    assert not wrong, f"{what}: results {wrong} of {len(found)} differ: {[(found[i], expected[i]) for i in wrong[:2]]}"


def close(found: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None], what: str) -> None:
    assert len(found) == len(expected), f"{what}: {len(found)} results, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(found, expected)):
        assert (a is None) == (b is None), f"{what}: result {i} is {a}, expected {b}"
        if a is not None:
            here = f"{what}, result {i}: ".__add__
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True, msg=here)


def partitions(names: Sequence[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield from ((name, planned(PLANS[name])) for name in names)
    yield "ours", Partitioner(on_failure="raise")


def check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    plans: Sequence[str] = tuple(PLANS),
    yardsticks: Sequence[str] = ("default", "eager"),
    **options: Any,
) -> None:
    """Every plan and our own partition, against the default partition (bits) and eager (rounding).

    ``yardsticks``: one of the two alone, where the other is wrong or means something else.
    """
    eager = {k: v for k, v in options.items() if k not in ("dynamic", "fullgraph")}
    truth = step(fn, args, **eager) if "eager" in yardsticks else None
    bits = step(fn, args, tp.aot_eager_backend(tp.default_partition), **options) if "default" in yardsticks else None
    if truth is not None and bits is not None:
        close(bits, truth, "default partition against eager")
    for name, partition in partitions(plans):
        found = step(fn, args, tp.aot_eager_backend(partition), **options)
        if bits is not None:
            compare(found, bits, name)
        elif truth is not None:
            close(found, truth, name)


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    """A random tensor that wants a gradient."""
    return torch.randn(*shape, **options).requires_grad_()


# A case makes its function (or module) and arguments when it is run, and may have options of `check`.
Case = Callable[[], tuple[Any, ...]]


def run_case(name: str, case: Case, plans: Sequence[str] | None = None) -> None:
    fn, args, *options = case()
    check(fn, args, plans=few(name) if plans is None else plans, **(options[0] if options else {}))


def without_dynamo(fn: Callable[..., Any], partition_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``aot_function``, which knows no static inputs and traces what Dynamo does not."""

    def compiler(module: Any, _: Any) -> Any:
        return make_boxed_func(module.forward)

    compiled: Callable[..., Any] = aot_function(fn, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition_fn)
    return compiled


# ----------------------------------------------------------------------------------------- graph breaks


class Broken(nn.Module):
    """Two graphs, since Dynamo is told to break in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).sin()
        torch._dynamo.graph_break()
        return self.second(x).cos().sum()
