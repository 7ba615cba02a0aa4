"""What torch is given: settings arrive, failures end in a partition and say so, and a cache key covers every setting."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conventions import names, outputs_of
from steps import close, compare, fresh, leaf, step, without_dynamo
from torch import nn

import optpart
from optpart import partitioner as module
from optpart import torch_private as tp
from optpart.partitioner import FallbackWarning, Partitioner, backend, dynamo_backend, partition
from optpart.plans import Plan
from optpart.settings import Settings
from optpart.solver.base import InfeasibleBudget, Result
from optpart.validate import validate


def cosines(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return (a + b + c + d).cos().cos()


def four() -> list[torch.Tensor]:
    return [leaf(2, 4) for _ in range(4)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16))


def kept(partition_fn: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    """The same ``partition_fn``; what it returns is appended to ``seen``."""

    def call(*args: Any, **kw: Any) -> Any:
        seen.append(partition_fn(*args, **kw))
        return seen[-1]

    return call


# -------------------------------------------------------------------------------- the running example


@pytest.mark.parametrize("partition_fn", [partition, tp.min_cut_partition])
def test_the_sum_alone_is_saved_and_one_cosine_redone(partition_fn: Any) -> None:
    """As PyTorch's min-cut does it."""
    seen: list[Any] = []
    run = without_dynamo(cosines, kept(partition_fn, seen))
    run(*four()).sum().backward()
    ((forward, backward),) = seen
    assert [n.name for n in forward.graph.nodes if n.op == "call_function"] == ["add", "add_1", "add_2", "cos", "cos_1"]
    assert names(outputs_of(forward)) == ["cos_1", "add_2"]
    again = [str(n.target) for n in backward.graph.nodes if n.op == "call_function"]
    assert again.count("aten.cos.default") == 1
    assert sorted(again) == ["aten.cos.default"] + ["aten.mul.Tensor"] * 2 + ["aten.neg.default"] * 2 + [
        "aten.sin.default"
    ] * 2


def test_the_default_partition_keeps_both() -> None:
    seen: list[Any] = []
    without_dynamo(cosines, kept(tp.default_partition, seen))(*four()).sum().backward()
    ((forward, _),) = seen
    assert names(outputs_of(forward)) == ["cos_1", "add_2", "cos"]


# ----------------------------------------------------------------------------------------- keywords


def joint() -> tp.Joint:
    (one,) = tp.trace_joint(network(), [leaf(4, 16)])
    return one


def call(partition_fn: Callable[..., Any], one: tp.Joint, **kw: Any) -> Any:
    static = list(one.static_lifetime_input_indices)
    return partition_fn(
        one.module, one.inputs, num_fwd_outputs=one.num_fwd_outputs, static_lifetime_input_indices=static, **kw
    )


def test_keywords_of_torch_are_accepted() -> None:
    for kw in ({}, {"compiler": "inductor"}, {"static_lifetime_input_nodes": None}, {"anything_new": 1}):
        forward, backward = call(partition, joint(), **kw)
        assert isinstance(forward, torch.fx.GraphModule)
        assert isinstance(backward, torch.fx.GraphModule)


def test_no_static_inputs_and_no_joint_inputs() -> None:
    one = joint()
    for inputs in (one.inputs, [], None):
        assert partition(tp.copy_module(one.module), inputs, num_fwd_outputs=one.num_fwd_outputs)


