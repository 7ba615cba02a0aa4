"""The cost model that CONTRIBUTING.md writes down: twenty lines, and they work wherever a cost model does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import optpart
import optpart_models
from optpart.cost import model as cost_models
from optpart.cost.bytes import BytesModel
from optpart.cost.devices import get_device
from optpart.cost.model import build_problem, cost_key, get_cost_model
from optpart.hooks import Estimator
from optpart.partitioner import Partitioner
from optpart.random_graphs import random_joint

CONTRIBUTING = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class, from the only Python in the file, as a module of its own."""
    [source] = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING.read_text(), re.M | re.S)
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 20
    module = ModuleType("launches")
    monkeypatch.setitem(sys.modules, "launches", module)  # where a dataclass looks for its module
    exec(source, module.__dict__)
    return module.Launches


def test_it_prices_a_graph(launches: Any) -> None:
    device = get_device("h100")
    graph = random_joint(0, 10).graph
    by_bytes, mine = build_problem(graph, BytesModel(device)), build_problem(graph, launches(device))
    assert mine.cost_model == "launches:h100-sxm"
    assert [a - b for a, b in zip(mine.runtime, by_bytes.runtime)] == pytest.approx([5.0] * len(graph.ops), abs=2e-3)


def test_it_partitions_with_right_gradients(launches: Any) -> None:
    mlp = optpart_models.load("mlp", "tiny")
    settings = {"cost_model": launches(get_device("cpu")), "memory_budget": 0.5, "on_failure": "raise"}
    report = optpart.plan(mlp.model, mlp.batch, check=True, compare=False, **settings)
    assert report.gradients is not None
    assert report.gradients.equal_bitwise
    assert "by launches:cpu-2core" in str(report)


def test_its_key_is_part_of_every_cache_key(launches: Any) -> None:
    one, other = launches(get_device("cpu")), launches(get_device("cpu"), 6.0)
    assert Partitioner(cost_model=one).uuid() == Partitioner(cost_model=launches(get_device("cpu"))).uuid()
    assert Partitioner(cost_model=one).uuid() != Partitioner(cost_model=other).uuid()
    assert Estimator(one).uuid() != Estimator(other).uuid()


def test_it_may_have_a_name(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no cost model is called 'launches:h100'"):
        get_cost_model("launches:h100")
    monkeypatch.setitem(cost_models.ON_DEVICE, "launches", launches)
    assert get_cost_model("launches:h100") == launches(get_device("h100"))
    assert launches(get_device("cpu")).key() in cost_key("launches")
