"""What a user may set, checked where it is given: a wrong value is refused at once, in words.

``memory_budget`` limits the peak of one joint graph, forward and backward, everything resident included:

* None: no limit (least saved bytes, where only cheap ops are redone);
* an int: bytes; a text: a size with its unit ("300 MiB");
* a float f in 0..1: low + f (high - low), where high is the peak with nothing recomputed and low the
  smallest peak that the solver finds within its fixed work limit;
* "auto": what the device has free when the settings are made, plus what is resident, minus a reserve
  (a tenth of what is free, for fragmentation and for what others allocate).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from optpart.cost.machine import free_bytes, present_device
from optpart.cost.model import CostModel, cost_key, get_cost_model
from optpart.cost.workspace import memory_key
from optpart.liveness import resident_bytes
from optpart.problem import Problem
from optpart.solver.base import Limits
from optpart.units import Bytes, parse_bytes

Budget = int | float | str | None
Failure = Literal["min_cut", "raise"]
Workspace = Literal["measured", "none"]


@dataclass(frozen=True)
class Settings:
    """Settings of a partition; see the module's docstring for ``memory_budget``.

    ``cost_model``: a name ("roofline", "roofline:h100", "flops", "bytes", "unit", "profiled", "profiled:FILE")
    or a CostModel.
    ``time_limit``: seconds for the solver.  ``on_failure``: "min_cut" falls back to PyTorch's min-cut
    with a warning, "raise" raises.  ``workspace``: what calls allocate and free again counts towards a
    memory budget, as "measured" on the device at hand, or is taken for "none".  ``hold_order``: with a budget, or
    where the user checkpoints, Inductor keeps the plan's order wherever the peak depends on it.  ``seed``: of everything random in a search.

    Raises:
        ValueError: a value is out of range; the message says what was given and what is accepted.
    """

    memory_budget: Budget = None
    cost_model: str | CostModel = "roofline"
    time_limit: float = 30.0
    on_failure: Failure = "min_cut"
    seed: int = 0
    threads: int | None = None
    workspace: Workspace = "measured"
    hold_order: bool = True
    free: Bytes | None = field(default=None, init=False)  # what "auto" found, to whole MiB

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_budget", check_budget(self.memory_budget))
        if self.memory_budget == "auto":
            free = free_bytes(present_device())
            if free is None:
                raise ValueError("memory_budget='auto': this system does not say how much memory is free; give bytes")
            object.__setattr__(self, "free", Bytes(free * 9 // 10 >> 20 << 20))
        if isinstance(self.time_limit, bool) or not isinstance(self.time_limit, (int, float)) or not self.time_limit > 0:
            raise ValueError(f"time_limit={self.time_limit!r}: expected seconds, a number above 0")
        if self.on_failure not in ("min_cut", "raise"):
            raise ValueError(f"on_failure={self.on_failure!r}: expected 'min_cut' or 'raise'")
        if self.workspace not in ("measured", "none"):
            raise ValueError(f"workspace={self.workspace!r}: expected 'measured' or 'none'")
        if not isinstance(self.hold_order, bool):
            raise ValueError(f"hold_order={self.hold_order!r}: expected True or False")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r}: expected an int, 0 or more")
        if self.threads is not None and (isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1):
            raise ValueError(f"threads={self.threads!r}: expected an int, 1 or more, or None for all cores")
        if not isinstance(self.cost_model, str) and not all(hasattr(self.cost_model, a) for a in ("name", "runtime", "key")):
            raise ValueError(f"cost_model={self.cost_model!r}: expected a name, or an object with name, runtime(signature) and key()")
        get_cost_model(self.cost_model)  # an unknown name is refused here, not in the middle of a compile

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        """Settings from keywords.

        Raises:
            ValueError: an unknown keyword (with the closest known one), or a value out of range.
        """
        known = names()
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"unknown setting {name!r}{hint} (settings: {', '.join(known)})")
        return Settings(**given)

    def budget_for(self, problem: Problem) -> int | float | None:
        """The budget of one graph: "auto" as bytes (free ones, and those that are resident already)."""
        if self.free is not None:
            return Bytes(self.free + resident_bytes(problem))
        return self.memory_budget  # type: ignore[return-value]  # a text is a size, which became bytes, or "auto"

    @property
    def holds_order(self) -> bool:
        """Only a budget needs the order of a plan below a code generator."""
        return self.hold_order and self.memory_budget is not None

    @property
    def limits(self) -> Limits:
        """What stops a solve."""
        return Limits(time_limit=self.time_limit, seed=self.seed, threads=self.threads or 1)

    @property
    def measure_memory(self) -> bool:
        """Only a budget asks for workspaces: without one nothing is measured."""
        return self.workspace == "measured" and self.memory_budget is not None

    def key(self) -> dict[str, Any]:
        """Everything that can change a plan, as plain data."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        measured = memory_key() if self.measure_memory else None
        return given | {"cost_model": cost_key(self.cost_model), "workspace": measured}


def names() -> list[str]:
    """The settings that a user may give."""
    return [f.name for f in fields(Settings) if f.init]


def check_budget(budget: Any) -> Budget:
    """A budget in its accepted form: sizes in words become bytes.

    Raises:
        ValueError: not a budget.
    """
    accepted = "bytes as an int, a size such as '300 MiB', a fraction as a float between 0.0 and 1.0, 'auto', or None"
    if budget is None or budget == "auto":
        return budget  # type: ignore[no-any-return]  # None or the text
    if isinstance(budget, bool):
        raise ValueError(f"memory_budget={budget!r}: expected {accepted}")
    if isinstance(budget, str):
        try:
            return parse_bytes(budget)
        except ValueError as e:
            raise ValueError(f"memory_budget={budget!r}: expected {accepted} ({e})") from None
    if isinstance(budget, int):
        if budget < 0:
            raise ValueError(f"memory_budget={budget}: expected {accepted}")
        return Bytes(budget)
    if isinstance(budget, float):
        if not 0.0 <= budget <= 1.0:
            raise ValueError(f"memory_budget={budget!r}: a float is a fraction between 0.0 and 1.0; give bytes as an int")
        return budget
    raise ValueError(f"memory_budget={budget!r} of type {type(budget).__name__}: expected {accepted}")


def parse_budget(text: str) -> Budget:
    """A budget as it is typed in a shell: "0.5" is a fraction, "1.0" too, "4096" bytes, "300 MiB" a size.

    Raises:
        ValueError: not a budget.
    """
    text = text.strip()
    if text.lower() in ("", "none"):
        return None
    if text.isdigit():
        return check_budget(int(text))
    try:
        return check_budget(float(text))
    except ValueError as e:
        if "fraction" in str(e):
            raise
        return check_budget(text)
