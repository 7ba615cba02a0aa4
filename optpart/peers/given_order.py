"""A problem as one numbered list of ops, with the times at which each may run: what retention intervals are about.

    stage 0    stage 1       stage 2            ...    stage n
    op 0       (0) op 1      (0) (1) op 2              (0) (1) ... (n-1)      in brackets: again, perhaps

Each place has a time of its own, T(j, k) = j (j + 1) / 2 + k for op k in stage j; the step is over at T(n, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from optpart.graph import Op, Region
from optpart.peers.candidates import keep_everything
from optpart.plans import Plan, baseline
from optpart.problem import Problem


@dataclass(frozen=True)
class Given:
    """The given order, and who may run again when.  ``split``: the number of the backward's first op (bare: 0)."""

    problem: Problem

    @cached_property
    def plan(self) -> Plan:
        return keep_everything(self.problem) if self.problem.graph.joint else baseline(self.problem.graph)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self.problem.graph.ops[o] for o in dict.fromkeys(self.plan.sequence))

    @cached_property
    def number(self) -> dict[int, int]:
        return {op.id: k for k, op in enumerate(self.ops)}

    @property
    def split(self) -> int:
        return len(self.plan.forward) if self.problem.graph.joint else 0

    @property
    def end(self) -> int:
        return self.time(len(self.ops), len(self.ops))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        return self.problem.integer_costs()[0]

    @property
    def unit(self) -> float:
        return self.problem.integer_costs()[1]

    @staticmethod
    def time(stage: int, k: int) -> int:
        return stage * (stage + 1) // 2 + k

    def maker(self, v: int) -> int | None:
        producer = self.problem.graph.values[v].producer
        return None if producer is None else self.number[producer]

    def reads(self, k: int) -> tuple[int, ...]:
        """What a run reads that some op makes, a state of the generator apart."""
        return tuple(v for v in dict.fromkeys(self.ops[k].reads) if self.maker(v) is not None)

    @property
    def returned(self) -> frozenset[int]:
        """Values that are there at the end."""
        graph = self.problem.graph
        given = graph.backward_outputs if graph.joint else (*graph.forward_outputs, *graph.backward_outputs)
        return (
            frozenset(v for v in given if self.maker(v) is not None) if self.problem.rule.hold_outputs else frozenset()
        )

    def may_rerun(self, k: int) -> bool:
        op, values = self.ops[k], self.problem.graph.values
        if not self.problem.graph.joint:
            return op.recomputable and op.rng_state is None
        fresh = op.rng_state is not None and (k >= self.split or not values[op.rng_state].savable)
        there = all(values[v].savable for v in op.reads if values[v].producer is None)
        return op.region is not Region.BACKWARD and op.recomputable and there and not fresh

    @cached_property
    def last(self) -> tuple[int, ...]:
        """By op the last stage at which it can be of use to run it again; -1: none."""
        last = [-1] * len(self.ops)
        for v in self.returned:
            last[self.maker(v) or 0] = len(self.ops)
        for k in range(len(self.ops) - 1, -1, -1):
            own = max(k, last[k]) if self.may_rerun(k) else k
            for v in self.reads(k):
                m = self.maker(v) or 0
                last[m] = max(last[m], own)
        return tuple(last)
