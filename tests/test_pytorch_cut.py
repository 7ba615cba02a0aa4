"""We understand what we replace: PyTorch's min-cut and our network agree to the last unit.

Weights and bans come from a run of PyTorch's partitioner, all else from our own reading of the joint graph:
for every model of the zoo, for random functions, and for random joint graphs built by hand, which have what
traced ones rarely have (checkpoint tags, forward values as gradients, no cut at all).
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch import fx
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import models
import optpart
from optpart import torch_private as tp
from optpart.graph import Region, ValueKind
from optpart.pytorch_cut import NodeGraph, RecordedCut, cut_value, node_graph, record

README = Path(__file__).resolve().parent.parent / "README.md"
Call = torch._ops.OpOverload


def both(joint: fx.GraphModule, n: int, static: tuple[int, ...] = ()) -> tuple[NodeGraph, RecordedCut]:
    recorded = record(joint, num_fwd_outputs=n, static_lifetime_input_indices=static)
    assert recorded is not None
    return node_graph(joint, num_fwd_outputs=n), recorded


def agree(nodes: NodeGraph, recorded: RecordedCut) -> None:
    """Sides and cut are the same.  PyTorch's arcs into the sink are not used by ours, only compared."""
    assert names_of(nodes, lambda o: nodes.graph.ops[o].region is Region.BACKWARD or o in nodes.rerun) == recorded.late
    graph = nodes.graph
    gradients = {graph.values[v].name for v in (*graph.backward_outputs, *nodes.needed)}
    assert gradients - recorded.late == recorded.needed - recorded.late
    assert cut_value(nodes, recorded) == recorded.value


def names_of(nodes: NodeGraph, in_backward: Callable[[int], bool]) -> set[str]:
    given = {v.name for v in nodes.graph.values if v.kind is ValueKind.TANGENT}
    return given | {op.name for op in nodes.graph.ops if in_backward(op.id)}


# ------------------------------------------------------------------------------------------ real models


@pytest.mark.parametrize("decompose", [False, True], ids=["as_traced", "decomposed"])
@pytest.mark.parametrize("name", models.names())
def test_every_model(name: str, decompose: bool) -> None:
    loaded = models.load(name, "tiny", fake=True)
    [joint] = tp.trace_joint(loaded.model, loaded.batch, decompose=decompose)
    nodes, recorded = both(joint.module, joint.num_fwd_outputs, joint.static_lifetime_input_indices)
    agree(nodes, recorded)
    assert 0 < recorded.value < math.inf
    assert recorded.banned - {v.name for v in nodes.graph.values if v.producer is None}


# -------------------------------------------------------------------------------------- random functions

N = 4  # every tensor of a random function or graph is N x N, or made so again
STEPS: tuple[Callable[..., torch.Tensor], ...] = (
    torch.sin,
    torch.exp,
    torch.relu,
    functional.gelu,
    functional.dropout,
    torch.add,
    torch.mul,
    torch.mm,
    torch.maximum,
    lambda x: functional.layer_norm(x, (N,)),
    lambda x: torch.softmax(x, -1),
    lambda x: x.sum(1, keepdim=True).expand(N, N),
    lambda x: x.max(1, keepdim=True).values + x,
    lambda x: x.t(),
    lambda x: x.reshape(2, -1)[:, :N].repeat(2, 1),
    lambda x, y: torch.cat([x, y])[1 : N + 1],
    lambda x, y: torch.where(x > y, x, y.detach()),
    lambda x, y: checkpoint(lambda a, b: (a * b).sin().exp(), x, y, use_reentrant=False),
)
BINARY = {torch.add, torch.mul, torch.mm, torch.maximum, *STEPS[-3:]}


def random_function(seed: int) -> Callable[..., Any]:
    """A program of up to 12 steps on two inputs; it returns one or two of its values, and one without a gradient."""
    rng = random.Random(seed)
    size = rng.randint(2, 12)
    program = [(rng.choice(STEPS), rng.randrange(2 + i), rng.randrange(2 + i)) for i in range(size)]
    returned = {2 + size - 1, rng.randrange(2, 2 + size)}

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for step, i, j in program:
            values.append(step(values[i], values[j]) if step in BINARY else step(values[i]))
        return (*(values[i].clone() for i in sorted(returned)), values[-1].detach() * 2)

    return function


