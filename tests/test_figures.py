"""Figures: what they refuse, and that equal data give equal files.  How they look is judged by looking at them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import cases
import pytest
from test_report import answer, graph_report

from optpart.figures import NoFigure, check_figure, draw_plan
from optpart.plans import baseline
from optpart.report import GraphReport
from optpart.units import Bytes


def report(**changes: Any) -> GraphReport:
    problem = cases.four_inputs()
    rows = [answer(problem, m, b, baseline(problem.graph)) for m, b in (("min-cut", None), ("budget", 0.5))]
    return graph_report(problem, "add_2", pytorch=tuple(rows), **changes)


def test_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoFigure, match=r"cannot draw a\.gif: the name has to end in \.svg, \.pdf or \.png"):
        check_figure("a.gif")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoFigure, match=r"pip install 'optpart\[paper\]'"):
        check_figure(None, "a.svg")
    check_figure(None)


@pytest.mark.parametrize(
    ("changes", "there", "not_there"),
    [
        ({}, ("PyTorch, min-cut",), ("memory budget",)),
        ({"memory_budget": 0.5, "budget_bytes": Bytes(400)}, ("PyTorch, budget 0.5", "memory budget"), ()),
    ],
)
def test_a_timeline(changes: dict[str, Any], there: tuple[str, ...], not_there: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        draw_plan(file, report(**changes), "Four inputs")
    text = files[0].read_text()
    assert text == files[1].read_text()
    assert str(tmp_path) not in text
    for words in ("Four inputs", "saved values", "recomputed values", "inputs", *there):
        assert f"<!-- {words} -->" in text  # letters are drawn as paths, and named in a comment
    assert not any(words in text for words in not_there)


@pytest.mark.parametrize("suffix", ["pdf", "png"])
def test_other_kinds_of_file(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"a.{suffix}"
    draw_plan(file, report())
    assert file.read_bytes()[:4] in (b"%PDF", b"\x89PNG")
