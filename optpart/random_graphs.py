"""Random problems: small joint graphs with every oddity a captured one may have, and layered bare graphs.

Torch-free and seeded: the same arguments give the same problem on every machine.

* :func:`random_joint`: what properties are tested on.  Always solvable without a budget.
* :func:`random_layered`: the family of the published random layered graphs (Gagrani, Rainone, Yang, Teague,
  Jeon, Bondesan, van Hoof, Lott, Zeng, Zappi, "Neural topological ordering for computation graphs",
  NeurIPS 2022, appendix A), on which MOCCASIN and its followers report.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optpart.graph import Graph, Op, Region, Signature, Value, ValueKind
from optpart.problem import MemoryRule, Problem, bare_problem
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True, slots=True)
class Mix:
    """Probabilities of the oddities of :func:`random_joint`, each for one op, value or problem."""

    either: float = 0.3  # of the ops that are not FORWARD: EITHER instead of BACKWARD
    two_outputs: float = 0.2
    pinned: float = 0.15  # not recomputable
    unsavable: float = 0.1
    after: float = 0.1
    random: float = 0.1  # has a generator's state
    effect: float = 0.05  # writes nothing
    zero_bytes: float = 0.1
    workspace: float = 0.3
    output: float = 0.15  # a value that is an output although somebody reads it
    unboxed: float = 0.2


PLAIN = Mix(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def random_joint(seed: int, ops: int, mix: Mix = Mix()) -> Problem:
    """A joint problem of ``ops`` ops (2 or more), about half of them FORWARD, with whole-numbered run times.

    Values take 0 to 9 times 8 bytes.  Only values that can be computed again in the backward are unsavable, so a
    plan without a budget exists: save what is savable, recompute the rest, run EITHER ops in the backward.
    """
    if ops < 2:
        raise ValueError(f"a joint graph has a forward and a backward op at least; {ops} is too few")
    return _Joint(random.Random(seed), mix).build(ops, f"random joint {seed}")


@dataclass
class _Joint:
    """A joint graph in the making.  ``again`` holds the values that the backward can have in any case:
    savable, or computed again from such values."""

    rng: random.Random
    mix: Mix
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    again: set[int] = field(default_factory=set)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def build(self, count: int, name: str) -> Problem:
        rng = self.rng
        for i in range(rng.randint(1, 2)):
            self.value(f"p{i}", ValueKind.STATIC)
        for i in range(rng.randint(1, 2)):
            self.value(f"x{i}", ValueKind.INPUT, savable=not self.chance(self.mix.unsavable))
        forward = rng.randint(1, count - 1) if count < 4 else rng.randint(count // 3, 2 * count // 3)
        early = [v.id for v in self.values]  # what FORWARD ops may read
        either: list[int] = []
        for left in range(forward, 0, -1):
            if len(self.ops) + left < count - 1 and self.chance(self.mix.either / 4):  # a by-product of the forward
                either += self.op(Region.EITHER, self.some([v for v in early + either if v in self.again], 2))
            early += self.op(Region.FORWARD, self.some(early, 2))
        forward_outputs = self.outputs(Region.FORWARD)
        late = [self.value(f"t{i}", ValueKind.TANGENT) for i in range(max(1, len(forward_outputs)))]
        while len(self.ops) < count:
            there = [v for v in early + either if v in self.again]
            if len(self.ops) < count - 1 and self.chance(self.mix.either):
                either += self.op(Region.EITHER, self.some(there, 2))
            else:
                late += self.op(Region.BACKWARD, [*self.some(late, 2), *self.some(there, rng.randint(0, 2))])
        gradients = self.outputs(Region.EITHER, Region.BACKWARD)
        made = [v for v in early if v in self.again and self.values[v].kind is ValueKind.COMPUTED]
        gradients += tuple(v for v in made if self.chance(self.mix.output / 4))  # returned as they are
        return Problem(
            Graph(tuple(self.values), tuple(self.ops), forward_outputs, gradients, name=name),
            tuple(Microseconds(rng.randint(1, 9)) for _ in self.ops),
            tuple(Bytes(8 * rng.randint(1, 9) if self.chance(self.mix.workspace) else 0) for _ in self.ops),
            MemoryRule(boxed=not self.chance(self.mix.unboxed)),
        )

    def value(self, name: str, kind: ValueKind, producer: int | None = None, savable: bool = True) -> int:
        size = 0 if self.chance(self.mix.zero_bytes) else 8 * self.rng.randint(1, 9)
        v = len(self.values)
        self.values.append(Value(v, name, Bytes(size), kind, producer, savable, "" if savable else "tagged"))
        if savable:
            self.again.add(v)
        return v

    def some(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to ``most`` of these, young ones more often."""
        if not ids or not most:
            return ()
        number = self.rng.randint(1, most)
        return tuple(dict.fromkeys(self.rng.choice(ids[-4:] if self.chance(0.8) else ids) for _ in range(number)))

    def op(self, region: Region, reads: Sequence[int]) -> list[int]:
        """Append an op with its values; returns those that others may read."""
        rng, o = self.rng, len(self.ops)
        name = f"{region.value[0]}{o}"
        recomputable = not self.chance(self.mix.pinned)
        state = None
        writes = 0 if self.chance(self.mix.effect) else 2 if self.chance(self.mix.two_outputs) else 1
        redo = recomputable if region is Region.FORWARD else region is Region.EITHER
        redo = redo and self.again.issuperset(reads)
        produced = [
            self.value(f"{name}.{i}", ValueKind.COMPUTED, o, not (redo and self.chance(self.mix.unsavable)))
            for i in range(writes)
        ]
        if redo:
            self.again.update(produced)
        if region is not Region.BACKWARD and self.chance(self.mix.random):
            state = self.value(f"{name}.state", ValueKind.COMPUTED, o)
        peers = [p.id for p in self.ops if region is Region.BACKWARD or p.region in (region, Region.FORWARD)]
        after = (rng.choice(peers),) if peers and self.chance(self.mix.after) else ()
        flags: dict[str, Any] = {
            "recomputable": recomputable,
            "reason": "" if recomputable else "pinned",
            "after": after,
            "rng_state": state,
        }
        self.ops.append(Op(o, name, Signature(name), region, tuple(reads), tuple(produced), **flags))
        return produced

    def outputs(self, *regions: Region) -> tuple[int, ...]:
        """Values of these regions that nobody reads so far, and a few others."""
        read = {v for op in self.ops for v in op.reads}
        written = [v for op in self.ops if op.region in regions for v in op.writes]
        return tuple(v for v in written if v not in read or self.chance(self.mix.output))