@pytest.mark.parametrize("seed", range(24))
def test_random_functions(seed: int) -> None:
    inputs = [torch.randn(N, N, requires_grad=True) for _ in range(2)]
    try:
        [joint] = tp.trace_joint(random_function(seed), inputs, decompose=seed % 2 == 1)
    except ValueError as e:
        assert "no joint graph" in str(e)  # noqa: PT017  # nothing that was drawn needs a gradient
        return
    recorded = record(joint.module, num_fwd_outputs=joint.num_fwd_outputs)
    if recorded is not None:
        agree(node_graph(joint.module, num_fwd_outputs=joint.num_fwd_outputs), recorded)


# ----------------------------------------------------------------------------------- random joint graphs

aten = torch.ops.aten
CALLS: tuple[tuple[Call, int, tuple[Any, ...]], ...] = (  # operator, tensors that it reads, further arguments
    (aten.sin.default, 1, ()),
    (aten.relu.default, 1, ()),
    (aten.exp.default, 1, ()),
    (aten.t.default, 1, ()),
    (aten.view.default, 1, ([N, N],)),
    (aten.cumsum.default, 1, (0,)),
    (aten.add.Tensor, 2, ()),
    (aten.mul.Tensor, 2, ()),
    (aten.mm.default, 2, ()),
    (aten.sum.dim_IntList, 1, ([1], True)),
    (aten.max.dim, 1, (1, True)),
    (aten.sort.default, 1, ()),  # a tuple that PyTorch does not make twice
)


def random_joint(seed: int) -> tuple[fx.GraphModule, int]:
    """A joint graph as AOTAutograd might trace it, with 1 to 3 forward outputs; their number comes with it."""
    rng = random.Random(seed)
    graph = fx.Graph()
    mode = tp.FakeTensorMode()
    policies = [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE]
    tagged = rng.random() < 0.4

    def given(name: str) -> fx.Node:
        node = graph.placeholder(name)
        with mode:
            node.meta["val"] = torch.empty(N, N)
        return node

    def call(target: Any, *args: Any, tag: str) -> fx.Node:
        node = graph.call_function(target, args)
        with mode:
            node.meta["val"] = target(*fx.map_arg(args, lambda n: n.meta["val"]))
        node.meta["partitioner_tag"] = tag
        if tagged and tag == "is_forward" and rng.random() < 0.3:
            node.meta |= {"recompute": rng.choice(policies), "ac_graph_id": 0}
        return node

    def full(node: fx.Node) -> bool:
        return node.meta["val"].shape == (N, N)

    def grow(nodes: list[fx.Node], some: list[fx.Node], tag: str) -> fx.Node:
        target, count, rest = rng.choice(CALLS)
        read = [rng.choice(nodes) for _ in range(count - 1)] + [rng.choice(some)]
        node = call(target, *read, *rest, tag=tag)
        if target in (aten.max.dim, aten.sort.default):
            node = call(tp.operator.getitem, node, 0, tag=tag)
        if not full(node):
            node = call(aten.expand.default, node, [N, N], tag=tag)
        return node

    forward = [given(f"primals_{i}") for i in range(1, rng.randint(2, 4))]
    inputs = list(forward)
    for _ in range(rng.randint(2, 14)):
        forward.append(grow(forward, forward[-3:], "is_forward"))
    outputs = rng.sample(forward[len(inputs) :], k=min(rng.randint(1, 3), len(forward) - len(inputs)))
    backward = [given(f"tangents_{i}") for i in range(1, len(outputs) + 1)]
    free: list[fx.Node] = []  # nodes of the backward that read no tangent
    for _ in range(rng.randint(2, 14)):
        if rng.random() < 0.25:
            free.append(grow(forward + free, forward + free, "is_backward"))
        else:
            backward.append(grow(forward + free + backward, backward, "is_backward"))
    gradients: list[fx.Node | None] = [rng.choice([*backward, None]) for _ in inputs]
    gradients[0] = rng.choice([backward[-1], backward[-1], backward[-1], *forward])
    graph.output((*outputs, *gradients))
    return fx.GraphModule(torch.nn.Module(), graph), len(outputs)


