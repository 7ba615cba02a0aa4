"""Measured costs: inputs that run, workspaces that are exact, times, the cache, profiles that travel."""

from __future__ import annotations

import functools
import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optpart import torch_private as tp
from optpart.cost import cache as caches
from optpart.cost import profiled, timing, workspace
from optpart.cost.cache import Cache, Row, default_cache, rows_from_json, rows_to_json
from optpart.cost.inputs import Call, Unrunnable, make_call, real_calls
from optpart.cost.machine import environment
from optpart.cost.model import build_problem, get_cost_model
from optpart.cost.profiled import Imported, Profile, Profiled, profile_calls, profile_from_json
from optpart.cost.timing import Timing, measure_time
from optpart.cost.workspace import Footprint, footprints, measure, with_measured_memory
from optpart.graph import Graph, Signature, TensorSpec, signature_from_json, signature_to_json
from optpart.liveness import resident_bytes, simulate
from optpart.measuring import measured_peak
from optpart.partitioner import Partitioner
from optpart.planning import capture_joint
from optpart.settings import Settings
from optpart.units import Bytes

aten = torch.ops.aten


def spec(tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(tuple(tensor.shape), tensor.stride(), dtype, str(tensor.device))


def signature(operator: Any, *args: Any, **kwargs: Any) -> Signature:
    """The signature of a call with these arguments; the call is made once, for its outputs."""

    def plain(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return tuple(map(plain, argument))
        return spec(argument) if isinstance(argument, Tensor) else argument

    outputs = tuple(spec(t) if isinstance(t, Tensor) else None for t in tp.tree_leaves(operator(*args, **kwargs)))
    return Signature(str(operator), plain(args), tuple((k, plain(v)) for k, v in kwargs.items()), outputs)


def mm(n: int) -> Signature:
    return signature(aten.mm.default, torch.ones(n, n), torch.ones(n, n))


class Zoo(nn.Module):
    """Ops whose inputs have to fit: indices, classes, masks, windows, probabilities, variances."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.conv, self.batch_norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer_norm, self.group_norm = nn.LayerNorm(4), nn.GroupNorm(2, 8)

    def forward(self, tokens: Tensor, classes: Tensor, mask: Tensor, grid: Tensor) -> Tensor:
        x = self.table(tokens).permute(0, 3, 1, 2)  # (2, 8, 4, 4)
        x = F.dropout(torch.relu(self.batch_norm(self.conv(x))), 0.5)
        x = self.group_norm(self.layer_norm(x)) + F.grid_sample(x, grid, align_corners=False)
        attended = F.scaled_dot_product_attention(x, x, x)
        x = torch.where(mask, x, attended.sigmoid().log() + x.tanh() * 2)
        best, place = x.flatten(2).topk(3, -1)
        spread = torch.zeros_like(x.flatten(2)).scatter_add(2, place, best).cumsum(-1).gather(2, place)
        pooled = F.max_pool2d(x, 2).flatten(1)
        picked = pooled[:, place[0, 0]] + pooled.index_select(1, place[0, 1]) + x.std((2, 3)).sqrt()[:, :3].softmax(-1)
        scores = F.interpolate(x, scale_factor=2, mode="bilinear")
        loss = F.cross_entropy(scores, classes) + F.cross_entropy(pooled, classes[:, 0, 0])
        likely = F.binary_cross_entropy(pooled.sigmoid(), torch.rand_like(pooled))
        return loss + likely + F.mse_loss(picked, best[:, 0]) + spread.mean() + F.pad(x, (1, 1)).norm()

    @staticmethod
    def batch() -> tuple[Tensor, ...]:
        tokens, classes = torch.randint(0, 7, (2, 4, 4)), torch.randint(0, 8, (2, 8, 8))
        return tokens, classes, torch.rand(2, 1, 4, 4) < 0.5, torch.rand(2, 4, 4, 2)


@functools.cache
def zoo_graph() -> Graph:
    torch.manual_seed(0)
    (joint,) = tp.trace_joint(Zoo(), Zoo.batch())
    return capture_joint(joint).graph


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "measurements.sqlite")


# --------------------------------------------------------------------------------------------- inputs


def test_every_call_of_a_graph_runs_and_returns_what_the_graph_says() -> None:
    signatures = list(dict.fromkeys(op.signature for op in zoo_graph().ops))
    assert len(signatures) > 60
    with real_calls():
        for s in signatures:
            outputs = [t for t in tp.tree_leaves(make_call(s)()) if isinstance(t, Tensor)]
            found = [(o.shape, o.dtype) for o in map(spec, outputs)]
            assert found == [(o.shape, o.dtype) for o in s.outputs if o is not None], s.target
            assert all(o.isfinite().all() for o in outputs), s.target


def test_a_signature_from_json_makes_the_same_call() -> None:
    with real_calls():
        for s in dict.fromkeys(op.signature for op in zoo_graph().ops):
            again = signature_from_json(json.loads(json.dumps(signature_to_json(s))))
            assert again == s
            first, second = make_call(s), make_call(again)
            for a, b in zip(tp.tree_leaves((first.args, first.kwargs)), tp.tree_leaves((second.args, second.kwargs))):
                assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_strides_and_layouts_are_those_of_the_signature() -> None:
    x = torch.ones(4, 6, 2)
    tensors = (x.mT, x[:, ::2], x[:1].expand(5, -1, -1), x.to(memory_format=torch.preserve_format)[..., 0], x[:0])
    with real_calls():
        for tensor in tensors:
            (made,) = make_call(signature(aten.neg.default, tensor)).args
            assert spec(made) == spec(tensor)


def test_values_are_spread_and_within_their_limits() -> None:
    table, tokens = torch.ones(50, 3), torch.zeros(400, dtype=torch.int64)
    mask = torch.ones(50, dtype=torch.bool)
    with real_calls():
        weight, indices = make_call(signature(aten.embedding.default, table, tokens)).args
        assert (int(indices.min()), int(indices.max())) == (0, 49)
        assert weight.unique().numel() > 100
        _, (first, none, last) = make_call(
            signature(aten.index.Tensor, torch.ones(9, 2, 3), [tokens, None, tokens])
        ).args
        assert (int(first.max()), none, int(last.max())) == (8, None, 2)
        _, (mask, columns) = make_call(Signature("aten.index.Tensor", (spec(table), (spec(mask), spec(tokens))))).args
        assert 0.2 < mask.float().mean() < 0.8
        assert int(columns.max()) == 2
        (large,) = make_call(Signature("aten.neg.default", (spec(torch.empty(2**20 + 5)),))).args
        assert large.count_nonzero() == large.numel()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("triton_kernel_wrapper_functional", "no operator with a schema"),
        ("_operator.mul", "no operator with a schema"),
        ("aten.no_such_thing.default", "no operator with a schema"),
        ("_c10d_functional.all_reduce.default", "other processes"),
        ("aten.mm.default", "made-up inputs"),  # without its arguments
    ],
)
def test_what_cannot_be_run_says_why(target: str, reason: str) -> None:
    (found,) = measure((Signature(target, ()),)).values()
    assert isinstance(found, str)
    assert reason in found
    with pytest.raises(Unrunnable, match=reason):
        measure_time(Signature(target, ()))


def test_too_large_for_this_machine() -> None:
    huge = TensorSpec((2**30, 2**20), (2**20, 1), "float32", "cpu")
    with pytest.raises(Unrunnable, match=r"needs about 12288\.00 TiB on 'cpu'"):
        workspace.workspace(Signature("aten.neg.default", (huge,), (), (huge,)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named() -> None:
    x = TensorSpec((2, 2), (2, 1), "float32", "cuda:0")
    call = Signature("aten.mm.default", (x, x), (), (x,))
    with pytest.raises(RuntimeError, match="no CUDA device here to measure 'cuda:0' on; import a profile"):
        Profiled(Cache()).runtime(call)
    assert "no CUDA device" in str(footprints((call,), Cache())[call])


# ------------------------------------------------------------------------------------------ workspace


@torch.library.custom_op("optpart_tests::scratch", mutates_args=())
def scratch(x: Tensor, before: int, after: int, storage: int) -> Tensor:
    """Bytes by construction: ``before`` freed before the output is allocated, ``after`` allocated beside it."""
    del_me = torch.empty(before, dtype=torch.uint8)
    del del_me
    out = torch.empty(storage, dtype=torch.uint8)
    torch.empty(after, dtype=torch.uint8)
    return out[: x.numel()]


@pytest.mark.parametrize(
    ("before", "after", "storage", "expected"),
    [
        (0, 0, 64, Footprint(Bytes(0), (Bytes(64),))),
        (0, 4096, 64, Footprint(Bytes(4096), (Bytes(64),))),
        (4096, 0, 64, Footprint(Bytes(4032), (Bytes(64),))),  # scratch and output are never there together
        (512, 4096, 64, Footprint(Bytes(4096), (Bytes(64),))),
        (100, 0, 1024, Footprint(Bytes(0), (Bytes(1024),))),
    ],
)
def test_footprint_of_a_call_that_is_known_byte_by_byte(
    before: int, after: int, storage: int, expected: Footprint
) -> None:
    call = signature(torch.ops.optpart_tests.scratch.default, torch.ones(64), before, after, storage)
    assert measure((call,), custom=True) == {call: expected}
    assert "custom operator" in str(measure((call,))[call])


def kernels() -> Iterator[Signature]:
    x, weight = torch.ones(2, 8, 16, 16), torch.ones(8, 8, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    yield signature(aten.convolution.default, x, weight, None, *shape)
    yield signature(aten.convolution_backward.default, x, x, weight, [8], *shape, [True] * 3)
    y, one = torch.ones(32, 64), torch.ones(32, 1)
    yield signature(aten.native_layer_norm_backward.default, y, y, [64], one, one, y[0], y[0], [True] * 3)
    q = torch.ones(1, 2, 64, 16)
    attention = aten._scaled_dot_product_flash_attention_for_cpu
    yield signature(attention.default, q, q, q)
    yield signature(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default, q, q, q, q, q, q[..., 0], 0.0, False
    )
    yield signature(aten.add.Tensor, torch.ones(1000, dtype=torch.int64), torch.ones(1000))
    yield signature(aten.copy_.default, y, y)


@pytest.mark.parametrize("call", list(kernels()), ids=lambda call: call.target)
def test_workspace_of_kernels_is_what_the_allocator_says(call: Signature) -> None:
    with real_calls():
        prepared = make_call(call)
        prepared()
        kept: list[Any] = []
        highest = measured_peak(lambda: kept.append(prepared()))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tp.tree_leaves(kept)}
    for t in tp.tree_leaves((prepared.args, dict(prepared.kwargs))):
        if isinstance(t, Tensor):
            storages.pop(t.untyped_storage().data_ptr(), None)
    assert workspace.workspace(call) == highest - sum(storages.values())


class Losses(nn.Module):
    """Convolutions have workspaces, mse_loss returns too large a storage, batch norm's statistics stay float32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.stem(x)))
        return F.mse_loss(F.dropout(self.head(y), 0.1), x)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_predicted_peak_is_the_measured_one(autocast: bool) -> None:
    torch.manual_seed(0)
    model, x = Losses(), torch.randn(4, 3, 16, 16)
    partitioner = Partitioner(memory_budget=10**9, on_failure="raise")
    compiled = tp.compile_fresh(model, tp.aot_eager_backend(partitioner))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = compiled(x)
        loss.backward()

    step()
    model.zero_grad(set_to_none=True)
    measured = measured_peak(step)
    (found,) = partitioner.partitions
    assert found.problem is not None
    assert found.result is not None
    assert found.result.plan is not None
    assert any(found.problem.workspace)
    assert simulate(found.problem, found.result.plan).peak_bytes - resident_bytes(found.problem) == measured


def test_only_a_budget_has_workspaces_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo_graph()
    with_none = build_problem(graph)
    assert not any(with_none.workspace)
    assert with_none.graph is graph
    with_some = build_problem(graph, measure_memory=True)
    assert any(with_some.workspace)
    assert with_some.runtime == with_none.runtime
    assert all(a.nbytes <= b.nbytes for a, b in zip(graph.values, with_some.graph.values))
    assert [s.measure_memory for s in (Settings(), Settings(memory_budget=0.5))] == [False, True]
    assert not Settings(memory_budget=0.5, workspace="none").measure_memory
    with pytest.raises(ValueError, match=r"workspace='all'.*'measured' or 'none'"):
        Settings(workspace="all")  # type: ignore[arg-type]


def test_random_ops_need_their_generator_once_more() -> None:
    problem = build_problem(zoo_graph())
    found = with_measured_memory(problem, lambda calls: {s: Footprint(Bytes(7), ()) for s in calls})
    states = [op for op in problem.graph.ops if op.rng_state is not None]
    assert states
    for op in problem.graph.ops:
        state = 0 if op.rng_state is None else problem.graph.values[op.rng_state].nbytes
        assert (found.workspace[op.id], found.aside(op.id)) == (7, state)


def test_what_takes_too_long_is_not_measured(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    small, large = mm(2), mm(64)
    footprints((small,), cache)
    found = footprints((small, large), cache, limit=0.0)
    assert isinstance(found[small], Footprint)  # known already
    assert "measuring would take about" in str(found[large])
    problem = build_problem(zoo_graph())
    with caplog.at_level("INFO"):
        assert with_measured_memory(problem, lambda calls: dict.fromkeys(calls, "no time")) == problem
    assert "no measured workspace for some calls: no time" in caplog.text


def test_the_users_profiler_goes_on() -> None:
    with torch.profiler.profile(profile_memory=True) as prof:
        found = measure((mm(4),))
        torch.ones(3).sin()
    assert "profiler is running" in str(list(found.values()))
    assert "aten::sin" in {event.key for event in prof.key_averages()}


# --------------------------------------------------------------------------- measuring leaves no trace


def random_calls() -> tuple[Signature, ...]:
    x = torch.ones(64)
    return (
        signature(aten.native_dropout.default, x, 0.5, True),
        signature(aten.bernoulli.default, x * 0.5),
        signature(aten.rand_like.default, x),
        signature(aten.add_.Tensor, x, x),
    )


@pytest.mark.parametrize("work", [measure, lambda calls: [measure_time(s) for s in calls]], ids=["memory", "time"])
def test_random_numbers_stay_the_users(work: Callable[[Any], Any]) -> None:
    calls = random_calls()
    torch.manual_seed(3)
    torch.rand(5)
    state = torch.get_rng_state()
    work(calls)
    with tp.FakeTensorMode():  # what a partitioner runs in
        work(calls)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("work", [measure, lambda calls: [measure_time(s) for s in calls]], ids=["memory", "time"])
def test_no_tensor_is_left(work: Callable[[Any], Any]) -> None:
    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(found), Tensor) for found in gc.get_objects())

    calls = (*random_calls(), mm(8))
    before = alive()
    work(calls)
    measure((Signature("aten.mm.default", ()),))  # fails halfway
    assert alive() == before


def test_mutating_calls_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def seconds(call: Call) -> float:
        seen.append(float(call.args[0][0]))
        call()
        return 1.0

    monkeypatch.setattr(timing, "_seconds_on_cpu", seconds)
    call = signature(aten.mul_.Tensor, torch.ones(16), torch.ones(16))
    with real_calls():
        assert make_call(call).mutates
    assert measure_time(call).repeats == timing.LEAST_SLOW
    assert len(seen) == timing.LEAST_SLOW
    assert len(set(seen)) == 1


# ----------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("times", "repeats", "median"),
    [
        ([1e-3] * 99, timing.LEAST, 1000.0),
        ([1e-3, 2e-3, 1.5e-3] * 99, timing.MOST, 1500.0),
        ([1e-3, 9.0, 1e-3, 1e-3, 1e-3, 1e-3], 3, 1000.0),  # one disturbed repeat used up the seconds
        ([0.2] * 99, timing.LEAST_SLOW, 200_000.0),
        ([0.0] * 99, timing.LEAST, 0.001),  # below the clock's resolution, but not free
    ],
)
def test_when_repeats_end(times: list[float], repeats: int, median: float) -> None:
    found = timing.repeat(iter(times))
    assert (found.repeats, found.time) == (repeats, median)


