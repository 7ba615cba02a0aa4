"""Annealing of execution sequences with repeats, compiled by numba.

**The sequence** stands in *slots*; about every other slot is empty, so that a run can be put anywhere without
moving the others.  Slots below ``split`` hold the forward, which never changes; in a bare graph there are none.

* An op's runs are its slots in ascending order.  A run reads the newest instance before it, so a sequence is
  valid exactly if the *first* runs are in a topological order; every other run only has a price and a
  consequence for memory.
* ``end[v, k]`` is the last slot that reads the value v of its op's k-th run (the run itself if nothing does).
* ``load[s]`` is the bytes alive at slot s minus the budget; minus ``EMPTY`` where no op runs, because only
  steps count.  ``total[EXCESS]`` is the sum over slots of max(0, load).

Three changes suffice: :func:`add_run`, :func:`remove_run`, :func:`move_first`; each costs a few readers' runs
and one pass over the slots by which a life grew or shrank (vector instructions: for some thousand slots quicker
than a segment tree).  Each is logged, so that :func:`undo` takes a whole move back.  All quantities are whole
numbers: no drift, the same on every machine.

**Moves** are compound, and are measured as a whole: made, then kept or taken back.

* *shift*: a first run goes elsewhere between the runs that it needs and those that need it.
* *pull* and *push*: an op goes ahead of (behind) a slot, with all that it needs (that need it) on the way.
* *repeat*: an op runs again ahead of a reader, so that its value is not there in between; what it reads is run
  again too, or lives on.
* *leave out*: an extra run goes, with those that only served it.
* *carry*: an extra run goes elsewhere.

Half of them start at a slot that is over the budget, at a value that is alive there and not used.  Energy = cost
+ price * excess; the price falls while the sequence fits and rises while it does not.  The best sequence that
fits is kept; while there is none, the one of least excess.

All of it is in this file because numba's cache on the disk asks for the date of one file only, a function's own:
in two files, a change of the one would leave old code of it in the other's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EMPTY = 1 << 60
NOWHERE = -1  # in place of a slot
RUNS = 15  # of one op; a plan that wants more is not found
LOG = 512  # changes of one compound move

NEAR = 24  # slots that are looked at for an empty one
MOST = 24  # ops in one move
ROUND = 256  # moves at one temperature and price
TRIES = 48  # draws for a value or a run of some kind
NOTHING = 1 << 62  # cost and excess of no sequence at all

# Columns of ``ops``.  The last six are places in ``items``: an op's lists stand there one after the other.
TIME, SPACE, FIRST_SPACE, AGAIN, LOOSE, STEP, READS, EARLY, WRITES, BEFORE, BEHIND, END = range(12)
# Columns of ``values``.
SIZE, FIRST_SIZE, PRODUCER, BOUND, READ_FROM, READERS, READERS_END = range(7)
# Of ``total``.
EXCESS, COST, FAULTS, LENGTH, SPLIT, STEPS, LOGGED = range(7)
# Of ``knobs``, and of ``found``.
HOT, COLD, PRICE, LOWEST, HIGHEST, STEP_UP = range(6)
BEST_COST, BEST_EXCESS, BEST_STEPS = range(3)


_Function = TypeVar("_Function", bound=Callable[..., Any])
# Without reference counts: nothing is allocated in here, and counting at each call takes longer than the call.
_PLAIN: dict[str, Any] = {"_nrt": False}
_INNER: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: _Function) -> _Function:
    """Machine code, kept on the disk where that can be written; can be called from Python."""
    try:
        return cast(_Function, numba.njit(cache=True, **_PLAIN)(function))
    except RuntimeError:
        return cast(_Function, numba.njit(**_PLAIN)(function))


def inner(function: _Function) -> _Function:
    """Machine code that only other machine code can call."""
    return cast(_Function, numba.njit(**_INNER)(function))


class Fixed(NamedTuple):
    """What does not change, as tables: few arrays make quick calls.

    ``ops[o]``: TIME; SPACE, its workspace (in the forward FIRST_SPACE); AGAIN, it may run more than once; LOOSE,
    its first run may be moved; STEP, it is a step of the plan.  In ``items``: what it reads, of these until EARLY what a run in the forward reads;
    from WRITES on the values that it writes; from BEFORE on the ops whose first run has to stand earlier;
    from BEHIND to END those whose first run has to stand later.
    ``values[v]``: SIZE, and FIRST_SIZE of the first instance (0 if the caller holds it anyway); its PRODUCER;
    BOUND, the first instance may not be read in the backward; READ_FROM, reads in lower slots do not count;
    in ``items`` from READERS to READERS_END the ops that read it.
    """

    ops: Ints
    values: Ints
    items: Ints


class State(NamedTuple):
    """A sequence.  By slot ``op_at`` (NOWHERE: none) and ``load``; ``runs[o]``: their number, then their slots;
    ``end[v]`` by run; sums in ``total``; ``log``: op, old slot, new slot."""

    op_at: Ints
    load: Ints
    runs: Ints
    end: Ints
    total: Ints
    log: Ints


def new_state(fixed: Fixed, split: int, steps: int) -> State:
    """An empty sequence with room for ``steps`` runs behind the forward."""
    slots = split + 2 * steps
    state = State(
        np.full(slots, -1, np.int64),
        np.zeros(slots, np.int64),
        np.zeros((len(fixed.ops), RUNS + 1), np.int64),
        np.zeros((len(fixed.values), RUNS), np.int64),
        np.zeros(7, np.int64),
        np.zeros((LOG, 3), np.int64),
    )
    state.total[SPLIT] = split
    return state


class Search(NamedTuple):
    """``random``: the generator's state; ``best`` holds ``found[BEST_STEPS]`` ops; ``logarithm`` has -log of
    random numbers; ``marks`` and ``group`` are scratch space."""

    random: npt.NDArray[np.uint64]
    knobs: Floats
    found: Ints
    best: Ints
    logarithm: Floats
    marks: Ints
    group: Ints


def new_search(fixed: Fixed, steps: int, seed: int) -> Search:
    """A search that has found nothing yet; ``steps`` as for the state."""
    uniform = (np.arange(4096, dtype=np.float64) + 0.5) / 4096
    return Search(
        np.array([88172645463325252 + 2 * seed], np.uint64),  # any number but 0
        np.zeros(6),
        np.array([NOTHING, NOTHING, 0], np.int64),
        np.zeros(steps + 1, np.int64),
        -np.log(uniform).round(6),  # rounded: the same on every machine
        np.zeros(len(fixed.ops) + 1, np.int64),
        np.zeros((MOST, 2), np.int64),
    )


# -------------------------------------------------------------------------------------- the sequence


@inner
def _add_bytes(s: State, first: int, last: int, nbytes: int) -> None:
    """Change the bytes at slots first..last, none if last < first."""
    if last < first:
        return
    load = s.load[first : last + 1]
    change = 0
    for i in range(load.size):
        old = load[i]
        new = old + nbytes
        load[i] = new
        change += max(new, 0) - max(old, 0)
    s.total[EXCESS] += change


@inner
def rank(s: State, o: int, slot: int) -> int:
    """How many runs of an op stand before a slot."""
    k = 0
    while k < s.runs[o, 0] and s.runs[o, k + 1] < slot:
        k += 1
    return k


@inner
def last_read(f: Fixed, s: State, v: int, start: int, before: int) -> int:
    """The last slot between ``start`` and ``before`` (both left out) that reads a value; ``start`` if none does."""
    last = max(start, f.values[v, READ_FROM] - 1)
    for i in range(f.values[v, READERS], f.values[v, READERS_END]):
        r = f.items[i]
        k = s.runs[r, 0] - 1
        while k >= 0 and s.runs[r, k + 1] >= before:
            k -= 1
        if k >= 0:
            last = max(last, s.runs[r, k + 1])
    return last if last >= f.values[v, READ_FROM] else start


@inner
def next_read(f: Fixed, s: State, v: int, slot: int) -> int:
    """The first slot behind ``slot`` that reads a value; the sequence's length if none does."""
    first = s.total[LENGTH]
    for i in range(f.values[v, READERS], f.values[v, READERS_END]):
        r = f.items[i]
        k = rank(s, r, slot + 1)
        if k < s.runs[r, 0]:
            first = min(first, s.runs[r, k + 1])
    return first


