"""A few small graphs, drawn, named and used everywhere.

The pictures show ops as ``name`` and values as ``(name bytes)``; what stands right of the bar runs in the
backward.  Run times are 1 per op unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optpart.graph import Graph, Op, Region, Signature, Value, ValueKind
from optpart.problem import MemoryRule, Problem, bare_problem
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


def layer_norm() -> Problem:
    """An op with three values: recomputed together, saved one by one.  Run times: norm 2, the others 1.

        (x 64) ── norm ──> (y 64) ── gelu ──> (g 64) ── mm ──> (out 64)      │  mm_x(tangent, W) ──> dg
                    ├────> (mean 8)                                          │  mm_w(tangent, g) ──> dW
                    └────> (rstd 8)                                          │  gelu_bw(dg, y) ──> dy
        w, W: parameters                                                     │  norm_bw(dy, x, mean, rstd, w) ──> dx

    The backward reads x, y, mean, rstd and g.  Pareto set of (saved bytes, recompute time):

        x                 64  3   norm and gelu run again
        x g              128  2   norm, for y and the statistics
        x y mean rstd    144  1   gelu
        all              208  0
    """
    b = Builder("layer norm").given(64, "x").given(8, "w", kind=ValueKind.STATIC).given(128, "W", kind=ValueKind.STATIC)
    b.given(64, "tangent", kind=ValueKind.TANGENT)
    b.op("norm", "x w", FORWARD, {"y": 64, "mean": 8, "rstd": 8}, time=2)
    b.op("gelu", "y", FORWARD, {"g": 64}).op("mm", "g W", FORWARD, {"out": 64})
    b.op("mm_x", "tangent W", BACKWARD, 64).op("mm_w", "tangent g", BACKWARD, 128)
    b.op("gelu_bw", "mm_x y", BACKWARD, 64).op("norm_bw", "gelu_bw x mean rstd w", BACKWARD, 64)
    return b.problem("out", "mm_w norm_bw")


def diamond() -> Problem:
    """Two paths from one value: their common start is saved once, and serves both.

                       ┌── cos ──> (b 32) ──┐                   │  mul_b(tangent, c) ── cos_bw(., a) ──┐
        (x 64) ── f ──> (a 16)              mul ──> (out 32)    │                                     add ──> da
                       └── exp ──> (c 32) ──┘                   │  mul_c(tangent, b) ── exp_bw(., c) ──┘

    The backward reads a, b and c.  Saving a alone (16 bytes) recomputes cos and exp; with b or c (48) one of
    them; all three are 80 bytes.
    """
    b = Builder("diamond").given(64, "x").given(32, "tangent", kind=ValueKind.TANGENT)
    b.op("f", "x", FORWARD, {"a": 16}).op("cos", "a", FORWARD, {"b": 32}).op("exp", "a", FORWARD, {"c": 32})
    b.op("mul", "b c", FORWARD, {"out": 32})
    b.op("mul_b", "tangent c", BACKWARD, 32).op("cos_bw", "mul_b a", BACKWARD, 16)
    b.op("mul_c", "tangent b", BACKWARD, 32).op("exp_bw", "mul_c c", BACKWARD, 16)
    return b.op("add", "cos_bw exp_bw", BACKWARD, 16).problem("out", "add")


def less_saved_more_peak() -> Problem:
    """A lower limit on saved bytes raises the peak.  Run times: mm and mm_1 10, the others 1.

        (x 4) ── expand ──> (wide 160) ── sum ──> (narrow 8) ── mm ──> (h 80) ── mm_1 ──> (k 80) ── sum_1 ──> (out 8)

        backward: b3(tangent, k, narrow) ──> b2(., h) ──> b1(., narrow) ──> dx

    With everything saved that the backward reads (168 bytes) wide is gone when h and k come.  Below that limit
    the cheapest is to keep x in place of narrow, so wide is computed again while h and k are held.
    """
    b = Builder("less saved, more peak").given(4, "x").given(8, "tangent", kind=ValueKind.TANGENT)
    b.op("expand", "x", FORWARD, {"wide": 160}).op("sum", "wide", FORWARD, {"narrow": 8})
    b.op("mm", "narrow", FORWARD, {"h": 80}, time=10).op("mm_1", "h", FORWARD, {"k": 80}, time=10)
    b.op("sum_1", "k", FORWARD, {"out": 8})
    b.op("b3", "tangent k narrow", BACKWARD, 8).op("b2", "b3 h", BACKWARD, 8).op("b1", "b2 narrow", BACKWARD, 4)
    return b.problem("out", "b1")


def dropout() -> Problem:
    """A random op that can be redone from the generator's state (8 bytes).  Run times: mm 4, the others 1.

        (x 64) ── mm ──> (h 64) ── dropout ──> (d 64) ── mm_1 ──> (out 64)    │  mm_v(tangent, d) ──> dV
                                      ├──────> (mask 16)                      │  mm_d(tangent, V) ──> dd
        W, V: parameters              └ ─ ─ ─> (state 8)                      │  dropout_bw(dd, mask) ──> dh
                                                                              │  mm_w(dh, x) ──> dW

    The backward reads x, d and mask: 144 bytes, nothing again.  From x, h and the state (136) dropout runs again;
    from x and the state (72) mm and dropout do, and draw the same mask.
    """
    b = Builder("dropout").given(64, "x").given(128, "W", "V", kind=ValueKind.STATIC)
    b.given(64, "tangent", kind=ValueKind.TANGENT)
    b.op("mm", "x W", FORWARD, {"h": 64}, time=4).op("dropout", "h", FORWARD, {"d": 64, "mask": 16}, state=8)
    b.op("mm_1", "d V", FORWARD, {"out": 64})
    b.op("mm_v", "tangent d", BACKWARD, 128).op("mm_d", "tangent V", BACKWARD, 64)
    b.op("dropout_bw", "mm_d mask", BACKWARD, 64).op("mm_w", "dropout_bw x", BACKWARD, 128)
    return b.problem("out", "mm_v mm_w")


def chain() -> Problem:
    """What a low budget asks for: a value recomputed several times.  v1 to v4 take 32 bytes, all else 8.

        (x) ── f1 ──> (v1) ── f2 ──> (v2) ── f3 ──> (v3) ── f4 ──> (v4) ── f5 ──> (out)
         b1(., x) <── b2(., v1) <── b3(., v2) <── b4(., v3) <── b5(tangent, v4)
             └──> dx

    At b4 and at b3, x, tangent, out and two gradients take 40 bytes, so 96 bytes have room for one of the v, the
    one that is read.  So v2 is computed between b4 and b3, from v1, and v1 again between b3 and b2.
    """
    b = Builder("chain").given(8, "x").given(8, "tangent", kind=ValueKind.TANGENT)
    b.op("f1", "x", FORWARD, {"v1": 32}).op("f2", "v1", FORWARD, {"v2": 32}).op("f3", "v2", FORWARD, {"v3": 32})
    b.op("f4", "v3", FORWARD, {"v4": 32}).op("f5", "v4", FORWARD, {"out": 8})
    b.op("b5", "tangent v4", BACKWARD, 8).op("b4", "b5 v3", BACKWARD, 8).op("b3", "b4 v2", BACKWARD, 8)
    return b.op("b2", "b3 v1", BACKWARD, 8).op("b1", "b2 x", BACKWARD, 8).problem("out", "b1")


def bare_skip() -> Problem:
    """A bare graph: a is read again at the end.  Sizes in brackets, run times 3, 1, 1, 1.

        a(10) ──> b(10) ──> c(4) ──> d(4)
          └───────────────────────────┘

    In the given order the peak is 24, at c: a waits for d.  Dropped after b and computed again before d it is 20.
    """
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return bare_problem(["a", "b", "c", "d"], [10, 10, 4, 4], [3.0, 1.0, 1.0, 1.0], edges, "bare skip")


JOINT = (four_inputs, layer_norm, diamond, less_saved_more_peak, dropout, chain)