def test_the_error_is_that_of_the_median() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = 1 + 0.05 * torch.randn(2000, 30, generator=generator, dtype=torch.float64)
    errors = [timing._relative_error(row.tolist()) for row in samples]
    true = float(samples.quantile(0.5, dim=1).std())
    assert 0.8 * true < sum(errors) / len(errors) < 1.2 * true


def test_a_time_is_kept_and_shared(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [mm(4), mm(5)]
    first = Profiled(cache)
    times = [first.timing(s) for s in calls]
    assert all(t.time > 0 and timing.LEAST_SLOW <= t.repeats <= timing.MOST and not t.reason for t in times)
    monkeypatch.setattr(profiled, "measure_time", lambda s, **_: pytest.fail("measured again"))
    assert [Profiled(cache).timing(s) for s in calls] == times


def test_what_cannot_be_timed_is_an_estimate_and_not_kept(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    x = spec(torch.ones(256, 256))
    call = Signature("some_higher_order_op", (x,), (), (x,))
    found = Profiled(cache).timing(call)
    assert found.repeats == 0
    assert found.time == get_cost_model("roofline").runtime(call)
    assert "higher-order" in found.reason
    assert found.reason in caplog.text
    assert cache.rows() == []


# ---------------------------------------------------------------------------------------------- cache


def test_the_first_value_wins_until_it_is_replaced(cache: Cache) -> None:
    call = mm(3)
    assert cache.get("time", "here", [call]) == {}
    assert cache.put("time", "here", {call: [1.5, "a"]}) == {call: [1.5, "a"]}
    identity = cache.identity()
    assert cache.put("time", "here", {call: 2, mm(4): 4}) == {call: [1.5, "a"], mm(4): 4}
    assert cache.get("time", "there", [call]) == cache.get("memory", "here", [call]) == {}
    assert Cache(cache.path).identity() == identity == cache.identity()
    rows = rows_from_json(json.loads(json.dumps(rows_to_json(cache.rows()))))
    assert rows == cache.rows()
    other = Cache()
    assert other.identity() != identity
    other.replace(rows)
    assert other.rows() == cache.rows()
    before = cache.identity()
    cache.replace([Row("time", "here", call, 3)])
    assert cache.get("time", "here", [call]) == {call: 3}
    assert cache.identity() != before
    with pytest.raises(ValueError, match="no measurements of this package"):
        rows_from_json({"format": "other"})


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "mine"))
    assert default_cache().path is not None
    assert default_cache().path.parent == tmp_path / "mine"  # type: ignore[union-attr]
    assert default_cache() is default_cache()
    monkeypatch.delenv("OPTPART_CACHE")
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", str(tmp_path))
    assert caches.cache_folder() == tmp_path / "optpart"