@inner
def _end_at(f: Fixed, s: State, v: int, k: int, slot: int) -> None:
    """Let the value of the k-th run end at a slot; counts reads of what may not be saved."""
    old = s.end[v, k]
    size = f.values[v, FIRST_SIZE if k == 0 else SIZE]
    _add_bytes(s, old + 1, slot, size)
    _add_bytes(s, slot + 1, old, -size)
    if k == 0 and f.values[v, BOUND]:
        split = s.total[SPLIT]
        s.total[FAULTS] += (1 if slot >= split else 0) - (1 if old >= split else 0)
    s.end[v, k] = slot


@inner
def _add_read(f: Fixed, s: State, v: int, slot: int) -> None:
    k = rank(s, f.values[v, PRODUCER], slot) - 1
    if slot > s.end[v, k]:
        _end_at(f, s, v, k, slot)


@inner
def _drop_read(f: Fixed, s: State, v: int, slot: int) -> None:
    k = rank(s, f.values[v, PRODUCER], slot) - 1
    if slot == s.end[v, k]:
        _end_at(f, s, v, k, last_read(f, s, v, s.runs[f.values[v, PRODUCER], k + 1], slot))


@inner
def _step(f: Fixed, s: State, o: int, slot: int, sign: int) -> None:
    """An op runs at a slot (1), or does no longer (-1): the step itself."""
    s.op_at[slot] = o if sign > 0 else -1
    if f.ops[o, STEP]:
        space = f.ops[o, SPACE if slot >= s.total[SPLIT] else FIRST_SPACE]
        _add_bytes(s, slot, slot, sign * (EMPTY + space))