# ------------------------------------------------------------------------------------------- layered

SPREAD = 0.75  # of layer sizes
EDGE_DENSITY = 0.2  # between neighbouring layers
SKIP_SHARE = 0.14  # of all edges
SIZE_MIXTURE = ((0.353, 575.0, 339.0), (0.269, 1590.0, 656.0), (0.378, 3595.0, 1360.0))  # weight, mean, deviation


def random_layered(n: int, seed: int) -> Problem:
    """A layered bare graph of ``n`` nodes (3 or more), one source and one sink among them, in a random topological order.

    The number of layers is ceil(sqrt(n (1/W - 1))) with W from U(0.25, 0.5).  Neighbouring layers of sizes a, b
    share round(0.2 a b + 0.8 max(a, b)) edges, skip edges come on top.  (Both the numbers of edges and the
    windows of :func:`_neighbours` are those of the public graphs of 100, 250 and 1,000 nodes, all 1,725 windows.)
    Run times are whole numbers from 1 to 998 (source and sink: 0), sizes multiples of 10, in abstract units.
    """
    if n < 3:
        raise ValueError(f"a layered graph has a source, a sink and a layer between them; {n} nodes are too few")
    rng = random.Random(seed)
    layers = _layers(rng, n)
    edges = [e for a, b in itertools.pairwise(layers) for e in _neighbours(rng, a, b)]
    edges = list(dict.fromkeys(edges + _skips(rng, layers, math.ceil(len(edges) * SKIP_SHARE / (1 - SKIP_SHARE)))))
    order = _random_order(rng, n, edges)
    time = [0, *(rng.randint(1, 998) for _ in range(n - 2)), 0]
    size = [_size(rng) for _ in range(n)]
    place = {v: i for i, v in enumerate(order)}
    return bare_problem(
        [str(v) for v in order],
        [size[v] for v in order],
        [float(time[v]) for v in order],
        [(place[a], place[b]) for a, b in edges],
        f"random layered {n} seed {seed}",
    )


def _layers(rng: random.Random, n: int) -> list[range]:
    """Nodes by layer: a source, layers of random sizes, a sink."""
    depth = math.ceil(math.sqrt(n * (1 / rng.uniform(0.25, 0.5) - 1)))
    least, most = math.ceil(n / depth * (1 - SPREAD)), math.floor(n / depth * (1 + SPREAD))
    layers = [range(1)]
    while (start := layers[-1].stop) < n - 1:
        layers.append(range(start, min(start + rng.randint(least, most), n - 1)))
    return [*layers, range(n - 1, n)]


def _neighbours(rng: random.Random, a: range, b: range) -> list[tuple[int, int]]:
    """Edges between neighbouring layers: each node of the larger one (b on a tie) joins a window of the smaller one."""
    large, small = (a, b) if len(a) > len(b) else (b, a)
    count = [0] * len(large)
    for _ in range(round(EDGE_DENSITY * len(a) * len(b) + (1 - EDGE_DENSITY) * len(large))):
        least = min(count)
        count[rng.choice([i for i, c in enumerate(count) if c == least])] += 1
    edges = []
    for i, width in enumerate(count):
        centre = round(i * (len(small) - 1) / max(1, len(large) - 1))
        first = min(max(centre - (width - 1) // 2, 0), len(small) - width)
        window = small[first : first + width]
        edges += [(large[i], v) if large is a else (v, large[i]) for v in window]
    return edges


def _skips(rng: random.Random, layers: Sequence[range], draws: int) -> list[tuple[int, int]]:
    """Edges over at least one layer, between nodes at about the same relative position."""
    if len(layers) < 3:
        return []
    edges = []
    for _ in range(draws):
        s = rng.randrange(len(layers) - 2)
        t = rng.randrange(s + 2, len(layers))
        x = rng.random()
        y = min(x + 0.2 * rng.random(), 0.999)
        edges.append((layers[s][int(x * len(layers[s]))], layers[t][int(y * len(layers[t]))]))
    return edges


def _random_order(rng: random.Random, n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A topological order: always a random node of those that are ready."""
    missing = [0] * n
    for _, b in edges:
        missing[b] += 1
    ready, order = [v for v in range(n) if not missing[v]], []
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for a, b in edges:
            if a == order[-1]:
                missing[b] -= 1
                if not missing[b]:
                    ready.append(b)
    return order


def _size(rng: random.Random) -> int:
    weights = [w for w, _, _ in SIZE_MIXTURE]
    while True:
        _, mean, deviation = rng.choices(SIZE_MIXTURE, weights)[0]
        if (size := 10 * round(rng.gauss(mean, deviation) / 10)) > 0:
            return size