def test_a_file_that_cannot_be_used_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"no database at all, " * 100)
    for path in (file, file / "below" / "it.sqlite"):
        caplog.clear()
        table, call = Cache(path), mm(3)
        assert table.put("time", "here", {call: 1}) == {call: 1}
        assert table.get("time", "here", [call]) == {call: 1}
        assert table.identity() == table.identity()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "kept in memory" in caplog.text


WRITER = """
import sys
from pathlib import Path
from optpart.cost.cache import Cache
from optpart.graph import Signature
cache, who, count = Cache(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for i in range(count):
    mine, shared = Signature(f"{who}.{i}"), Signature(f"shared.{i}")
    cache.put("time", "here", {mine: "x" * 500, shared: who})
    print(i, flush=True)
"""


def writer(cache: Cache, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(cache.path), who, str(count)]
    return subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True)


def check_integrity(cache: Cache) -> None:
    assert cache._transaction(lambda c: c.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
    assert cache._memory is None


def test_several_processes_write_at_once(cache: Cache) -> None:
    count, who = 40, ("a", "b", "c")
    processes = [writer(cache, name, count) for name in who]
    assert [p.communicate()[0].split()[-1] for p in processes] == [str(count - 1)] * 3
    check_integrity(cache)
    assert len(cache.rows()) == count * (len(who) + 1)
    shared = cache.get("time", "here", [Signature(f"shared.{i}") for i in range(count)])
    assert set(shared.values()) <= set(who)


def test_a_killed_writer_loses_nothing_that_was_written(cache: Cache) -> None:
    for lines in (1, 7, 20):
        process = writer(cache, f"killed {lines}", 10**6)
        assert process.stdout is not None
        for _ in range(lines):
            last = int(process.stdout.readline())
        process.kill()
        process.communicate()
        written = [Signature(f"killed {lines}.{i}") for i in range(last + 1)]
        assert len(cache.get("time", "here", written)) == len(written) == lines
        check_integrity(cache)
        assert cache.put("time", "here", {mm(lines): 1}) == {mm(lines): 1}


# ------------------------------------------------------------------------------------------- profiles


@functools.cache
def small_graph() -> Graph:
    (joint,) = tp.trace_joint(Losses(), (torch.ones(1, 3, 8, 8),))
    return capture_joint(joint).graph


def test_a_profile_prices_the_graph_on_another_machine(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, told = small_graph(), []
    profile = profile_calls((op.signature for op in graph.ops), lambda done, total, target: told.append((done, total, target)), cache)
    distinct = list(dict.fromkeys(op.signature for op in graph.ops))
    assert [done for done, *_ in told] == list(range(len(distinct) + 1))
    assert told[0] == (0, len(distinct), distinct[0].target)
    assert list(profile.timings) == distinct
    assert set(profile.footprints) == set(distinct)
    assert profile.environments == (environment("cpu"),)

    monkeypatch.setattr(profiled, "measure_time", lambda s, **_: pytest.fail("measured"))
    monkeypatch.setattr(workspace, "measure", lambda s, **_: pytest.fail("measured") if s else {})
    again = profile_calls((op.signature for op in graph.ops), cache=cache)
    assert again == profile

    file = tmp_path / "there.json"
    file.write_text(json.dumps(profile.to_json()))
    imported = get_cost_model(f"profiled:{file}")
    assert isinstance(imported, Imported)
    assert imported.name == "profiled:there.json"
    assert imported.profile == profile
    here = build_problem(graph, Profiled(cache), measure_memory=False)
    there = build_problem(graph, imported, measure_memory=True)
    assert there.runtime == here.runtime
    assert there.workspace == with_measured_memory(here, imported.footprints).workspace
    assert any(there.workspace)
    with pytest.raises(LookupError, match=r"'there.json' has no time for aten.mm.default"):
        imported.runtime(mm(99))
    assert "lacks" in str(imported.footprints([mm(99)])[mm(99)])


def test_a_profile_is_of_one_machine() -> None:
    row = Row(profiled.TIME, "here", mm(2), [1.0, 0.0, 5, ""])
    with pytest.raises(ValueError, match="several machines: here & there"):
        Profile((row, replace(row, environment="there")))
    assert profile_from_json(Profile((row,)).to_json()).timings == {mm(2): Timing(1.0, 0.0, 5)}  # type: ignore[arg-type]


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"format": "other"}', '{"format": "optpart-measurements-1"}'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ValueError, match="no profile in"):
            get_cost_model(f"profiled:{tmp_path / 'file'}")
    with pytest.raises(ValueError, match="no profile in"):
        get_cost_model(f"profiled:{tmp_path / 'nowhere'}")


def test_keys_change_with_what_plans_depend_on(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Profiled(cache)
    key = model.key()
    assert environment("cpu") in key
    model.runtime(mm(6))
    assert model.key() == key  # the table only grew
    cache.renew()
    assert model.key() != key
    assert Profiled(Cache()).key() != model.key()
    rows = tuple(cache.rows())
    imported = Imported(Profile(rows), "one")
    assert imported.key() == Imported(Profile(rows), "other").key()
    assert imported.key() != Imported(Profile((replace(rows[0], value=[9.0, 0.0, 5, ""]),)), "one").key()

    threads = torch.get_num_threads()
    with_budget, without = Settings(memory_budget=10**6), Settings()
    before = with_budget.key(), without.key()
    try:
        torch.set_num_threads(threads + 1)
        assert with_budget.key() != before[0]
        assert without.key() == before[1]
    finally:
        torch.set_num_threads(threads)
    assert Settings(cost_model="profiled").key()["cost_model"] == Profiled().key()
    assert len(Partitioner(memory_budget=0.5, cost_model=model).uuid()) == 32
    assert math.isfinite(model.runtime(mm(6)))
