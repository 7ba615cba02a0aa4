"""Capture: joint graphs of small functions as Graphs, checked against what is known of the functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import four_inputs
from steps import leaf
from torch import nn
from torch.utils.checkpoint import checkpoint

from optpart import torch_private as tp
from optpart.capture import Capture, capture
from optpart.graph import Graph, Op, Region, Value, ValueKind, graph_from_json, graph_to_json

FORWARD, BACKWARD, EITHER = Region.FORWARD, Region.BACKWARD, Region.EITHER


def captured(fn: Callable[..., Any], *args: Any, decompose: bool = False, **options: Any) -> Capture:
    (joint,) = tp.trace_joint(fn, args, decompose=decompose)
    return capture(
        joint.module,
        num_fwd_outputs=joint.num_fwd_outputs,
        static_lifetime_input_indices=joint.static_lifetime_input_indices,
        **options,
    )


def ops(graph: Graph, target: str) -> list[Op]:
    return [op for op in graph.ops if op.target == f"aten.{target}"]


def value(graph: Graph, name: str) -> Value:
    return next(v for v in graph.values if v.name == name)


def cosines(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return (a + b + c + d).cos().cos()


# -------------------------------------------------------------------------------------- what is there


def test_the_running_example_is_the_one_that_is_drawn() -> None:
    """Ops, regions and sizes of `cases.four_inputs`, which is drawn there and typed by hand."""
    graph = captured(cosines, *(leaf(2, 4) for _ in range(4))).graph
    drawn = four_inputs().graph

    def shape(g: Graph) -> Any:
        """Inputs as (kind, bytes); ops as (name, region, who made what it reads), without PyTorch's numbering."""

        def maker(v: int) -> str:
            producer = g.values[v].producer
            return g.values[v].kind.value if producer is None else g.ops[producer].name.rstrip("_0123456789")

        given = sorted((v.kind.value, v.nbytes) for v in g.values if v.producer is None)
        ops = sorted((op.name.rstrip("_0123456789"), op.region, sorted(map(maker, op.reads))) for op in g.ops)
        return given, ops, [v.nbytes for v in g.values]

    assert shape(graph) == shape(drawn)
    assert [graph.values[v].name for v in graph.forward_outputs] == ["cos_1"]
    assert [graph.values[v].name for v in graph.backward_outputs] == ["mul_1"]
    assert all(op.cheap for op in graph.in_region(FORWARD, EITHER))


def test_views_are_no_values() -> None:
    graph = captured(lambda x, w: (x @ w).t().reshape(-1)[2:].sin(), leaf(3, 4), leaf(4, 5)).graph
    assert not {op.target for op in graph.ops} & {"aten.t.default", "aten.view.default", "aten.slice.Tensor"}
    (product,) = ops(graph, "mm.default")[:1]
    assert graph.values[product.writes[0]].nbytes == 3 * 5 * 4


def test_a_multi_output_op_writes_a_value_for_each_storage() -> None:
    found = captured(lambda x: F.layer_norm(x.sin(), (16,)).cos(), leaf(4, 16))
    (norm,) = ops(found.graph, "native_layer_norm.default")
    assert [found.graph.values[v].nbytes for v in norm.writes] == [4 * 16 * 4, 4 * 4, 4 * 4]
    for v in norm.writes:  # roots are what is saved: a tensor, never the tuple
        assert all(isinstance(root.meta["val"], torch.Tensor) for root in found.roots[v])


def test_bytes_are_those_of_the_storage() -> None:
    """A transposed or expanded input takes what its storage takes."""
    graph = captured(lambda x: x.sin(), torch.randn(1, 8).expand(4, 8).requires_grad_()).graph
    (given,) = [v for v in graph.values if v.kind is ValueKind.INPUT]
    assert given.nbytes == 8 * 4


def test_parameters_and_buffers_are_static() -> None:
    graph = captured(nn.Linear(4, 3), leaf(2, 4)).graph
    kinds = sorted((v.kind.value, v.nbytes) for v in graph.values if v.producer is None)
    assert kinds == [("input", 32), ("static", 12), ("static", 48), ("tangent", 24)]


def test_a_signature_is_all_that_a_cost_model_needs() -> None:
    (product, *_) = ops(captured(lambda x, w: x @ w, leaf(3, 4), leaf(4, 5)).graph, "mm.default")
    assert [a.shape for a in product.signature.args] == [(3, 4), (4, 5)]
    assert [a.stride for a in product.signature.args] == [(4, 1), (5, 1)]
    assert product.signature.outputs[0].shape == (3, 5)


# ------------------------------------------------------------------------------------ who runs where


def test_regions() -> None:
    found = captured(lambda x: F.dropout(x.sin(), 0.5).exp(), leaf(8, 8)).graph
    region = {op.name: op.region for op in found.ops}
    assert region["sin"] is region["native_dropout"] is region["exp"] is FORWARD
    assert region["native_dropout_backward"] is BACKWARD
    assert region["cos"] is EITHER  # x.cos() is needed by the backward alone, and reads no tangent


def test_ops_that_are_free_stand_behind_what_they_read() -> None:
    graph = captured(lambda x, w: ((x @ w).sin() @ w).sin(), leaf(8, 8), leaf(8, 8)).graph
    order = [op.name for op in graph.ops]
    assert order.index("cos") < order.index("mm_1") or order.index("cos_1") < order.index("mm_1")


