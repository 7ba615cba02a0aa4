"""Cost models: exact numbers on small signatures, torch's own count on a real step, and the names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from optpart.cost import devices
from optpart.cost.bytes import ITEMSIZE, BytesModel, bytes_moved, tensor_bytes
from optpart.cost.devices import DEVICES, default_device, device_rows, get_device
from optpart.cost.flops import SAME_AS, FlopsModel, count_flops
from optpart.cost.model import UnitModel, build_problem, cost_key, device_of, get_cost_model, price
from optpart.cost.roofline import Roofline
from optpart.graph import Graph, Op, Region, Signature, TensorSpec, Value, ValueKind
from optpart.problem import BARE_RULE, MemoryRule
from optpart.units import Bytes, Microseconds

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


# --------------------------------------------------------------------------------------------- bytes


def test_itemsize_is_torchs_for_every_dtype() -> None:
    torchs = {str(d).removeprefix("torch."): d.itemsize for d in vars(torch).values() if isinstance(d, torch.dtype)}
    assert torchs == ITEMSIZE


def test_bytes_of_pointwise_calls() -> None:
    x = spec(3, 5)
    assert bytes_moved(call("gelu.default", x, out=x)) == 2 * 60
    assert bytes_moved(call("add.Tensor", x, spec(3, 5, dtype="bfloat16"), out=x)) == 60 + 30 + 60
    assert bytes_moved(call("add.Tensor", x, spec(), alpha=2, out=x)) == 60 + 4 + 60
    assert bytes_moved(call("cat.default", (x, x), 1, out=spec(3, 10))) == 60 + 60 + 120
    assert bytes_moved(call("native_dropout.default", x, 0.1, True, out=(x, spec(3, 5, dtype="bool")))) == 60 + 60 + 15


def test_bytes_count_each_element_once() -> None:
    expanded = spec(4, 1000, stride=(1, 0))
    assert tensor_bytes(expanded) == 4 * 4
    assert bytes_moved(call("clone.default", expanded, out=spec(4, 1000))) == 16 + 16000
    windows = spec(9, 2, stride=(1, 1))  # x.unfold(0, 2, 1) of ten elements
    assert tensor_bytes(windows) == 10 * 4
    assert tensor_bytes(spec(7, 3, stride=(6, 2))) == 21 * 4  # strided, no element twice
    assert tensor_bytes(spec(0, 8)) == 0


def test_bytes_of_calls_that_do_not_read_all_their_inputs() -> None:
    table, tokens, rows = spec(50257, 768), spec(2, 8, dtype="int64"), spec(2, 8, 768)
    assert bytes_moved(call("embedding.default", table, tokens, out=rows)) == 2 * 2 * 8 * 768 * 4 + 16 * 8
    assert (
        bytes_moved(call("index_select.default", rows, 0, tokens, out=table)) == 2 * 8 * 768 * 4 + 128 + 50257 * 768 * 4
    )
    assert bytes_moved(call("zeros_like.default", rows, out=rows)) == 2 * 8 * 768 * 4
    assert bytes_moved(call("copy_.default", rows, rows, out=rows)) == 2 * 2 * 8 * 768 * 4
    assert bytes_moved(call("empty.memory_format", (2, 3), out=spec(2, 3))) == 0


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown dtype 'float31'.*float32"):
        tensor_bytes(spec(2, dtype="float31"))


# --------------------------------------------------------------------------------------------- FLOPs


def test_flops_of_products() -> None:
    assert count_flops(mm(3, 5, 7)) == 2 * 3 * 5 * 7
    a, b, c = spec(4, 3, 5), spec(4, 5, 7), spec(4, 3, 7)
    assert count_flops(call("bmm.default", a, b, out=c)) == 2 * 4 * 3 * 5 * 7
    assert count_flops(call("baddbmm.default", c, a, b, out=c)) == 2 * 4 * 3 * 5 * 7
    assert count_flops(call("addmm.default", spec(7), spec(3, 5), spec(5, 7), out=spec(3, 7))) == 2 * 3 * 5 * 7
    assert (
        count_flops(call("_int_mm.default", spec(3, 5, dtype="int8"), spec(5, 7, dtype="int8"), out=spec(3, 7))) == 210
    )
    assert count_flops(call("_grouped_mm.default", spec(6, 5), spec(4, 5, 7), out=spec(6, 7))) == 2 * 6 * 5 * 7
    assert count_flops(call("_grouped_mm.default", a, b, out=c)) == 2 * 4 * 3 * 5 * 7


def convolution(groups: int, mask: tuple[bool, bool, bool] = (True, True, True)) -> tuple[Signature, Signature]:
    """A 3x3 convolution [2, 8, 10, 10] -> [2, 16, 10, 10], and its backward."""
    x, w, y = spec(2, 8, 10, 10), spec(16, 8 // groups, 3, 3), spec(2, 16, 10, 10)
    how = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    grads = tuple(s if wanted else None for s, wanted in zip((x, w, spec(16)), mask, strict=True))
    return (
        call("convolution.default", x, w, spec(16), *how, out=y),
        call("convolution_backward.default", y, x, w, (16,), *how, mask, out=grads),
    )


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_flops_of_convolutions(groups: int) -> None:
    forward, backward = convolution(groups)
    macs = 2 * 16 * 100 * (8 // groups) * 9
    assert count_flops(forward) == 2 * macs
    assert count_flops(backward) == 4 * macs
    assert count_flops(convolution(groups, (True, False, True))[1]) == 2 * macs
    assert count_flops(convolution(groups, (False, True, False))[1]) == 2 * macs


def attention(op: str, b: int, h: int, q: int, k: int, d: int) -> tuple[Signature, Signature]:
    queries, keys, sums = spec(b, h, q, d), spec(b, h, k, d), spec(b, h, q)
    return (
        call(f"{op}.default", queries, keys, keys, 0.0, True, out=(queries, sums)),
        call(
            f"{op}_backward.default", queries, queries, keys, keys, queries, sums, 0.0, True, out=(queries, keys, keys)
        ),
    )


@pytest.mark.parametrize(
    "op",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    ],
)
def test_flops_of_attention(op: str) -> None:
    forward, backward = attention(op, 2, 3, 8, 16, 4)
    assert count_flops(forward) == 4 * 2 * 3 * 8 * 16 * 4
    assert count_flops(backward) == 10 * 2 * 3 * 8 * 16 * 4


def test_every_operator_named_in_same_as_exists() -> None:
    for name, registered in SAME_AS.items():
        assert getattr(torch.ops.aten, registered.removeprefix("aten.")) in flop_registry
        assert hasattr(torch.ops.aten, name.removeprefix("aten."))


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


def test_flops_equal_torchs_count_of_a_training_step() -> None:
    torch.manual_seed(0)
    block, x = Block(8), torch.randn(2, 6, 8, requires_grad=True)
    signatures = recorded(lambda: block(x).backward())
    with FlopCounterMode(display=False) as counter:
        block(x).backward()
    counts = [count_flops(s) for s in signatures]
    assert sum(c or 0 for c in counts) == counter.get_total_flops() > 0
    assert {s.target.split(".")[1] for s, c in zip(signatures, counts, strict=True) if c} == {
        str(op).split(".")[1] for op in counter.get_flop_counts()["Global"]
    }


def test_attention_on_the_cpu_is_counted_though_torch_counts_none() -> None:
    q = torch.randn(2, 3, 8, 4, requires_grad=True)
    signatures = recorded(
        lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    )
    counts = {s.target: c for s in signatures if (c := count_flops(s))}
    assert counts == {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": 4 * 2 * 3 * 8 * 8 * 4,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 10 * 2 * 3 * 8 * 8 * 4,
    }


def test_calls_without_a_formula_count_none() -> None:
    x = spec(3, 5)
    for target in ("aten.gelu.default", "mylib.fused_norm.default", "some_higher_order_op", "no.such.op", "7"):
        assert count_flops(Signature(target, (x,), (), (x,))) is None


def test_higher_order_operators_of_the_registry_are_counted() -> None:
    q = spec(2, 3, 8, 4)
    for target in ("flex_attention", "higher_order.flex_attention"):
        assert count_flops(Signature(target, (q, q, q), (), (q, spec(2, 3, 8)))) == 4 * 2 * 3 * 8 * 8 * 4


def test_a_formula_that_fails_is_reported_and_not_counted() -> None:
    broken = call("mm.default", spec(3, 5), spec(6, 7), out=spec(3, 7))
    with pytest.warns(RuntimeWarning, match="aten.mm.default failed"):
        assert count_flops(broken) is None


# ------------------------------------------------------------------------------------------ roofline


def test_roofline_takes_the_longer_of_arithmetic_and_traffic() -> None:
    n = 4096
    assert Roofline(H100).runtime(mm(n, n, n)) == round(2 * n**3 / 67e12 * 1e9) / 1000
    assert Roofline(H100).runtime(mm(n, n, n, "bfloat16")) == round(2 * n**3 / 989.5e12 * 1e9) / 1000
    assert Roofline(H100).runtime(mm(n, 1, n)) == round((n * n + 2 * n) * 4 / 3350e9 * 1e9) / 1000
    x = spec(n, n)
    assert Roofline(H100).runtime(call("gelu.default", x, out=x)) == round(2 * n * n * 4 / 3350e9 * 1e9) / 1000
    assert Roofline(H100, launch=Microseconds(2.5)).runtime(mm(1, 1, 1)) == 2.5


def test_float32_runs_on_tf32_where_pytorch_lets_it() -> None:
    n = 4096
    x, w = spec(8, 512, 64, 64), spec(512, 512, 3, 3)
    conv = call("convolution.default", x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, out=x)
    flops = 2 * 8 * 64 * 64 * 512 * 512 * 9
    assert Roofline(H100).runtime(conv) == round(flops / 494.5e12 * 1e9) / 1000
    assert Roofline(get_device("v100")).runtime(conv) == round(flops / 15.7e12 * 1e9) / 1000
    assert Roofline(H100, tf32=True).runtime(mm(n, n, n)) == round(2 * n**3 / 494.5e12 * 1e9) / 1000


def test_times_are_whole_nanoseconds_and_no_traffic_is_free() -> None:
    small, none = call("neg.default", spec(), out=spec()), call("empty.memory_format", (), out=spec())
    for model in (Roofline(H100), BytesModel(H100), FlopsModel(H100)):
        assert model.runtime(small) == 0.001
        assert model.runtime(none) == 0.0
        for signature in (mm(123, 45, 678), attention("_scaled_dot_product_flash_attention", 2, 3, 77, 16, 4)[0]):
            time = model.runtime(signature)
            assert time == round(time * 1000) / 1000


def test_an_operator_of_nobody_is_priced_by_its_bytes() -> None:
    x = spec(1000, 1000)
    for target in ("mylib.fused_norm.default", "some_higher_order_op"):
        signature = Signature(target, (x, 1e-5), (), (x,))
        expected = round(8_000_000 / 3350e9 * 1e9) / 1000
        assert Roofline(H100).runtime(signature) == BytesModel(H100).runtime(signature) == expected
        assert FlopsModel(H100).runtime(signature) == expected


def test_a_users_formula_is_used_and_changes_the_key() -> None:
    library = torch.library.Library("optpart_test_cost", "FRAGMENT")
    library.define("product(Tensor a, Tensor b) -> Tensor")
    packet = torch.ops.optpart_test_cost.product
    signature = replace(mm(300, 500, 700), target="optpart_test_cost.product.default")
    before = Roofline(H100).key()
    assert count_flops(signature) is None

    def formula(a: torch.Tensor, b: torch.Tensor, *, out_val: torch.Tensor) -> int:
        return 2 * a.shape[1] * out_val.numel()

    flop_registry[packet] = formula
    try:
        assert count_flops(signature) == 2 * 300 * 500 * 700
        assert Roofline(H100).key() != before
    finally:
        del flop_registry[packet]
        library._destroy()


# ------------------------------------------------------------------------------------------- devices


def test_rows_are_complete_and_consistent() -> None:
    assert len({row.name for row in DEVICES}) == len(DEVICES)
    for row in DEVICES:
        assert row.source
        assert row.bandwidth > 0
        assert 0 < row.fp64 <= row.fp32
        assert row.peak("float64") <= row.peak("float32") <= row.peak("tf32") <= row.peak("float16")
        assert row.peak("complex64") == row.peak("float32") / 4
        assert row.peak("int64") == row.peak("float32")
    assert get_device("v100").peak("bfloat16") == 15.7e12  # no such unit: at the float32 rate
    assert H100.peak("float8_e4m3fn") == H100.peak("float8_e5m2") == 1979e12
    assert get_device("cpu-2core").peak("float32") == 2 * 2.5e9 * 32


@pytest.mark.parametrize(
    ("reported", "row"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "h100-sxm"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "h100-sxm"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_the_card_that_torch_reports_chooses_the_row(monkeypatch: pytest.MonkeyPatch, reported: str, row: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: reported)
    assert get_device("cuda:0") == default_device("cuda") == get_device(row)
    assert default_device("cpu").name == "cpu-2core"


def test_without_a_card_the_h100_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {default_device(kind).name for kind in ("cuda", "meta", "xpu")} == {devices.ASSUMED_GPU}


def test_device_rows_are_printable() -> None:
    rows = device_rows()
    assert [row["device"] for row in rows] == [row.name for row in DEVICES]
    assert rows[-1]["bf16_tflops"] == 1307.4
    assert all(set(row) == set(rows[0]) for row in rows)


# ------------------------------------------------------------------------------------ names and keys


def test_names_of_models() -> None:
    assert get_cost_model("roofline:h100") == get_cost_model("roofline", "h100") == Roofline(H100)
    assert get_cost_model("bytes:H100") == BytesModel(H100)
    assert get_cost_model("flops:cpu") == FlopsModel(get_device("cpu-2core"))
    assert get_cost_model("unit") == UnitModel()
    assert get_cost_model("roofline", "cpu").name == "roofline:cpu-2core"
    mine = Roofline(H100, tf32=True)
    assert get_cost_model(mine) is mine
    for name in ("roofline:l4", "bytes:a100-40gb", "flops:mi300x", "unit"):
        assert get_cost_model(name).name == name


def test_unknown_names_are_refused_with_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"no cost model is called 'rofline' .did you mean 'roofline'.*accepted.*unit"):
        get_cost_model("rofline")
    with pytest.raises(ValueError, match=r"no device is called 'h1000'.*did you mean 'h100'.*accepted.*mi300x"):
        get_cost_model("roofline:h1000")
    with pytest.raises(ValueError, match="'unit:h100'"):
        get_cost_model("unit:h100")


def test_keys_tell_apart_all_that_changes_a_run_time() -> None:
    models = [get_cost_model(f"{kind}:{row.name}") for kind in ("roofline", "bytes", "flops") for row in DEVICES]
    models += [UnitModel(), Roofline(H100, tf32=True), Roofline(H100, launch=Microseconds(2.0))]
    models += [Roofline(replace(H100, bandwidth=3351))]
    assert len({model.key() for model in models}) == len(models)
    assert Roofline(H100).key() == get_cost_model("roofline:h100").key()


def test_the_key_of_a_setting_knows_the_card_in_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    keys = {}
    for reported in ("NVIDIA H100 80GB HBM3", "NVIDIA L4"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda reported=reported: reported)
        keys[reported] = {spec: cost_key(spec) for spec in ("roofline", "roofline:cpu", "roofline:a100", "unit")}
    h100, l4 = keys.values()
    assert h100["roofline"] != l4["roofline"]
    assert get_device("cpu").key() in h100["roofline"]
    assert {name for name in h100 if h100[name] == l4[name]} == {"roofline:cpu", "roofline:a100", "unit"}
    assert cost_key(Roofline(H100)) == Roofline(H100).key()


# --------------------------------------------------------------------------------- graph to problem


def test_price_asks_once_for_each_signature() -> None:
    asked: list[Signature] = []

    class Counting(UnitModel):
        def runtime(self, signature: Signature) -> Microseconds:
            asked.append(signature)
            return Microseconds(float(len(asked)))

    a, b = mm(3, 3, 3), mm(4, 4, 4)
    assert price(chain(a, b, a, b, b), Counting()) == (1.0, 2.0, 1.0, 2.0, 2.0)
    assert asked == [a, b]


def test_build_problem_prices_on_the_graphs_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    n = 512
    on_gpu, on_cpu = chain(mm(n, n, n), mm(n, n, n)), chain(mm(n, n, n, device="cpu"))
    assert (device_of(on_gpu), device_of(on_cpu)) == ("cuda", "cpu")
    problem = build_problem(on_gpu)
    assert problem.cost_model == "roofline:h100-sxm"
    assert problem.runtime == (round(2 * n**3 / 67e12 * 1e9) / 1000,) * 2
    assert (problem.workspace, problem.budget, problem.rule) == ((0, 0), None, MemoryRule())
    assert build_problem(on_cpu).runtime == (round(2 * n**3 / 160e9 * 1e9) / 1000,)
    assert build_problem(on_cpu, "bytes:h100").runtime == (round(3 * n * n * 4 / 3350e9 * 1e9) / 1000,)
    assert build_problem(on_gpu, "unit").runtime == (1.0, 1.0)
    assert build_problem(replace(on_gpu, joint=False), "unit").rule == BARE_RULE
    xpu = chain(mm(n, n, n, device="xpu:0"))
    assert build_problem(xpu).cost_model == "roofline:h100-sxm"


def test_pricing_a_recorded_step_is_deterministic() -> None:
    torch.manual_seed(0)
    block, x = Block(8), torch.randn(2, 6, 8, requires_grad=True)
    first, second = (recorded(lambda: torch.autograd.grad(block(x), x)) for _ in range(2))
    model = get_cost_model("roofline:cpu")
    assert first == second
    assert len(set(first)) < len(first)  # hashable, and the same call comes more than once
    assert [model.runtime(s) for s in first] == [model.runtime(s) for s in second]
