"""Cost models: exact numbers on small signatures, names, keys, and the way to a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import flop_registry
from written_calls import H100, Block, attention, call, chain, mm, recorded, spec

from optpart.cost.bytes import ITEMSIZE, BytesModel, bytes_moved, tensor_bytes
from optpart.cost.devices import DEVICES, get_device
from optpart.cost.flops import FlopsModel, count_flops
from optpart.cost.model import UnitModel, build_problem, cost_key, device_of, get_cost_model, price
from optpart.cost.roofline import Roofline
from optpart.graph import Signature
from optpart.problem import BARE_RULE, MemoryRule
from optpart.units import Microseconds

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
