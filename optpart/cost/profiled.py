"""Cost models from measurements: "profiled" on the machine at hand, "profiled:FILE" on another one.

Measurements go into the cache one by one, so a profiling run that is killed goes on where it was.  A
:class:`Profile` is what is known of one graph's calls.  It travels as JSON, and a plan for the machine
that it was measured on can be made on any other.

A call that cannot be run (a higher-order operator, a collective) is priced by roofline, and is marked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from optpart.cost.cache import Cache, Row, default_cache, rows_from_json, rows_to_json
from optpart.cost.devices import default_device
from optpart.cost.inputs import Unrunnable, device_of_call
from optpart.cost.machine import environment, environments
from optpart.cost.roofline import Roofline
from optpart.cost.timing import Timing, measure_time
from optpart.cost.workspace import MEMORY, Footprint, Found, footprint_from_json, footprints
from optpart.graph import Signature
from optpart.units import Microseconds

logger = logging.getLogger(__name__)

TIME = "time 1"  # and the version of the value's form

Progress = Callable[[int, int, str], None]  # how many calls are done, of how many, the next one's operator


@dataclass(frozen=True)
class Profiled:
    """The cost model "profiled": the time of a call from the cache, measured now if it is not there.

    ``custom``: custom operators are run too.
    """

    cache: Cache = field(default_factory=default_cache)
    custom: bool = False
    known: dict[Signature, Timing] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return "profiled"

    def runtime(self, signature: Signature) -> Microseconds:
        """The measured time.

        Raises:
            RuntimeError: the call's device is not at hand.
        """
        return self.timing(signature).time

    def timing(self, signature: Signature) -> Timing:
        """The measured time with its error; RuntimeError as above."""
        if signature not in self.known:
            self.known[signature] = self._timing(signature)
        return self.known[signature]

    def _timing(self, signature: Signature) -> Timing:
        device = device_of_call(signature)
        where = environment(device)
        if not (found := self.cache.get(TIME, where, (signature,))):
            try:
                timing = measure_time(signature, custom=self.custom)
            except Unrunnable as error:
                logger.warning("priced by roofline: %s", error)
                estimate = Roofline(default_device(device.partition(":")[0])).runtime(signature)
                return Timing(estimate, 1.0, 0, str(error))
            found = self.cache.put(TIME, where, {signature: astuple(timing)})
        return Timing(*found[signature])

    def key(self) -> str:
        """Where times are measured and which table they are in: under one identity it only grows."""
        return f"profiled 1 {' & '.join(environments())} table {self.cache.identity()}"


# ------------------------------------------------------------------------------------- what travels


@dataclass(frozen=True)
class Profile:
    """What was measured of some calls, each on one machine.

    Raises:
        ValueError: a call was measured on two machines.
    """

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if len({(row.kind, row.signature) for row in self.rows}) < len(self.rows):
            raise ValueError(f"a profile of several machines: {' & '.join(self.environments)}")

    @functools.cached_property
    def timings(self) -> Mapping[Signature, Timing]:
        return {row.signature: Timing(*row.value) for row in self.rows if row.kind == TIME}

    @functools.cached_property
    def footprints(self) -> Mapping[Signature, Footprint]:
        return {row.signature: footprint_from_json(row.value) for row in self.rows if row.kind == MEMORY}

    @property
    def environments(self) -> tuple[str, ...]:
        """Where it was measured: a graph on a GPU has calls on the CPU too."""
        return tuple(dict.fromkeys(row.environment for row in self.rows))

    def to_json(self) -> dict[str, Any]:
        return rows_to_json(self.rows)


def profile_from_json(data: Mapping[str, Any]) -> Profile:
    """The inverse of :meth:`Profile.to_json`.

    Raises:
        ValueError: another format, or measurements of several machines.
    """
    return Profile(tuple(rows_from_json(data)))


def profile_calls(calls: Iterable[Signature], progress: Progress | None = None, cache: Cache | None = None) -> Profile:
    """Measure time and memory of each distinct call, custom operators included, unless the cache has them.

    Args:
        calls: they run on the devices that they name.
        progress: is told how many calls are done, of how many, and the next one's operator.
        cache: by default this user's.

    Raises:
        RuntimeError: a device is not at hand.
    """
    model = Profiled(cache or default_cache(), custom=True)
    signatures = list(dict.fromkeys(calls))
    known = len(model.cache.rows())
    timings = []
    for done, signature in enumerate(signatures):
        if progress:
            progress(done, len(signatures), signature.target)
        timings.append(
            Row(TIME, environment(device_of_call(signature)), signature, list(astuple(model.timing(signature))))
        )
    if progress:
        progress(len(signatures), len(signatures), "")
    memory = [
        Row(MEMORY, environment(device_of_call(signature)), signature, footprint.to_json())
        for signature, footprint in footprints(signatures, model.cache, math.inf, custom=True).items()
        if isinstance(footprint, Footprint)
    ]
    if len(model.cache.rows()) > known:
        model.cache.renew()  # a plan from before may lack workspaces that took too long to measure
    return Profile((*timings, *memory))


@dataclass(frozen=True)
class Imported:
    """A cost model that takes a profile's times and footprints, and measures nothing."""

    profile: Profile
    label: str

    @property
    def name(self) -> str:
        return f"profiled:{self.label}"

    def runtime(self, signature: Signature) -> Microseconds:
        """The profile's time.

        Raises:
            LookupError: the profile has no such call.
        """
        if (timing := self.profile.timings.get(signature)) is None:
            raise LookupError(
                f"the profile {self.label!r} has no time for {signature.target} with these shapes; it has "
                f"{len(self.profile.timings)} calls, measured on {' & '.join(self.profile.environments)}"
            )
        return timing.time

    def footprints(self, signatures: Iterable[Signature]) -> Found:
        """What the profile knows of the memory of calls."""
        known = self.profile.footprints
        return {s: known.get(s, f"the profile {self.label!r} lacks some") for s in signatures}

    def key(self) -> str:
        text = json.dumps(self.profile.to_json(), sort_keys=True)
        return f"imported 1 {hashlib.sha256(text.encode()).hexdigest()}"


def load_profile(path: str) -> Imported:
    """The cost model of a profile in a file.

    Raises:
        ValueError: the file cannot be read, or is no profile.
    """
    try:
        return Imported(profile_from_json(json.loads(Path(path).read_text())), Path(path).name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no profile in {path!r}: {error}") from error
