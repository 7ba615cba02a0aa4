"""Profiles: priced graphs, files that travel, keys."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_calls import Losses, mm

from optpart import torch_private as tp
from optpart.cost import profiled, workspace
from optpart.cost.cache import Cache, Row
from optpart.cost.machine import environment
from optpart.cost.model import build_problem, get_cost_model
from optpart.cost.profiled import Imported, Profile, Profiled, profile_calls, profile_from_json
from optpart.cost.timing import Timing
from optpart.cost.workspace import with_measured_memory
from optpart.graph import Graph
from optpart.partitioner import Partitioner
from optpart.planning import capture_joint
from optpart.settings import Settings


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