@pytest.mark.parametrize("wrong", [{"memory_buget": 0.5}, {"memory_budget": 1.5}, {"time_limit": 0}, {"on_failure": "no"}])
def test_wrong_settings_are_refused_in_words(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    for make in (Partitioner, backend, lambda **kw: call(partition, joint(), **kw)):
        with pytest.raises(ValueError, match=name):
            make(**wrong)


def test_settings_may_be_bound_to_the_function() -> None:
    run = without_dynamo(cosines, functools.partial(partition, on_failure="raise", memory_budget=0.0))
    args = four()
    close(step(run, args), step(cosines, args), "bound settings")


def test_the_public_names() -> None:
    assert optpart.partition is partition
    assert optpart.Partitioner is Partitioner
    assert optpart.backend is backend


# ----------------------------------------------------------------------------------------- failures


def broken(*args: Any, **kw: Any) -> Any:
    raise ZeroDivisionError("a fault of ours")


def no_such_plan(result: Result) -> Callable[..., Result]:
    """A solver whose plan leaves the forward out."""
    from dataclasses import replace

    assert result.plan is not None
    wrong = replace(result, plan=Plan((), result.plan.backward))
    return lambda *args: wrong


def test_a_failure_ends_in_min_cut_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    net, args = network(), [leaf(4, 16)]
    expected = step(net, args, tp.aot_eager_backend(tp.min_cut_partition))
    monkeypatch.setattr(module, "solve", broken)
    partitioner = Partitioner()
    with pytest.warns(FallbackWarning, match="by PyTorch's min-cut instead, because of ZeroDivisionError: a fault of ours"):
        compare(step(net, args, tp.aot_eager_backend(partitioner)), expected, "fallback")
    assert partitioner.fallbacks == 1
    assert partitioner.partitions[0].fallback == "ZeroDivisionError: a fault of ours"


def test_a_failure_of_both_ends_in_the_default_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's min-cut has graphs that it fails on, too."""
    net, args = network(), [leaf(4, 16)]
    expected = step(net, args, tp.aot_eager_backend(tp.default_partition))
    monkeypatch.setattr(module, "solve", broken)
    monkeypatch.setattr(tp, "min_cut_partition", broken)
    partitioner = Partitioner()
    with pytest.warns(FallbackWarning, match="by PyTorch's default partition instead, because of .*its min-cut failed"):
        compare(step(net, args, tp.aot_eager_backend(partitioner)), expected, "fallback")
    assert partitioner.fallbacks == 1


def test_a_failure_may_be_raised_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "solve", broken)
    with pytest.raises(ZeroDivisionError):
        call(Partitioner(on_failure="raise"), joint())


