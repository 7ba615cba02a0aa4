"""A few small graphs, drawn, named and used everywhere.

The pictures show ops as ``name`` and values as ``(name bytes)``; what stands left of the bar runs in the
forward.  Run times are 1 per op unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optpart.graph import Graph, Op, Region, Signature, Value, ValueKind
from optpart.problem import MemoryRule, Problem
from optpart.units import Bytes, Microseconds

FORWARD, BACKWARD, EITHER = Region.FORWARD, Region.BACKWARD, Region.EITHER


class Builder:
    """A joint graph by names, in program order; ``problem()`` at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.runtime: list[float] = []
        self.workspace: list[int] = []

    def value(self, name: str) -> int:
        return next(v.id for v in self.values if v.name == name)

    def op_id(self, name: str) -> int:
        return next(o.id for o in self.ops if o.name == name)

    def _add(self, name: str, nbytes: int, kind: ValueKind, producer: int | None, savable: bool) -> int:
        reason = "" if savable else "tagged"
        self.values.append(Value(len(self.values), name, Bytes(nbytes), kind, producer, savable, reason))
        return len(self.values) - 1

    def given(self, nbytes: int, *names: str, kind: ValueKind = ValueKind.INPUT, savable: bool = True) -> Builder:
        for name in names:
            self._add(name, nbytes, kind, None, savable)
        return self

    def op(
        self,
        name: str,
        reads: str,
        region: Region,
        nbytes: int | Mapping[str, int],
        *,
        time: float = 1.0,
        workspace: int = 0,
        recomputable: bool = True,
        cheap: bool = True,
        savable: bool = True,
        after: Sequence[str] = (),
        state: int | None = None,
    ) -> Builder:
        """An op that reads the values named in ``reads`` (words) and writes one value of its own name, or those
        in ``nbytes``; ``state``: bytes of the generator's state from before the call."""
        o = len(self.ops)
        read = tuple(self.value(r) for r in reads.split())
        sizes = nbytes if isinstance(nbytes, Mapping) else {name: nbytes}
        writes = tuple(self._add(n, b, ValueKind.COMPUTED, o, savable) for n, b in sizes.items())
        rng = None if state is None else self._add(f"{name}_state", state, ValueKind.COMPUTED, o, True)
        reason = "" if recomputable else "random"
        earlier = tuple(self.op_id(a) for a in after)
        signature = Signature(name.rstrip("_0123456789"))
        self.ops.append(Op(o, name, signature, region, read, writes, recomputable, reason, cheap, earlier, rng))
        self.runtime.append(time)
        self.workspace.append(workspace)
        return self

    def problem(self, forward: str, backward: str, rule: MemoryRule | None = None) -> Problem:
        graph = Graph(
            tuple(self.values),
            tuple(self.ops),
            tuple(self.value(v) for v in forward.split()),
            tuple(self.value(v) for v in backward.split()),
            name=self.name,
        )
        return Problem(
            graph,
            tuple(Microseconds(t) for t in self.runtime),
            tuple(Bytes(w) for w in self.workspace),
            rule or MemoryRule(),
        )


def ids(problem: Problem, names: str) -> frozenset[int]:
    """Value ids of these names (words)."""
    by_name = {v.name: v.id for v in problem.graph.values}
    return frozenset(by_name[n] for n in names.split())


def op_ids(problem: Problem, names: str) -> tuple[int, ...]:
    """Op ids of these names (words), in this order."""
    by_name = {o.name: o.id for o in problem.graph.ops}
    return tuple(by_name[n] for n in names.split())


def four_inputs() -> Problem:
    """The running example: x = a + b + c + d, y = x.cos().cos(), and its joint graph; all values 32 bytes.

        a, b ── add ──┐                                │
        c ──────── add_1 ──┐                           │
        d ───────────── add_2 ── cos ── cos_1 ──> y    │
                          │       └──────────────── sin_1 ── neg ── mul(tangent, neg) ──┐
                          └──────────────────────── sin ── neg_1 ──────────────────── mul_1 ──> a', b', c', d'

    sin_1, neg, sin and neg_1 read nothing of the backward: they are EITHER ops.  With inputs charged, the
    least that can be saved is add_2 alone (32 bytes): cos is recomputed from it, everything else follows.
    """
    b = Builder("four inputs").given(32, "a", "b", "c", "d").given(32, "tangent", kind=ValueKind.TANGENT)
    b.op("add", "a b", FORWARD, 32).op("add_1", "add c", FORWARD, 32).op("add_2", "add_1 d", FORWARD, 32)
    b.op("cos", "add_2", FORWARD, 32).op("cos_1", "cos", FORWARD, 32)
    b.op("sin_1", "cos", EITHER, 32).op("neg", "sin_1", EITHER, 32).op("mul", "tangent neg", BACKWARD, 32)
    b.op("sin", "add_2", EITHER, 32).op("neg_1", "sin", EITHER, 32).op("mul_1", "mul neg_1", BACKWARD, 32)
    return b.problem("cos_1", "mul_1")
