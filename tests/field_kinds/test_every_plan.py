"""Every case of the files beside this one, and of nested regions, with every kind of plan; those files run two each."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from steps import PLANS, Case, run_case

HERE = Path(__file__)
CASES: dict[str, Case] = {}
for file in [*sorted(HERE.parent.glob("test_*.py")), HERE.parents[1] / "test_regions.py"]:
    if file != HERE:
        found = getattr(importlib.import_module(file.stem), "CASES", {})
        CASES |= {f"{file.stem.removeprefix('test_')}: {name}": case for name, case in found.items()}


def test_cases_were_found() -> None:
    assert len(CASES) > 150


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    traced: AbstractContextManager[None] = nullcontext()
    if name.startswith("dynamic_shapes"):
        traced = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    with traced:
        run_case(name, CASES[name], tuple(PLANS))