@pytest.mark.parametrize("settings", [{}, {"memory_budget": 1.0}])
def test_a_wrong_plan_is_never_emitted(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    good = Partitioner(on_failure="raise", **settings)
    call(good, one := joint())
    result = good.partitions[0].result
    assert result is not None
    monkeypatch.setattr(module, "solve", no_such_plan(result))
    with pytest.raises(RuntimeError):
        call(Partitioner(on_failure="raise", **settings), one)


@pytest.mark.parametrize("on_failure", ["raise", "min_cut"])
def test_an_impossible_budget_is_never_papered_over(on_failure: Any) -> None:
    with pytest.raises(InfeasibleBudget, match="the smallest peak that can be reached is") as error:
        call(Partitioner(on_failure=on_failure, memory_budget=100), joint())
    assert error.value.budget == 100
    assert error.value.smallest > 100


def test_an_impossible_budget_through_torch_compile() -> None:
    """It arrives inside Dynamo's own error."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        step(network(), [leaf(4, 16)], backend(compiler="aot_eager", memory_budget="1 kB"))
    assert isinstance(error.value.inner_exception, InfeasibleBudget)


def test_the_smallest_peak_that_is_named_can_be_reached() -> None:
    with pytest.raises(InfeasibleBudget) as error:
        call(Partitioner(memory_budget=100), joint())
    partitioner = Partitioner(on_failure="raise", memory_budget=error.value.smallest)
    call(partitioner, joint())
    (found,) = partitioner.partitions
    verdict = validate(found.problem, found.result.plan)
    assert verdict.ok
    assert verdict.peak_bytes <= error.value.smallest


# ---------------------------------------------------------------------------------------- each graph


def test_every_graph_of_a_broken_model_is_partitioned() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().exp()
        torch._dynamo.graph_break()
        return y.cos().exp()

    partitioner = Partitioner(on_failure="raise")
    step(fn, [leaf(4, 4)], tp.aot_eager_backend(partitioner), fullgraph=False)
    assert len(partitioner.partitions) == 2


def test_a_graph_without_backward_has_no_plan() -> None:
    """No gradient leaves it: PyTorch's default partition takes it, and that is no fallback."""

    def fn(x: torch.Tensor) -> Any:
        return x.detach().sin(), x.view(-1)

    partitioner = Partitioner(on_failure="raise")
    one = leaf(4, 4)
    out, _ = torch.compile(fn, backend=tp.aot_eager_backend(partitioner))(one)
    assert torch.equal(out, one.sin())
    assert partitioner.fallbacks == 0


def test_the_plan_is_an_artifact_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(tp, "log_artifact", lambda name, payload: logged.update({name: json.loads(payload())}))
    call(Partitioner(on_failure="raise"), joint())
    assert {"status", "plan", "overhead", "bound", "gap"} <= logged["optpart_plan"].keys()


# ------------------------------------------------------------------------------------ the cache's key

CHANGES: dict[str, Any] = {
    "memory_budget": 0.5,
    "cost_model": "flops",
    "time_limit": 5.0,
    "on_failure": "raise",
    "seed": 1,
    "threads": 2,
    "workspace": "none",
    "hold_order": False,
}


def test_every_setting_changes_the_uuid() -> None:
    """With a budget: without one the setting `workspace` changes nothing."""
    assert CHANGES.keys() == set(module.setting_names())
    base: dict[str, Any] = {"memory_budget": 0.25}
    digests = {Partitioner(**base).uuid(), *(Partitioner(**base | {k: v}).uuid() for k, v in CHANGES.items())}
    assert len(digests) == 1 + len(CHANGES)
    assert Partitioner(**base).uuid() == Partitioner(**base).uuid() != Partitioner().uuid()


def test_a_change_of_the_package_changes_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Partitioner().uuid()
    monkeypatch.setattr(module, "package_hash", lambda: b"another version")
    assert Partitioner().uuid() != before


def test_what_happened_is_no_part_of_the_key() -> None:
    """Inductor pickles the object into its key: a statistic in it would be a miss, an unpicklable one a bypass."""
    partitioner = Partitioner(memory_budget=0.5)
    before = pickle.dumps(partitioner)
    call(partitioner, joint())
    assert partitioner.partitions
    assert pickle.dumps(partitioner) == before
    again = pickle.loads(before)
    assert again.settings == partitioner.settings == Settings(memory_budget=0.5)
    assert again.uuid() == partitioner.uuid()
    assert again.partitions == []


PRINT_UUID = "from optpart.partitioner import Partitioner; print(Partitioner(memory_budget=0.5).uuid().hex())"


@pytest.mark.slow
def test_the_uuid_is_the_same_in_every_process() -> None:
    root = Path(__file__).resolve().parent.parent
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        out = subprocess.run([sys.executable, "-c", PRINT_UUID], env=environment, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == Partitioner(memory_budget=0.5).uuid().hex()


# ----------------------------------------------------------------------------------------- backends


def test_backends() -> None:
    net, args = network(), [leaf(4, 16)]
    expected = step(net, args, tp.aot_eager_backend(tp.default_partition))
    compare(step(net, args, backend(compiler="aot_eager", on_failure="raise", memory_budget=0.5)), expected, "backend")

    torch.compiler.reset()
    options = {"compiler": "aot_eager", "memory_budget": 0.5, "on_failure": "raise"}
    run = torch.compile(net, backend=dynamo_backend, options=options)
    x = fresh(args[0])
    (run(x).sum() * 2).backward()
    assert x.grad is not None


def test_an_unknown_compiler() -> None:
    with pytest.raises(ValueError, match="compiler='nvcc': expected 'inductor' or 'aot_eager'"):
        backend(compiler="nvcc")