@inner
def _log(s: State, o: int, old: int, new: int) -> None:
    i = s.total[LOGGED]
    s.log[i, 0], s.log[i, 1], s.log[i, 2] = o, old, new
    s.total[LOGGED] += 1


@inner
def add_run(f: Fixed, s: State, o: int, slot: int) -> None:
    """Run an op at an empty slot; what it reads has to be there, and it has to run less than RUNS times."""
    k, count = rank(s, o, slot), s.runs[o, 0]
    for i in range(f.ops[o, WRITES], f.ops[o, BEFORE]):
        v = f.items[i]
        end = slot
        if k > 0 and s.end[v, k - 1] > slot:  # the readers behind the slot now read this run
            end = s.end[v, k - 1]
            _end_at(f, s, v, k - 1, last_read(f, s, v, s.runs[o, k], slot))
        for j in range(count, k, -1):
            s.end[v, j] = s.end[v, j - 1]
        s.end[v, k] = end
        _add_bytes(s, slot, end, f.values[v, FIRST_SIZE if k == 0 else SIZE])
    for j in range(count, k, -1):
        s.runs[o, j + 1] = s.runs[o, j]
    s.runs[o, k + 1] = slot
    s.runs[o, 0] += 1
    for i in range(f.ops[o, READS], f.ops[o, WRITES if slot >= s.total[SPLIT] else EARLY]):
        _add_read(f, s, f.items[i], slot)
    _step(f, s, o, slot, 1)
    s.total[COST] += f.ops[o, TIME] if count > 0 else 0
    s.total[STEPS] += 1
    _log(s, o, NOWHERE, slot)


@inner
def remove_run(f: Fixed, s: State, o: int, slot: int) -> None:
    """The inverse of :func:`add_run`.  A first run may go if no first run that needs it stands before the second."""
    k, count = rank(s, o, slot), s.runs[o, 0]
    _step(f, s, o, slot, -1)
    for i in range(f.ops[o, READS], f.ops[o, WRITES if slot >= s.total[SPLIT] else EARLY]):
        _drop_read(f, s, f.items[i], slot)
    for i in range(f.ops[o, WRITES], f.ops[o, BEFORE]):
        v = f.items[i]
        end = s.end[v, k]
        _add_bytes(s, slot, end, -f.values[v, FIRST_SIZE if k == 0 else SIZE])
        if k > 0 and end > slot:
            _end_at(f, s, v, k - 1, end)
        for j in range(k, count - 1):
            s.end[v, j] = s.end[v, j + 1]
    for j in range(k, count - 1):
        s.runs[o, j + 1] = s.runs[o, j + 2]
    s.runs[o, 0] -= 1
    s.total[COST] -= f.ops[o, TIME] if count > 1 else 0
    s.total[STEPS] -= 1
    _log(s, o, slot, NOWHERE)


