"""``optpart profile``: time every distinct call of a model on the device at hand, into the cache of measurements.

    model ──trace, capture──> distinct calls ──those that the cache lacks: inputs, timing, workspace──> cache ──> profile

A call is in the cache as soon as it is timed, so a run that is stopped goes on where it was.  A profile travels as a
file: ``--export`` writes one, and the cost model ``profiled:FILE`` plans with it on any machine.  ``--import`` puts a
file's measurements into the cache first; a machine of the same kind (``cost.machine``) takes them for its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optpart.cost.cache import Cache, default_cache
from optpart.cost.inputs import device_of_call
from optpart.cost.machine import environment
from optpart.cost.profiled import TIME, Profile, load_profile, profile_calls
from optpart.cost.timing import Timing
from optpart.graph import Graph, Signature
from optpart.sweep import Watch
from optpart.units import Microseconds, format_time

KINDS = 12  # rows of the table that a person reads; the rest is summed up


@dataclass(frozen=True)
class Kind:
    """All ops of one operator: how many, how many distinct calls among them, what they take together, each run once."""

    target: str
    ops: int
    distinct: int
    time: Microseconds


@dataclass(frozen=True)
class ProfileReport:
    """What is known of the calls of a model's graphs; ``new`` of them were measured now, the others before."""

    model: str
    graphs: tuple[Graph, ...]
    profile: Profile
    new: int

    @property
    def estimated(self) -> dict[Signature, Timing]:
        """Calls that cannot be run and are priced by roofline; ``reason`` says why."""
        return {s: t for s, t in self.profile.timings.items() if t.reason}

    @property
    def time(self) -> Microseconds:
        """Of forward and backward, each op run once."""
        return Microseconds(sum(kind.time for kind in self.kinds()))

    def errors(self) -> list[float]:
        """Relative standard errors of the measured times, rising."""
        return sorted(t.error for t in self.profile.timings.values() if not t.reason)

    def kinds(self) -> list[Kind]:
        """The operators; what takes longest comes first."""
        ops: dict[str, list[Signature]] = {}
        for op in (op for graph in self.graphs for op in graph.ops):
            ops.setdefault(op.target, []).append(op.signature)
        timings = self.profile.timings
        kinds = [Kind(k, len(s), len(set(s)), Microseconds(sum(timings[x].time for x in s))) for k, s in ops.items()]
        return sorted(kinds, key=lambda kind: (-kind.time, kind.target))


def profile_model(
    graphs: Sequence[Graph], model: str, *, watch: Watch | None = None, cache: Cache | None = None
) -> ProfileReport:
    """Measure those calls of a model's graphs that the cache does not have.

    Args:
        graphs: the model's joint graphs; their calls run on the devices that they name.
        model: its name, for the report.
        watch: is told of each distinct call.
        cache: by default this user's.

    Raises:
        RuntimeError: a device is not at hand.
        KeyboardInterrupt: Ctrl-C; what was timed by then is in the cache.
    """
    watch, cache = watch or Watch(), cache or default_cache()
    calls = list(dict.fromkeys(op.signature for graph in graphs for op in graph.ops))
    known = sum(len(cache.get(TIME, environment(device_of_call(s)), (s,))) for s in calls)
    watch.total(len(calls))

    def tell(done: int, _: int, target: str) -> None:
        if done:
            watch.end()
        watch.begin(target)

    try:
        found = profile_calls(calls, tell, cache)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is measured is kept, and the same command goes on from there") from None
    estimated = sum(bool(t.reason) for t in found.timings.values())
    return ProfileReport(model, tuple(graphs), found, len(calls) - known - estimated)


def take_over(file: str, device: str, cache: Cache | None = None) -> str:
    """Put a profile's measurements into the cache, estimates left out; returns a line that says what they are worth here.

    Raises:
        ValueError: the file is no profile.
    """
    found = load_profile(file).profile
    measured = [row for row in found.rows if row.kind != TIME or not found.timings[row.signature].reason]
    (cache or default_cache()).replace(measured)
    told = f"{file}: {len(found.timings)} calls, measured on {' & '.join(found.environments)}"
    if environment(device) in found.environments:
        return told
    return f"{told}: another machine; to plan for it, use --cost-model profiled:{file}"


# ------------------------------------------------------------------------------------------------- output


def profile_text(report: ProfileReport) -> str:
    """The report for a person: where, how well, and what takes the time."""
    errors, total = report.errors(), report.time
    distinct = len(report.profile.timings)
    lines = [
        f"{report.model}: {distinct} distinct calls of {sum(len(g.ops) for g in report.graphs)}, {report.new} measured now",
        *(f"on {where}" for where in report.profile.environments),
        f"forward and backward, each op run once: {format_time(total)}",
    ]
    if errors:
        lines.append(f"standard error of a time: median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")
    kinds = report.kinds()
    if rest := kinds[KINDS:]:
        ops, others, time = sum(k.ops for k in rest), sum(k.distinct for k in rest), sum(k.time for k in rest)
        kinds = [*kinds[:KINDS], Kind(f"{len(rest)} others", ops, others, Microseconds(time))]
    width = max((len(k.target) for k in kinds), default=0)
    lines += ["", f"{'operator':<{width}}  {'ops':>5}  {'distinct':>8}  {'time':>10}  share"]
    for kind in kinds:
        share = kind.time / total if total else 0.0
        lines.append(
            f"{kind.target:<{width}}  {kind.ops:>5}  {kind.distinct:>8}  {format_time(kind.time):>10}  {share:>5.1%}"
        )
    lines += [f"priced by roofline: {t.reason}" for t in report.estimated.values()]
    return "\n".join(lines) + "\n"


def profile_to_json(report: ProfileReport, config: dict[str, Any]) -> dict[str, Any]:
    """The report as a JSON object: microseconds, relative errors, and the calls of each operator."""
    return {
        "model": report.model,
        "config": config,
        "environments": list(report.profile.environments),
        "distinct": len(report.profile.timings),
        "measured_now": report.new,
        "microseconds": report.time,
        "largest_error": max(report.errors(), default=None),
        "operators": [
            {"operator": k.target, "ops": k.ops, "distinct": k.distinct, "microseconds": k.time} for k in report.kinds()
        ],
        "estimated": [{"operator": s.target, "reason": t.reason} for s, t in report.estimated.items()],
    }
