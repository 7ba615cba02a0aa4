"""Plans that keep only the borders of every k-th block: where a search starts, and what it has to beat.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), arXiv:1604.06174, keep the borders of segments and
recompute a segment when the backward reaches it.  Blocks are found by structure (``blocks.find_blocks``), a
segment is k of them in a row; what crosses a border of segments is saved, what may not run again is saved too, and all
else is recomputed once, just ahead of its first reader.

Differs from checkpointing by hand in: 1. a segment's last ops are not run again where nothing needs them; 2. what
reaches over several segments is saved once; 3. k is tried from 1 to ``LONGEST``.
"""

from __future__ import annotations

from collections.abc import Iterator

from optpart.formulation.blocks import Blocks
from optpart.graph import Region
from optpart.plans import Plan, just_in_time
from optpart.problem import Problem

LONGEST = 8  # blocks in a segment; longer ones had higher peaks on 12-layer decoders of 27 blocks


def block_checkpoints(problem: Problem, blocks: Blocks) -> Iterator[Plan]:
    """The plans for segments of 1, 2, ... blocks, without those that would run again what must not."""
    graph = problem.graph
    for stride in range(1, min(LONGEST, blocks.count - 1) + 1):
        saved = set()
        for op in graph.in_region(Region.FORWARD):
            segment = blocks.of[op.id] // stride
            for v in op.writes:
                readers = (r for r in graph.readers[v] if graph.ops[r].region is not Region.BACKWARD)
                crosses = v in blocks.everywhere or any(blocks.of[r] // stride != segment for r in readers)
                if graph.values[v].savable and (crosses or not op.recomputable):
                    saved.add(v)
        plan = just_in_time(graph, frozenset(saved))
        again = all(graph.ops[o].recomputable for o in plan.recomputes())
        if again and all(graph.values[v].savable for v in plan.saved(graph)):
            yield plan
