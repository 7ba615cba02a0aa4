"""Graphs: the rules that every one of them keeps, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cases import BACKWARD, EITHER, FORWARD, Builder, four_inputs, ids, op_ids
from hypothesis import given
from strategies import bare_problems, problems

from optpart.graph import (
    Graph,
    Op,
    Region,
    Signature,
    TensorSpec,
    ValueKind,
    graph_from_json,
    graph_to_json,
    signature_from_json,
    signature_to_json,
)
from optpart.problem import Problem
from optpart.units import Bytes


def small() -> Graph:
    """x ── f ──> f ── e (EITHER) ──> e, and b(tangent, e)."""
    b = Builder("small").given(8, "x").given(8, "t", kind=ValueKind.TANGENT)
    return b.op("f", "x", FORWARD, 8).op("e", "f", EITHER, 8).op("b", "t e", BACKWARD, 8).problem("f", "b").graph


def with_op(graph: Graph, name: str, **changes: Any) -> Graph:
    return replace(graph, ops=tuple(replace(o, **changes) if o.name == name else o for o in graph.ops))


def with_value(graph: Graph, name: str, **changes: Any) -> Graph:
    return replace(graph, values=tuple(replace(v, **changes) if v.name == name else v for v in graph.values))


# x 0, t 1, f 2, e 3, b 4
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda g: with_value(g, "e", id=2), "value 'e' has id 2 at position 3"),
        (lambda g: with_op(g, "e", id=2), "op 'e' has id 2 at position 1"),
        (lambda g: with_value(g, "e", producer=None), "value 'e': kind computed with producer None"),
        (lambda g: with_value(g, "x", producer=0), "value 'x': kind input with producer 0"),
        (lambda g: with_value(g, "x", nbytes=Bytes(-1)), "value 'x' has -1 bytes"),
        (lambda g: with_op(g, "f", reads=(3,)), "op 'f' reads 'e' before it is written"),
        (lambda g: with_op(g, "e", reads=(3,)), "op 'e' reads 'e' before it is written"),
        (lambda g: with_op(g, "f", after=(2,)), "op 'f' has to run after a later op"),
        (lambda g: with_op(g, "e", writes=(2,)), "op 'e' writes 'f', which is not its own"),
        (lambda g: with_op(g, "e", writes=(3, 3)), "op 'e' writes 'e', which is not its own"),
        (lambda g: with_op(g, "e", writes=()), "op 'b' reads 'e' before it is written"),
        (lambda g: with_op(g, "b", writes=()), "value 'b' is written by no op"),
        (lambda g: with_op(g, "e", reads=(1,)), "either op 'e' reads 't' of the backward"),
        (lambda g: with_op(g, "f", reads=(1,)), "forward op 'f' reads 't' of the backward"),
        (lambda g: with_op(with_op(g, "f", region=EITHER), "e", region=FORWARD), "forward op 'e' reads 'f', whose op"),
        (
            lambda g: with_op(with_op(g, "f", region=BACKWARD), "e", region=EITHER),
            "either op 'e' reads 'f' of the back",
        ),
    ],
)
def test_a_graph_that_breaks_a_rule_is_refused(broken: Callable[[Graph], Graph], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        broken(small())


def test_regions_matter_in_joint_graphs_only() -> None:
    joint = small()
    bare = replace(joint, joint=False)
    assert with_op(bare, "e", reads=(1,)).ops[1].reads == (1,)


def test_readers_and_regions() -> None:
    problem = four_inputs()
    graph = problem.graph
    (add_2,) = ids(problem, "add_2")
    assert graph.readers[add_2] == op_ids(problem, "cos sin")
    assert graph.readers[next(iter(ids(problem, "mul_1")))] == ()
    assert tuple(o.id for o in graph.in_region(EITHER)) == op_ids(problem, "sin_1 neg sin neg_1")
    assert graph.in_region(FORWARD, BACKWARD, EITHER) == graph.ops


def test_a_value_read_twice_by_one_op_has_one_reader() -> None:
    graph = Builder("square").given(8, "x").op("mul", "x x", FORWARD, 8).problem("mul", "").graph
    assert graph.readers == ((0,), ())


def test_the_generators_state_is_created_with_the_values_and_read_by_reruns() -> None:
    op = Op(0, "dropout", Signature("dropout"), FORWARD, (0,), (1, 2), rng_state=3)
    assert op.creates == (1, 2, 3)
    assert op.reads_again == (0, 3)
    plain = replace(op, rng_state=None)
    assert (plain.creates, plain.reads_again) == ((1, 2), (0,))


# ---------------------------------------------------------------------------------------------- JSON


def through_json(graph: Graph) -> Graph:
    return graph_from_json(json.loads(json.dumps(graph_to_json(graph))))


@given(problems())
def test_joint_graphs_come_back_from_json(problem: Problem) -> None:
    assert through_json(problem.graph) == problem.graph


@given(bare_problems())
def test_bare_graphs_come_back_from_json(problem: Problem) -> None:
    assert through_json(problem.graph) == problem.graph


def test_reasons_and_signatures_come_back_from_json() -> None:
    spec = TensorSpec((2, 3), (3, 1), "float32", "cpu")
    signature = Signature(
        "aten.addmm.default",
        (spec, (spec, None), 1, 2.5, True, "x", None),
        (("beta", 0.5), ("dim", (0, 1))),
        (spec, None),
    )
    assert signature_from_json(json.loads(json.dumps(signature_to_json(signature)))) == signature
    graph = with_op(small(), "f", signature=signature, recomputable=False, reason="random", cheap=False)
    graph = with_value(graph, "e", savable=False, reason="tagged MUST_RECOMPUTE")
    assert through_json(graph) == graph


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not a graph of this package: format is 'optpart-plan-1'"):
        graph_from_json({"format": "optpart-plan-1"})
    data = graph_to_json(small())
    data["ops"][0]["reads"] = [3]
    with pytest.raises(ValueError, match="before it is written"):
        graph_from_json(data)


def test_regions_are_words() -> None:
    assert [Region(w) for w in ("forward", "backward", "either")] == [FORWARD, BACKWARD, EITHER]