@inner
def move_first(f: Fixed, s: State, o: int, slot: int) -> None:
    """Move an op's first run to an empty slot, behind all first runs that it needs and before those that need it."""
    old = s.runs[o, 1]
    _step(f, s, o, old, -1)
    for i in range(f.ops[o, WRITES], f.ops[o, BEFORE]):
        v = f.items[i]
        if s.end[v, 0] == old:
            _add_bytes(s, old, old, -f.values[v, SIZE])
            _add_bytes(s, slot, slot, f.values[v, SIZE])
            s.end[v, 0] = slot
        elif slot < old:
            _add_bytes(s, slot, old - 1, f.values[v, SIZE])
        else:
            _add_bytes(s, old, slot - 1, -f.values[v, SIZE])
    for i in range(f.ops[o, READS], f.ops[o, WRITES]):
        v = f.items[i]
        if slot < old:
            _drop_read(f, s, v, old)
            _add_read(f, s, v, slot)
        else:
            _add_read(f, s, v, slot)
            _drop_read(f, s, v, old)
    s.runs[o, 1] = slot
    _step(f, s, o, slot, 1)
    _log(s, o, old, slot)


@inner
def undo(f: Fixed, s: State) -> None:
    """Take back what stands in the log, and empty it."""
    n = s.total[LOGGED]
    for i in range(n - 1, -1, -1):
        o, old, new = s.log[i, 0], s.log[i, 1], s.log[i, 2]
        if old == NOWHERE:
            remove_run(f, s, o, new)
        elif new == NOWHERE:
            add_run(f, s, o, old)
        else:
            move_first(f, s, o, old)
        s.total[LOGGED] = n
    s.total[LOGGED] = 0


@compiled
def load_sequence(f: Fixed, s: State, base: Ints, forward: Ints, backward: Ints, budget: int) -> None:
    """Set up a sequence: the forward in slots 0, 1, ..., the backward in every other slot behind it.

    ``base``: bytes that are there anyway, for each slot of the forward, and for the backward.
    """
    split = forward.size
    s.total[:] = 0
    s.total[SPLIT] = split
    s.total[LENGTH] = split + 2 * backward.size
    s.op_at[:] = -1
    s.runs[:] = 0
    s.end[:] = 0
    for i in range(s.load.size):
        s.load[i] = base[min(i, split)] - budget - EMPTY
    for i in range(split):
        add_run(f, s, forward[i], i)
        s.total[LOGGED] = 0
    for i in range(backward.size):
        add_run(f, s, backward[i], split + 1 + 2 * i)
        s.total[LOGGED] = 0


@compiled
def read_sequence(s: State, out: Ints) -> int:
    """Write the ops behind the forward to ``out``, in order; how many there are."""
    n = 0
    for slot in range(s.total[SPLIT], s.total[LENGTH]):
        if s.op_at[slot] >= 0:
            out[n] = s.op_at[slot]
            n += 1
    return n


# ------------------------------------------------------------------------------------------- drawing


