"""What every test runs under: one thread, a compile cache of its own, the same random numbers.

pytest imports this file before any test module, so the environment is set before torch reads it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from optpart.cost.cache import Cache

os.environ["OMP_NUM_THREADS"] = "1"  # one order of summation on every machine, and one core for each worker
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiler processes beside each worker

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "OPTPART_CACHE")

# The same examples in every run; no deadline, since tests time nothing.
hypothesis.settings.register_profile("optpart", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("optpart")


def pytest_configure(config: pytest.Config) -> None:
    """One Inductor cache for this run, and one of measurements: nothing of an earlier run must be served from the disk."""
    if not hasattr(config, "workerinput"):  # xdist's workers inherit the variables
        for variable in CACHES:
            os.environ[variable] = tempfile.mkdtemp(prefix="optpart-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        for variable in CACHES:
            shutil.rmtree(os.environ[variable], ignore_errors=True)


@pytest.fixture(autouse=True)
def independent() -> Iterator[None]:
    """Seed torch before a test and drop what it compiled after it, so that tests may run in any order.

    torch is not imported for this: most tests do without.
    """
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache of measurements that is empty."""
    return Cache(tmp_path / "measurements.sqlite")
