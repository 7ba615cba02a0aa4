"""The peers by name: published methods as algorithms on our problems, each with one signature.

    PEERS["moccasin"].solve(problem, limit, limits) -> Result        limit: bytes, on the peak

What they find is measured by our simulator and is within the limit, or there is no plan; a bound is there only where
the method has one, and names its class.  Each module's docstring says what is published and what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optpart.peers.checkmate import checkmate
from optpart.peers.checkmate_rounding import checkmate_rounding
from optpart.peers.chen import greedy, sqrt_n
from optpart.peers.fastsa import fastsa
from optpart.peers.lower_sets import lower_sets
from optpart.peers.moccasin import moccasin
from optpart.peers.pytorch_knapsack import pytorch_knapsack
from optpart.peers.revolve import revolve
from optpart.peers.rotor import rotor
from optpart.problem import Problem
from optpart.solver.base import Limits, Result


@dataclass(frozen=True)
class Peer:
    """``solve`` takes (problem, limit on the peak in bytes, limits).  ``source`` is a paper's key in references.bib.
    ``bare``: also for graphs without forward and backward.  ``proves``: it has a bound beside its plan."""

    solve: Callable[[Problem, int, Limits], Result]
    title: str
    source: str
    bare: bool = False
    proves: bool = False

    def takes(self, problem: Problem) -> bool:
        """Is the method made for such a problem?"""
        return problem.graph.joint or self.bare


PEERS = {
    "chen_sqrt_n": Peer(sqrt_n, "checkpoints at every k-th place", "chen2016"),
    "chen_greedy": Peer(greedy, "checkpoints where a segment is full", "chen2016"),
    "revolve": Peer(revolve, "binomial checkpointing of a chain", "revolve"),
    "lower_sets": Peer(lower_sets, "dynamic program over lower sets", "kusumoto"),
    "rotor": Peer(rotor, "dynamic program over a chain of blocks", "rotor"),
    "pytorch_knapsack": Peer(pytorch_knapsack, "minimum cut and knapsack on saved bytes", "pytorch2"),
    "fastsa": Peer(fastsa, "annealing of a sequence with repeats", "fastsa", bare=True),
    "checkmate": Peer(checkmate, "integer program of n stages", "checkmate", bare=True, proves=True),
    "checkmate_rounding": Peer(
        checkmate_rounding, "relaxation of n stages, rounded in two phases", "checkmate", bare=True, proves=True
    ),
    "moccasin": Peer(moccasin, "retention intervals, two copies of each value", "moccasin", bare=True, proves=True),
}
