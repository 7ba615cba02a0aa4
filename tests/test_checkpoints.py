"""Plans that keep the borders of blocks: valid, and among the plans that a search knows from the start."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from strategies import problems

import optpart_models as zoo
from optpart import torch_private as tp
from optpart.cost.model import build_problem
from optpart.formulation.blocks import find_blocks
from optpart.formulation.checkpoints import block_checkpoints
from optpart.formulation.stage_graph import build_stages
from optpart.liveness import simulate
from optpart.planning import capture_joint
from optpart.plans import baseline
from optpart.problem import Problem
from optpart.validate import validate


@given(problems(most=30))
def test_they_are_valid(problem: Problem) -> None:
    assume(problem.rule.boxed)  # stages are defined where saved values are freed at their last read
    for plan in block_checkpoints(problem, find_blocks(build_stages(problem))):
        verdict = validate(problem, plan)
        assert verdict.ok, verdict.faults


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_they_save_less_the_longer_the_segments_and_lower_the_peak(name: str) -> None:
    loaded = zoo.load(name, "tiny", {"layers": "4"}, fake=True)
    [joint] = tp.trace_joint(loaded.model, loaded.batch)
    captured = capture_joint(joint)
    problem = build_problem(captured.graph)
    found = [simulate(problem, plan) for plan in block_checkpoints(problem, find_blocks(build_stages(problem)))]
    assert len(found) > 2
    saved = [live.saved_bytes for live in found]
    assert saved[0] > saved[-1]
    assert min(live.peak_bytes for live in found) < simulate(problem, baseline(problem.graph)).peak_bytes
