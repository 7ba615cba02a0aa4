"""Minimum cuts: against all subsets, against networkx, and at the limits of whole numbers."""

from __future__ import annotations

import itertools
import math
import random

import networkx
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds

from optpart.solver.maxflow import InfinitePath, MinimumCut, minimum_cut

Arcs = list[tuple[int, int, int]]
arcs_of_six_nodes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=18)


def cut_of(arcs: Arcs, unlimited: int = 10) -> MinimumCut | InfinitePath:
    """Arcs of that capacity or more are unlimited."""
    tail, head, capacity = numpy.array(arcs, dtype=numpy.int64).reshape(-1, 3).T
    return minimum_cut(tail.copy(), head.copy(), capacity.copy(), capacity >= unlimited, nodes=6)


@settings(max_examples=200)
@given(arcs_of_six_nodes)
def test_both_extreme_cuts_are_those_of_all_subsets(arcs: Arcs) -> None:
    cut = cut_of(arcs, unlimited=9)
    sides = [frozenset({0, *some}) for n in range(5) for some in itertools.combinations(range(2, 6), n)]
    price = {s: sum(math.inf if c >= 9 else c for t, h, c in arcs if t in s and h not in s) for s in sides}
    least = min(price.values())
    if isinstance(cut, InfinitePath):
        assert least == math.inf
        path = [arcs[i] for i in cut.arcs]
        assert path[0][0] == 0
        assert path[-1][1] == 1
        assert all(a[1] == b[0] for a, b in itertools.pairwise(path))
        assert all(c >= 9 for _, _, c in path)
        return
    best = [s for s in sides if price[s] == least]
    assert cut.value == least
    assert set(numpy.flatnonzero(cut.smallest)) == frozenset.intersection(*best)
    assert set(numpy.flatnonzero(cut.largest)) == frozenset.union(*best)


@settings(max_examples=30)
@given(seeds)
def test_floating_capacities_agree_with_networkx(seed: int) -> None:
    rng = random.Random(seed)
    net: networkx.DiGraph[int] = networkx.gnp_random_graph(30, 0.2, seed=seed, directed=True)
    for _, _, data in net.edges(data=True):
        data["capacity"] = rng.random() * 10.0 ** rng.randint(-3, 6)
    tail, head = numpy.array(net.edges, dtype=numpy.int64).T
    capacity = numpy.array([c for _, _, c in net.edges(data="capacity")])
    cut = minimum_cut(tail.copy(), head.copy(), capacity, numpy.zeros(len(capacity), dtype=bool), nodes=30)
    assert isinstance(cut, MinimumCut)
    assert cut.value == pytest.approx(networkx.minimum_cut_value(net, 0, 1), rel=1e-9)


def test_capacities_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError, match="common factor"):
        cut_of([(0, 2, 1 << 60), (2, 1, 1 << 60)], unlimited=1 << 62)


def test_a_network_without_arcs_has_a_cut_of_nothing() -> None:
    cut = cut_of([])
    assert isinstance(cut, MinimumCut)
    assert cut.value == 0
    assert cut.smallest.tolist() == [True] + [False] * 5
    assert cut.largest.tolist() == [True, False, True, True, True, True]