@inner
def _below(q: Search, n: int) -> int:
    """A random number from 0 to n - 1, by the generator xorshift64* (Vigna 2016)."""
    x = q.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    q.random[0] = x
    upper = (x * np.uint64(2685821657736338717)) >> np.uint64(32)
    return np.int64((upper * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@inner
def _over(s: State, q: Search) -> int:
    """A slot over the budget, the first from a random slot on; there has to be one."""
    slot = _below(q, s.total[LENGTH])
    while s.load[slot] <= 0:
        slot = slot + 1 if slot + 1 < s.total[LENGTH] else 0
    return slot


@inner
def _alive(f: Fixed, s: State, q: Search, slot: int) -> int:
    """A value that is alive at a slot and is neither made nor read there; -1 if none is drawn."""
    r = s.op_at[slot]
    for _ in range(TRIES):
        v = _below(q, f.values.shape[0])
        if f.values[v, SIZE] > 0 and f.values[v, PRODUCER] != r:
            k = rank(s, f.values[v, PRODUCER], slot) - 1
            if k >= 0 and s.end[v, k] > slot:
                reads = False
                for i in range(f.ops[r, READS], f.ops[r, WRITES]):
                    reads |= f.items[i] == v
                if not reads:
                    return v
    return -1


@inner
def _extra(s: State, q: Search) -> int:
    """A slot behind the forward at which an op runs that also runs elsewhere; -1 if none is drawn."""
    for _ in range(2 * TRIES):
        slot = s.total[SPLIT] + _below(q, s.total[LENGTH] - 1 - s.total[SPLIT])
        o = s.op_at[slot]
        if o >= 0 and s.runs[o, 0] > 1:
            return slot
    return -1


@inner
def _empty_near(s: State, slot: int, low: int, high: int) -> int:
    """The empty slot nearest to ``slot`` between ``low`` and ``high`` (both left out); -1 if none is near."""
    slot = min(max(slot, low + 1), high - 1)
    for d in range(NEAR):
        if low < slot - d and s.op_at[slot - d] < 0:
            return slot - d
        if slot + d < high and s.op_at[slot + d] < 0:
            return slot + d
    return -1


# --------------------------------------------------------------------------------------------- order


@inner
def _shift(f: Fixed, s: State, q: Search, o: int) -> bool:
    """Move a first run within its window: to any place, to an end, or some slots away."""
    low, high = s.total[SPLIT] - 1, s.total[LENGTH] - 1
    for i in range(f.ops[o, BEFORE], f.ops[o, BEHIND]):
        low = max(low, s.runs[f.items[i], 1])
    for i in range(f.ops[o, BEHIND], f.ops[o, END]):
        if s.runs[f.items[i], 0] > 0:
            high = min(high, s.runs[f.items[i], 1])
    if s.runs[o, 0] > 1:
        high = min(high, s.runs[o, 2])
    if high - low <= 2:
        return False
    kind = _below(q, 4)
    if kind == 0:
        target = low + 1 + _below(q, high - low - 1)
    elif kind == 1:
        target = low if _below(q, 2) == 0 else high
    else:
        reach = 4 << _below(q, 5)
        target = s.runs[o, 1] - reach + _below(q, 2 * reach + 1)
    slot = _empty_near(s, target, low, high)
    if slot >= 0:
        move_first(f, s, o, slot)
    return slot >= 0


@inner
def _closure(f: Fixed, s: State, q: Search, o: int, slot: int, earlier: bool) -> int:
    """Collect an op, and all whose first run it needs behind a slot (or that need its own ahead of it), by slot.

    Returns their number; 0 if there are too many, or one that has to stay where it is.
    """
    q.marks[-1] += 1
    mark = q.marks[-1]
    q.group[0, 0] = o
    q.marks[o] = mark
    n, i = 1, 0
    first, last = (BEFORE, BEHIND) if earlier else (BEHIND, END)
    while i < n:
        p = q.group[i, 0]
        if not f.ops[p, LOOSE]:
            return 0
        for j in range(f.ops[p, first], f.ops[p, last]):
            r = f.items[j]
            if q.marks[r] != mark and s.runs[r, 0] > 0 and ((s.runs[r, 1] > slot) == earlier):
                if n == MOST:
                    return 0
                q.marks[r] = mark
                q.group[n, 0] = r
                n += 1
        i += 1
    for i in range(1, n):  # insertion sort
        p = q.group[i, 0]
        j = i
        while j > 0 and s.runs[q.group[j - 1, 0], 1] > s.runs[p, 1]:
            q.group[j, 0] = q.group[j - 1, 0]
            j -= 1
        q.group[j, 0] = p
    return n


@inner
def _pull(f: Fixed, s: State, q: Search, o: int, slot: int) -> bool:
    """Move an op to the first empty slots behind ``slot``, with all that it needs there."""
    n = _closure(f, s, q, o, slot, slot < s.runs[o, 1])
    for i in range(n):
        p = q.group[i, 0]
        slot += 1
        while slot < s.runs[p, 1] and s.op_at[slot] >= 0:
            slot += 1
        if slot < s.runs[p, 1]:
            move_first(f, s, p, slot)
        else:
            slot = s.runs[p, 1]
    return n > 0


@inner
def _push(f: Fixed, s: State, q: Search, o: int, slot: int) -> bool:
    """Move an op to the last empty slots ahead of ``slot``, with all that needs it there."""
    n = _closure(f, s, q, o, slot, slot < s.runs[o, 1])
    for i in range(n):
        p = q.group[i, 0]
        if s.runs[p, 0] > 1 and s.runs[p, 2] <= slot:
            return False
    for i in range(n - 1, -1, -1):
        p = q.group[i, 0]
        slot -= 1
        while slot > s.runs[p, 1] and s.op_at[slot] >= 0:
            slot -= 1
        if slot > s.runs[p, 1]:
            move_first(f, s, p, slot)
        else:
            slot = s.runs[p, 1]
    return n > 0


# ------------------------------------------------------------------------------------------- repeats


@inner
def _repeat(f: Fixed, s: State, q: Search, o: int, low: int, high: int) -> bool:
    """Run an op again between two slots, as late as there is room, with some of what it reads."""
    low = max(low, s.total[SPLIT] - 1)
    q.group[0, 0], q.group[0, 1] = o, high
    n, done = 1, 0
    while n > 0:
        n -= 1
        p, high = q.group[n, 0], q.group[n, 1]
        if not f.ops[p, AGAIN] or s.runs[p, 0] == 0 or s.runs[p, 0] >= RUNS or done == MOST:
            return False
        slot = _empty_near(s, high - 1, max(low, s.runs[p, 1]), high)
        if slot < 0:
            return False
        for i in range(f.ops[p, READS], f.ops[p, WRITES]):
            u = f.items[i]
            producer = f.values[u, PRODUCER]
            k = rank(s, producer, slot) - 1
            if s.end[u, k] < slot and f.ops[producer, AGAIN] and n < MOST:  # not there any more
                needed = (f.values[u, BOUND] and k == 0) or _below(q, 2) == 0
                for j in range(n):
                    needed &= q.group[j, 0] != producer
                if needed:
                    q.group[n, 0], q.group[n, 1] = producer, slot
                    n += 1
        add_run(f, s, p, slot)
        done += 1
    return True


@inner
def _leave_out(f: Fixed, s: State, q: Search, slot: int) -> bool:
    """Remove a run of an op that runs elsewhere too, and then the extra runs whose values nobody reads any more."""
    o = s.op_at[slot]
    if s.runs[o, 1] == slot:
        for i in range(f.ops[o, BEHIND], f.ops[o, END]):
            p = f.items[i]
            if s.runs[p, 0] > 0 and s.runs[p, 1] < s.runs[o, 2]:
                return False
    q.group[0, 0], q.group[0, 1] = o, slot
    n, done = 1, 0
    while n > 0 and done < MOST:
        n -= 1
        p, at = q.group[n, 0], q.group[n, 1]
        remove_run(f, s, p, at)
        done += 1
        for i in range(f.ops[p, READS], f.ops[p, WRITES]):
            producer = f.values[f.items[i], PRODUCER]
            k = rank(s, producer, at) - 1
            unread = k > 0 and n < MOST
            for j in range(f.ops[producer, WRITES], f.ops[producer, BEFORE]):
                unread &= s.end[f.items[j], k] == s.runs[producer, k + 1]
            for j in range(n):
                unread &= q.group[j, 0] != producer
            if unread:
                q.group[n, 0], q.group[n, 1] = producer, s.runs[producer, k + 1]
                n += 1
    return True


@inner
def _carry(f: Fixed, s: State, q: Search, slot: int) -> bool:
    """Move an extra run some slots away, between those before and behind it."""
    o = s.op_at[slot]
    k = rank(s, o, slot)
    if k == 0:
        return False
    low = max(s.runs[o, k], s.total[SPLIT] - 1)
    high = s.runs[o, k + 2] if k + 1 < s.runs[o, 0] else s.total[LENGTH] - 1
    to = _empty_near(s, slot - 16 + _below(q, 33), low, high)
    if to >= 0:
        remove_run(f, s, o, slot)
        add_run(f, s, o, to)
    return to >= 0


# ------------------------------------------------------------------------------------------ the loop


@inner
def _relieve(f: Fixed, s: State, q: Search) -> bool:
    """Make a move at a slot that is over the budget."""
    slot = _over(s, q)
    v = _alive(f, s, q, slot)
    if v < 0:
        return False
    o = f.values[v, PRODUCER]
    k = rank(s, o, slot) - 1
    choice = _below(q, 4)
    if choice == 0:  # made later
        return k == 0 and _push(f, s, q, o, min(s.total[LENGTH] - 1, slot + 1 + _below(q, 8)))
    if choice == 1:  # read for the last time earlier
        r = s.op_at[s.end[v, k]]
        return s.runs[r, 1] == s.end[v, k] and _pull(f, s, q, r, max(s.total[SPLIT] - 1, slot - 1 - _below(q, 8)))
    return _repeat(f, s, q, o, slot, next_read(f, s, v, slot))


@inner
def _propose(f: Fixed, s: State, q: Search) -> bool:
    """Make a random move; False if it cannot be made, and whatever it did is to be taken back."""
    kind = _below(q, 16)
    if kind < 8 and s.total[EXCESS] > 0:
        return _relieve(f, s, q)
    if kind >= 12:
        slot = _extra(s, q)
        if slot >= 0:
            return _carry(f, s, q, slot) if kind == 15 else _leave_out(f, s, q, slot)
    slot = s.total[SPLIT] + _below(q, s.total[LENGTH] - 1 - s.total[SPLIT])
    o = s.op_at[slot]
    if o < 0:
        return False
    if kind == 8:
        reads = f.ops[o, WRITES] - f.ops[o, READS]
        if reads == 0:
            return False
        p = f.values[f.items[f.ops[o, READS] + _below(q, reads)], PRODUCER]
        return _repeat(f, s, q, p, s.runs[p, rank(s, p, slot)], slot)
    if s.runs[o, 1] != slot:
        return False
    if kind < 8 or kind >= 12:
        return f.ops[o, LOOSE] and _shift(f, s, q, o)
    reach = 4 << _below(q, 5)
    if _below(q, 2) == 0:
        return _pull(f, s, q, o, max(s.total[SPLIT] - 1, slot - 1 - _below(q, reach)))
    return _push(f, s, q, o, min(s.total[LENGTH] - 1, slot + 1 + _below(q, reach)))


@compiled
def keep(s: State, q: Search) -> None:
    """Keep the sequence if it is the best so far."""
    excess, cost = s.total[EXCESS], s.total[COST]
    if excess < q.found[BEST_EXCESS] or (excess == q.found[BEST_EXCESS] and cost < q.found[BEST_COST]):
        q.found[BEST_EXCESS], q.found[BEST_COST] = excess, cost
        q.found[BEST_STEPS] = read_sequence(s, q.best)


@compiled
def anneal_moves(f: Fixed, s: State, q: Search, first: int, last: int, moves: int) -> None:
    """Moves ``first`` to ``last`` of an annealing of ``moves`` moves; stops early at a sequence without cost that fits."""
    knobs, total = q.knobs, s.total
    heat, fits = 0.0, 0
    most = total[SPLIT] + (s.op_at.size - total[SPLIT]) // 2
    for i in range(first, last):
        if i % ROUND == 0:
            heat = knobs[HOT] * (knobs[COLD] / knobs[HOT]) ** (i / moves)
            price = knobs[PRICE] / knobs[STEP_UP] if fits > 0 else knobs[PRICE] * knobs[STEP_UP]
            knobs[PRICE] = min(knobs[HIGHEST], max(knobs[LOWEST], price))
            fits = 0
        excess, cost = total[EXCESS], total[COST]
        total[LOGGED] = 0
        made = _propose(f, s, q)
        if total[LOGGED] > 0:
            change = (total[COST] - cost) + knobs[PRICE] * (total[EXCESS] - excess)
            good = change <= 0 or change < heat * q.logarithm[_below(q, q.logarithm.size)]
            if made and good and total[FAULTS] == 0 and total[STEPS] <= most:
                keep(s, q)
                if total[EXCESS] == 0 and total[COST] == 0:
                    return
            else:
                undo(f, s)
        fits += total[EXCESS] == 0