SEEDS = range(150)


@functools.cache
def solved(seed: int) -> tuple[NodeGraph, RecordedCut] | None:
    joint, n = random_joint(seed)
    recorded = record(joint, num_fwd_outputs=n)
    return None if recorded is None else (node_graph(joint, num_fwd_outputs=n), recorded)


def test_random_joint_graphs() -> None:
    """And among them are all that one would want to have tried."""
    found = [answer for seed in SEEDS if (answer := solved(seed)) is not None]
    for nodes, recorded in found:
        agree(nodes, recorded)
    assert len(found) > 100
    assert sum(0 < r.value < math.inf for _, r in found) > 50
    assert any(r.value == math.inf for _, r in found)
    assert any(n.rerun for n, _ in found)
    assert any(n.needed for n, _ in found)
    assert any(r.needed for _, r in found)
    assert any(n.graph.in_region(Region.EITHER) for n, _ in found)


# --------------------------------------------------------------------------------------- the parts of it


def test_networkx_is_left_as_it_was() -> None:
    before = networkx.minimum_cut
    joint, n = random_joint(0)
    code = joint.graph.python_code("self").src
    record(joint, num_fwd_outputs=n)
    assert networkx.minimum_cut is before
    assert joint.graph.python_code("self").src == code


def test_a_network_of_another_graph_is_refused() -> None:
    nodes, recorded = both(*random_joint(0))
    other = replace(recorded, weight=recorded.weight | {"nobody": 1.0})
    with pytest.raises(ValueError, match="does not have: 'nobody'"):
        cut_value(nodes, other)


def test_the_structure_counts() -> None:
    """With an arc less in our network the values differ, so it is not weights and bans alone that make them equal."""
    [joint] = tp.trace_joint(four, [torch.randn(2, 4, requires_grad=True) for _ in range(4)])
    nodes, recorded = both(joint.module, joint.num_fwd_outputs)
    agree(nodes, recorded)
    graph = nodes.graph
    deaf = tuple(replace(op, reads=()) if op.region is Region.EITHER else op for op in graph.ops)
    assert cut_value(replace(nodes, graph=replace(graph, ops=deaf)), recorded) == 0 < recorded.value


# ---------------------------------------------------------------------------------------- the four inputs


def four(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    x = a + b + c + d
    return x.cos().cos()


def halves(partition_fn: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """What the forward of the four-input example returns, and what its backward calls; the step is run."""
    seen: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        seen.append(module)
        return make_boxed_func(module.forward)

    inputs = [torch.randn(2, 4, requires_grad=True) for _ in range(4)]
    result = aot_function(four, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition_fn)(*inputs)
    gradients = torch.autograd.grad(result.sum(), inputs)
    expected = torch.autograd.grad(four(*inputs).sum(), inputs)
    assert all(map(torch.equal, gradients, expected))
    forward, backward = seen
    returned = [n.name for n in tp.tree_leaves(forward.graph.output_node().args[0])]
    return returned, [n.name for n in backward.graph.nodes if n.op == "call_function"]


def test_the_four_inputs() -> None:
    """PyTorch's tutorial: of the result and the sum the backward makes one cos again; by default both are kept."""
    returned, calls = halves(optpart.partition)
    assert returned == ["cos_1", "add_2"]
    assert calls[0] == "cos"
    assert calls.count("cos") == 1
    assert {"add", "add_1", "add_2", "cos_1"}.isdisjoint(calls)
    min_cut_returned, min_cut_calls = halves(tp.min_cut_partition)
    assert (returned, sorted(calls)) == (min_cut_returned, sorted(min_cut_calls))
    default_returned, default_calls = halves(tp.default_partition)
    assert default_returned[0] == "cos_1"
    assert sorted(default_returned[1:]) == ["add_2", "cos"]
    assert "cos" not in default_calls


def test_the_readme_shows_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Its program runs as it stands, and prints the lines that stand below it."""
    section = README.read_text().partition("## A function of four inputs")[2].partition("\n## ")[0]
    program, *shown = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(shown) == 2
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    assert all(line.rstrip() in printed for line in shown)