def test_draws_stay_in_order() -> None:
    graph = captured(lambda x: F.dropout(F.dropout(x, 0.5).sin(), 0.5), leaf(8, 8)).graph
    first, second = ops(graph, "native_dropout.default")
    assert first.id in second.after
    assert graph.values[first.rng_state].nbytes == torch.get_rng_state().nbytes


# ------------------------------------------------------------------------------------- what may be redone


def reason(graph: Graph, target: str) -> str:
    return ops(graph, target)[0].reason


def test_random_ops() -> None:
    """Redone from the generator's state, or not at all; and not random at probability 0."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5).exp()

    (op,) = ops(captured(fn, leaf(8, 8)).graph, "native_dropout.default")
    assert (op.recomputable, op.cheap, op.rng_state is None) == (True, False, False)
    (op,) = ops(captured(fn, leaf(8, 8), redo_random=False).graph, "native_dropout.default")
    assert (op.recomputable, op.reason, op.rng_state) == (False, "random", None)

    def attention(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q).sin()

    graph = captured(attention, leaf(2, 2, 8, 4)).graph
    assert all(op.rng_state is None and op.reason != "random" for op in graph.ops)


class Buffer(nn.Module):
    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("b", torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.read(self.b)).sin()
        self.b.add_(1)
        return y


def test_a_reader_of_an_overwritten_buffer_runs_once() -> None:
    graph = captured(Buffer(torch.exp, (4, 4)), leaf(4, 4)).graph
    assert reason(graph, "exp.default") == "reads an input that is overwritten"
    (buffer,) = [v for v in graph.values if v.kind is ValueKind.STATIC]
    assert (buffer.savable, buffer.reason) == (False, "overwritten before the backward")
    assert reason(graph, "copy_.default") == "mutates or has an effect"


def test_a_copy_is_taken_where_it_pays() -> None:
    """64 times larger than the buffer is what reads it: the copy is kept, and its readers may run again."""

    def read(b: torch.Tensor) -> torch.Tensor:
        return b.expand(64, 4).exp()

    graph = captured(Buffer(read, (4,)), leaf(64, 4)).graph
    (copy,) = ops(graph, "clone.default")
    assert not copy.recomputable
    assert ops(graph, "exp.default")[0].recomputable
    assert not ops(captured(Buffer(torch.exp, (64, 4)), leaf(64, 4)).graph, "clone.default")


def test_tags() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x, w: (x @ w).sin(), x, w, use_reentrant=False) * w

    graph = captured(fn, leaf(4, 4), leaf(4, 4)).graph
    (product,) = [op for op in ops(graph, "mm.default") if op.region is FORWARD]
    assert product.recomputable
    assert product.cheap  # the user said so
    assert value(graph, product.name).savable is False
    assert "RECOMPUTE" in value(graph, product.name).reason


def test_what_is_cheap_is_pytorchs_own_list() -> None:
    graph = captured(lambda x, w: (x @ w).sin().sum(1), leaf(4, 4), leaf(4, 4)).graph
    cheap = {op.target: op.cheap for op in graph.in_region(FORWARD)}
    assert not cheap["aten.mm.default"]
    assert cheap["aten.sin.default"]


# --------------------------------------------------------------------------------------------- the rest


def test_the_joint_module_keeps_its_graph() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda x, w: F.dropout((x @ w).sin(), 0.5) @ w, x, w, use_reentrant=False)
        return checkpoint(torch.sin, y, use_reentrant=False)  # the region's border is tagged "save" on the way

    (joint,) = tp.trace_joint(fn, [leaf(4, 4), leaf(4, 4)])
    before = joint.module.print_readable(print_output=False)
    tags = [n.meta.get("recompute") for n in joint.module.graph.nodes]
    capture(joint.module, num_fwd_outputs=joint.num_fwd_outputs)
    assert joint.module.print_readable(print_output=False) == before
    assert [n.meta.get("recompute") for n in joint.module.graph.nodes] == tags


@pytest.mark.parametrize("decompose", [False, True])
def test_json_round_trip(decompose: bool) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.GELU())
    graph = captured(net, leaf(4, 8), decompose=decompose).graph
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_symbolic_sizes_are_priced_by_their_hints() -> None:
    seen: list[Graph] = []

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **kw: Any) -> Any:
        seen.append(capture(joint, num_fwd_outputs=num_fwd_outputs).graph)
        return tp.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    backend = tp.aot_eager_backend(partition)
    torch.compile(lambda x, w: (x @ w).sin(), backend=backend, dynamic=True)(leaf(3, 4), leaf(4, 5))
    (graph,) = seen
    assert value(graph, "mm").nbytes == 3 * 5 * 4


PRINT_GRAPH = """
import json, sys, torch
from torch import nn
from optpart import torch_private as tp
from optpart.capture import capture
from optpart.graph import graph_to_json
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8))
(joint,) = tp.trace_joint(net, [torch.randn(4, 8, requires_grad=True)])
print(json.dumps(graph_to_json(capture(joint.module, num_fwd_outputs=joint.num_fwd_outputs).graph)))
"""


@pytest.mark.slow
def test_any_hash_seed_gives_the_same_graph() -> None:
    root = Path(__file__).resolve().parent.parent
    out = [
        subprocess.run(
            [sys.executable, "-c", PRINT_GRAPH],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert out[0] == out[1]
    assert json.loads(out[0])["ops"]
