"""Under Inductor: gradients within tolerance, settings in the cache key, options that travel.

One compile takes 20 to 30 s on two cores, so three tiny models stand for all at one budget;
``python -m pytest -m "slow and inductor"`` runs the whole matrix.
"""

from __future__ import annotations

import pytest
import torch

import optpart
import optpart_models as zoo

pytestmark = pytest.mark.inductor


def check(name: str, budget: float | None) -> None:
    loaded = zoo.load(name, "tiny")
    partitioner = optpart.Partitioner(memory_budget=budget, time_limit=10, on_failure="raise")
    found = optpart.check_gradients(loaded.model, loaded.batch, partitioner=partitioner, compiler="inductor")
    assert partitioner.partitions, "Inductor did not ask the partitioner"
    assert found.agree, found
    assert found.fallbacks == 0


@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_three_models_at_one_budget(name: str) -> None:
    check(name, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 1.0, 0.5, 0.2, 0.0])
@pytest.mark.parametrize("name", zoo.names())
def test_every_model_at_every_budget(name: str, budget: float | None) -> None:
    check(name, budget)


def test_the_backend_is_found_by_name_and_takes_options() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(8, 16)

    def step(w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square().sum()

    (expected,) = torch.autograd.grad(step(weight), weight)
    compiled = torch.compile(step, backend="optpart", options={"memory_budget": 1.0, "on_failure": "raise"})
    (found,) = torch.autograd.grad(compiled(weight), weight)
    torch.testing.assert_close(found, expected)
