"""Rewrite: the emitted graphs run the plan, op by op, and keep AOTAutograd's conventions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conventions import check_conventions, is_state, names, outputs_of
from steps import PLANS, all_again, compare, fresh, keeping, leaf, planned, saving, step
from torch import fx, nn

from optpart import torch_private as tp
from optpart.capture import Capture
from optpart.graph import Graph, Region
from optpart.handover import RewriteError
from optpart.planning import capture_joint
from optpart.plans import Plan, just_in_time
from optpart.rewrite import emitted_ops, rewrite


def captured(fn: Callable[..., Any], *args: Any) -> Capture:
    (joint,) = tp.trace_joint(fn, args)
    return capture_joint(joint)


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm((x @ w).sin() @ w, (8,)).exp()


def two() -> list[torch.Tensor]:
    return [leaf(4, 8), leaf(8, 8)]


def calls(module: fx.GraphModule) -> Counter[str]:
    return Counter(str(n.target) for n in module.graph.nodes if n.op == "call_function" and not tp.is_getitem(n))


def op_id(graph: Graph, name: str) -> int:
    return next(op.id for op in graph.ops if op.name == name)


# -------------------------------------------------------------------------------------- the plan is run


@pytest.mark.parametrize("plan", PLANS)
def test_emitted_ops_are_the_plan(plan: str) -> None:
    one = captured(block, *two())
    made = PLANS[plan](one.graph)
    forward, backward = rewrite(one, made)
    assert (emitted_ops(forward), emitted_ops(backward)) == (made.forward, made.backward)


def test_the_running_example_saves_the_sum_and_redoes_one_cosine() -> None:
    one = captured(lambda a, b, c, d: (a + b + c + d).cos().cos(), *(leaf(2, 4) for _ in range(4)))
    the_sum = one.graph.ops[op_id(one.graph, "add_2")].writes[0]
    forward, backward = rewrite(one, just_in_time(one.graph, frozenset([the_sum])))
    assert names(outputs_of(forward)) == ["cos_1", "add_2"]
    assert calls(backward) == {f"aten.{op}": n for op, n in {"cos.default": 1, "sin.default": 2, "neg.default": 2, "mul.Tensor": 2}.items()}


def test_an_op_may_run_many_times() -> None:
    """Three runs of sin in the backward, of which the last is read."""
    one = captured(block, *two())
    plan = all_again(one.graph)
    sin, mm = op_id(one.graph, "sin"), op_id(one.graph, "mm")
    at = plan.backward.index(sin)
    more = Plan(plan.forward, (*plan.backward[:at], sin, sin, *plan.backward[at:]))
    assert mm in plan.backward[:at]
    _, backward = rewrite(one, more)
    runs = [n.name for n in backward.graph.nodes if str(n.target) == "aten.sin.default"]
    assert runs == ["sin", "sin_again", "sin_again_1"]
    args = [fresh(a) for a in two()]
    compare(
        step(block, args, tp.aot_eager_backend(planned(lambda g: more))),
        step(block, args, tp.aot_eager_backend(tp.default_partition)),
        "three runs",
    )


def test_a_reader_reads_the_newest_run() -> None:
    """The product is saved and also made again: whoever comes after the second run reads that one."""
    one = captured(lambda x, w: (x @ w).sin().sum() + (x @ w).exp().sum(), *two())
    graph = one.graph
    plan = saving(Region.FORWARD)(graph)
    product = graph.ops[op_id(graph, "mm")]
    readers = [i for i, o in enumerate(plan.backward) if product.writes[0] in graph.ops[o].reads]
    at = readers[0] + 1
    _, backward = rewrite(one, Plan(plan.forward, (*plan.backward[:at], product.id, *plan.backward[at:])))
    saved, again = (n for n in backward.graph.nodes if n.name in ("mm", "mm_again"))
    assert (saved.op, again.op) == ("placeholder", "call_function")
    before = {u.name for u in saved.users}
    assert before == {graph.ops[plan.backward[readers[0]]].name}


def test_views_stand_next_to_their_readers() -> None:
    """A transposed weight is no value: it is written where it is read, and never handed over."""
    one = captured(lambda x, w: (x @ w.t()).sin(), leaf(4, 8), leaf(8, 8))
    for make in PLANS.values():
        forward, backward = rewrite(one, make(one.graph))
        assert not [n for n in names(outputs_of(forward)) if n.startswith("t")]
        order = list(backward.graph.nodes)
        for view in (n for n in order if str(n.target) == "aten.t.default"):
            assert min(order.index(u) for u in view.users) - order.index(view) <= 3


# ------------------------------------------------------------------------------------------ conventions


CONVENTIONAL: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], dict[str, Any]]] = {
    "block": (block, two, {}),
    "outputs": (lambda x, w: (x, (y := (x @ w).exp()), y, y.t(), None, 3, y.detach()), two, {}),
    "symbolic sizes": (lambda x, w: (x @ w).sin().view(-1).exp() * x.shape[0], two, {"dynamic": True}),
    "dropout, symbolic sizes": (lambda x, w: F.dropout((x @ w).sin().view(-1), 0.5).exp(), two, {"dynamic": True}),
    "statistics": (nn.BatchNorm1d(8), lambda: [leaf(4, 8)], {}),
}


@pytest.mark.parametrize("name", CONVENTIONAL)
def test_pytorchs_own_partition_keeps_the_conventions(name: str) -> None:
    """So `conventions.py`, which every plan of these tests is checked by, asks for nothing that PyTorch does not do."""
    fn, args, options = CONVENTIONAL[name]

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **kw: Any) -> Any:
        made = tp.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kw)
        check_conventions(joint, *made, num_fwd_outputs)
        return made

    step(fn, args(), tp.aot_eager_backend(partition), **options)


@pytest.mark.parametrize("name", CONVENTIONAL)
@pytest.mark.parametrize("plan", PLANS)
def test_ours_keeps_the_conventions(name: str, plan: str) -> None:
    fn, args, options = CONVENTIONAL[name]
    step(fn, args(), tp.aot_eager_backend(planned(PLANS[plan])), **options)


def test_nodes_keep_the_joint_graphs_names_and_meta() -> None:
    one = captured(block, *two())
    joint = {n.name: n for n in one.joint.graph.nodes}
    for make in PLANS.values():
        for module in rewrite(one, make(one.graph)):
            for node in module.graph.nodes:
                if node.op == "call_function" and "_again" not in node.name:
                    assert node.target == joint[node.name].target
                    assert node.meta["val"] is joint[node.name].meta["val"]


def test_the_backward_is_marked() -> None:
    _, backward = rewrite(one := captured(block, *two()), all_again(one.graph))
    assert all(n.meta["autograd_backward"] for n in backward.graph.nodes if n.op == "call_function")


def test_modules_are_new_and_find_their_constants() -> None:
    one = captured(lambda x, w: (x @ w) * torch.arange(8.0), *two())
    forward, backward = rewrite(one, all_again(one.graph))
    assert forward is not one.joint
    assert backward is not one.joint
    for module in (forward, backward):
        module.recompile()
        for n in module.graph.find_nodes(op="get_attr"):
            assert isinstance(getattr(module, str(n.target)), torch.Tensor)


# ---------------------------------------------------------------------------------------- random numbers


def test_only_recomputed_draws_save_their_state() -> None:
    """One state, although two draws are made: the other mask is saved."""
    one = captured(lambda x: F.dropout(F.dropout(x.sin(), 0.5).exp(), 0.3).sin(), leaf(8, 8))
    first, second = (op for op in one.graph.ops if op.rng_state is not None)
    plan = keeping(one.graph, frozenset(second.writes))
    assert first.id in plan.backward
    assert second.id not in plan.backward
    forward, backward = rewrite(one, plan)
    assert len([n for n in backward.graph.nodes if is_state(n)]) == 1
    assert calls(forward)["run_and_save_rng_state"] == 1
    assert calls(backward)["run_with_rng_state"] == 1


# ---------------------------------------------------------------------------------------- what is refused


def refused(one: Capture, plan: Plan) -> str:
    with pytest.raises(RewriteError) as error:
        rewrite(one, plan)
    return str(error.value)


def test_a_second_run_of_what_runs_once() -> None:
    class Updated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * self.b.exp()).sin()
            self.b.add_(1)
            return y

    one = captured(Updated(), leaf(4, 4))
    plan = keeping(one.graph, frozenset())
    exp = op_id(one.graph, "exp")
    assert exp in plan.forward
    message = refused(one, Plan(plan.forward, (exp, *plan.backward)))
    assert "'exp' may not be recomputed: reads an input that is overwritten" in message


def test_a_value_that_is_nowhere() -> None:
    """sin reads a product that the backward neither has nor makes; nothing wrong is returned."""
    one = captured(block, *two())
    plan = all_again(one.graph)
    mm = op_id(one.graph, "mm")
    without = tuple(o for o in plan.forward if o != mm)
    assert "which the plan neither saves nor runs before it" in refused(one, Plan(without, plan.backward))


def test_an_op_that_is_missing() -> None:
    one = captured(block, *two())
    plan = all_again(one.graph)
    assert refused(one, Plan(plan.forward, plan.backward[:-1]))


def test_a_value_that_may_not_be_saved() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda x, w: (x @ w).sin().exp(), x, w, use_reentrant=False) @ w

    one = captured(fn, leaf(8, 8), leaf(8, 8))
    tagged = {v.id for v in one.graph.values if not v.savable and "RECOMPUTE" in v.reason}
    assert "may not be saved: tagged" in refused(one, just_in_time(one.graph, frozenset(tagged)))
