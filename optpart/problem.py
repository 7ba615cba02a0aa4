"""A Problem: a graph, what its calls cost, how memory is counted, and the budget.

Frozen and torch-free, with a JSON form; node-link files of published instances become the same type
(``from_node_link``).  Run times are floats in microseconds for captured graphs and abstract units for
published ones; a solver that wants integers asks :meth:`Problem.integer_costs`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optpart.graph import Graph, Op, Region, Signature, Value, ValueKind, graph_from_json, graph_to_json
from optpart.units import Bytes, Microseconds


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """How live bytes are counted.

    ``rounding``: every storage takes a multiple of this (512 on CUDA, 64 on the CPU; 1 = as it is).
    ``boxed``: the backward frees its saved values at their last read (True, what aot_eager and Inductor
    do) or holds them to its end (False).
    ``count_resident``: static and held inputs are part of the peak (False for bare instances).
    ``hold_outputs``: what the caller receives stays alive to the end of the step (False for bare
    instances, whose sinks live only at their own step).
    """

    rounding: Bytes = Bytes(1)
    boxed: bool = True
    count_resident: bool = True
    hold_outputs: bool = True

    def size(self, nbytes: int) -> int:
        """``nbytes`` rounded up to what the allocator hands out."""
        return -(-nbytes // self.rounding) * self.rounding


BARE_RULE = MemoryRule(count_resident=False, hold_outputs=False)


@dataclass(frozen=True)
class Problem:
    """``runtime[o]`` and ``workspace[o]`` by op id; ``budget`` limits the peak, None = no limit.

    ``workspace`` is what a call allocates and frees again before it returns, above its outputs.  A random op
    that runs again in the backward needs :meth:`aside` on top of it.
    """

    graph: Graph
    runtime: tuple[Microseconds, ...]
    workspace: tuple[Bytes, ...]
    rule: MemoryRule = MemoryRule()
    budget: Bytes | None = None
    cost_model: str = ""

    def __post_init__(self) -> None:
        n = len(self.graph.ops)
        if len(self.runtime) != n or len(self.workspace) != n:
            raise ValueError(f"{n} ops, but {len(self.runtime)} run times and {len(self.workspace)} workspaces")
        for op, time, space in zip(self.graph.ops, self.runtime, self.workspace):
            if not (math.isfinite(time) and time >= 0):
                raise ValueError(f"op {op.name!r} has run time {time}; it must be finite and not negative")
            if space < 0:
                raise ValueError(f"op {op.name!r} has a workspace of {space} bytes")

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes that each value takes, rounded by the rule."""
        return tuple(self.rule.size(v.nbytes) for v in self.graph.values)

    @functools.cached_property
    def total_time(self) -> float:
        """Forward plus backward with every op run once: what ``overhead`` is a fraction of."""
        return math.fsum(self.runtime)

    def aside(self, o: int) -> int:
        """Bytes of the generator's present state, which is put aside while the op draws its numbers once more."""
        state = self.graph.ops[o].rng_state
        return 0 if state is None else self.sizes[state]

    def with_budget(self, budget: int | None) -> Problem:
        return replace(self, budget=None if budget is None else Bytes(budget))

    def in_given_order(self) -> Problem:
        """The same bare problem with each op's first run tied behind that of the op before it."""
        chain = [replace(op, after=tuple(dict.fromkeys((*op.after, op.id - 1)))) for op in self.graph.ops[1:]]
        return replace(self, graph=replace(self.graph, ops=(*self.graph.ops[:1], *chain)))

    def integer_costs(self, largest_total: int = 10**9) -> tuple[tuple[int, ...], float]:
        """(integer costs, unit): run times as integers, so that a gap below 1 is a proof.

        Integral run times come back exactly (unit 1, divided by their gcd); other ones in nanoseconds,
        or in a coarser unit if their sum would pass ``largest_total``.
        """
        if all(float(t).is_integer() for t in self.runtime):
            integers = [int(t) for t in self.runtime]
            gcd = math.gcd(*integers) or 1
            return tuple(i // gcd for i in integers), float(gcd)
        unit = max(1e-3, self.total_time / largest_total)
        return tuple(round(t / unit) for t in self.runtime), unit


# ---------------------------------------------------------------------------------------------- JSON


def problem_to_json(problem: Problem) -> dict[str, Any]:
    rule = problem.rule
    return {
        "format": "optpart-problem-1",
        "graph": graph_to_json(problem.graph),
        "runtime": list(problem.runtime),
        "workspace": list(problem.workspace),
        "rule": {
            "rounding": rule.rounding,
            "boxed": rule.boxed,
            "count_resident": rule.count_resident,
            "hold_outputs": rule.hold_outputs,
        },
        "budget": problem.budget,
        "cost_model": problem.cost_model,
    }


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    """The inverse of :func:`problem_to_json`; ValueError for another format or a broken graph."""
    if data.get("format") != "optpart-problem-1":
        raise ValueError(f"not a problem of this package: format is {data.get('format')!r}, expected 'optpart-problem-1'")
    rule = data["rule"]
    return Problem(
        graph=graph_from_json(data["graph"]),
        runtime=tuple(Microseconds(t) for t in data["runtime"]),
        workspace=tuple(Bytes(b) for b in data["workspace"]),
        rule=MemoryRule(Bytes(rule["rounding"]), rule["boxed"], rule["count_resident"], rule["hold_outputs"]),
        budget=data["budget"],
        cost_model=data["cost_model"],
    )


def load_problem(path: str | Path) -> Problem:
    """A problem from a file: this package's JSON, or a published node-link instance.

    Raises:
        ValueError: the file is neither; the message says what was found.
        OSError: the file cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text())
    except ValueError as e:  # bytes that are no text, or text that is no JSON
        raise ValueError(f"{path} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, expected an object (a problem, or a node-link graph)")
    try:
        if "nodes" in data and "links" in data:
            return from_node_link(data, Path(path).stem)
        return problem_from_json(data)
    except KeyError as e:
        raise ValueError(f"{path} lacks the field {e}") from e
    except IndexError as e:
        raise ValueError(f"{path} refers to a value or an op that it does not have") from e
    except (AttributeError, TypeError) as e:
        raise ValueError(f"{path} has a field of a wrong type: {e}") from e
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from e


def from_node_link(data: Mapping[str, Any], name: str = "") -> Problem:
    """A bare problem from a networkx node-link object (both dialects of the public benchmark graphs).

    Dialect 1: ``nodes[i] = {name, out_cost, duration}``, links ``{"0": source, "1": target}``,
    ``graph.order`` the program order.  Dialect 2: ``nodes[i] = {id, cost_ram, cost_cpu}``, links
    ``{source, target}``, program order = ``networkx.topological_sort`` of the graph in file order.

    Raises:
        ValueError: a field is missing, an edge has an end that is no node, or the graph has a cycle.
    """
    import networkx

    try:
        if "order" in data.get("graph", {}):
            key = "name"
            order = list(data["graph"]["order"])
            edges = [(link["0"], link["1"]) for link in data["links"]]
            size, time = "out_cost", "duration"
        else:
            key = "id"
            edges = [(link["source"], link["target"]) for link in data["links"]]
            size, time = "cost_ram", "cost_cpu"
            graph: networkx.DiGraph[Any] = networkx.DiGraph()
            graph.add_nodes_from(node["id"] for node in data["nodes"])
            graph.add_edges_from(edges)
            order = list(networkx.topological_sort(graph))
        nodes = {node[key]: node for node in data["nodes"]}
        sizes = [Bytes(int(nodes[i][size])) for i in order]
        times = [Microseconds(float(nodes[i][time])) for i in order]
    except KeyError as e:
        raise ValueError(f"node-link graph {name!r} lacks the field {e}") from e
    except networkx.NetworkXUnfeasible as e:
        raise ValueError(f"node-link graph {name!r} has a cycle") from e
    place = {node: i for i, node in enumerate(order)}
    strange = [node for edge in edges for node in edge if node not in place]
    if strange:
        raise ValueError(f"node-link graph {name!r} has an edge of {strange[0]!r}, which is no node of its order")
    return bare_problem([str(i) for i in order], sizes, times, [(place[a], place[b]) for a, b in edges], name)


def bare_problem(
    names: Sequence[str], sizes: Sequence[int], times: Sequence[float], edges: Sequence[tuple[int, int]], name: str = ""
) -> Problem:
    """A bare problem in program order: op i writes value i; an edge (i, j) says that op j reads value i."""
    reads: list[list[int]] = [[] for _ in names]
    for source, target in dict.fromkeys(edges):
        reads[target].append(source)
    graph = Graph(
        values=tuple(Value(i, n, Bytes(b), ValueKind.COMPUTED, i) for i, (n, b) in enumerate(zip(names, sizes))),
        ops=tuple(
            Op(i, n, Signature(n), Region.EITHER, tuple(sorted(reads[i])), (i,)) for i, n in enumerate(names)
        ),
        joint=False,
        name=name,
    )
    return Problem(graph, tuple(Microseconds(t) for t in times), tuple(Bytes(0) for _ in names), BARE_RULE)
