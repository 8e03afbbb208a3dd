"""Reductions of few elements, as of a window: results stay in registers meanwhile.

Lanes are separate results. Those of several rows are reduced side by side where they are read as
neighbours: each addition waits for the one before it, and a weight is read once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mcfuser.chain import WHOLE, Operator
from mcfuser.codegen.tensorir.integer import plus, times, vectors
from mcfuser.codegen.tensorir.scalar import literal
from mcfuser.codegen.tensorir.writer import Writer
from mcfuser.expr import Expr, read, reads
from mcfuser.space.statement import Compute

WINDOW = 64
"""The largest number of elements that are reduced one after the other into a register."""
ROWS = 8
"""The most rows whose results are in registers at once: half of those that AVX2 has."""


def windowed(w: Writer, s: Compute) -> bool:
    """Whether so few elements are reduced, as in a window, that they are best read at once; and
    too few along an axis that is contiguous in memory to fill a vector."""
    o = s.operator
    counts = {a: w.count(a) for a in o.over}
    if not o.axes or w.held(s.buffer) != "float32" or not all(map(str.isdigit, counts.values())):
        return False
    row = int(counts.get(across(w, s), 0))
    return math.prod(map(int, counts.values())) <= WINDOW and row < w.lowering.lanes


def across(w: Writer, s: Compute) -> str:
    """The reduced axis that is contiguous in memory, so that lanes may hold partial results along
    it; empty where there is none, and for whole numbers, whose results lanes hold."""
    last, whole = _contiguous(w, s.body), w.schedule.chain.tensor(s.operator.out).dtype in WHOLE
    return last if last in s.operator.over and not whole else ""


def _contiguous(w: Writer, body: Expr) -> str:
    """The axis along which most of the elements that are read are contiguous in memory."""
    votes: dict[str, int] = {"": 0}
    for r in reads(body):
        tensor = w.schedule.buffer(r.tensor).tensor
        loaded = tensor in w.schedule.chain.inputs
        own = (*("0" for _ in r.indices[1:]), "1")
        strides = w.strides(tensor, r.tensor) if loaded else own
        for index, stride in zip(r.indices, strides, strict=False):
            if stride == "1" and index.plain is not None:
                votes[index.plain] = votes.get(index.plain, 0) + len(r.indices)
    return max(votes, key=lambda a: votes[a])


def reduce_windows(w: Writer, s: Compute, body: Expr, identity: float) -> None:
    """Reduces the windows of a tile into what was accumulated before; into nothing where the tile
    is not initialised (`Writer.zeroed`)."""
    o, last = s.operator, s.operator.axes[-1]
    stepped = _stepped(w, body, last)
    row, rows = ("", 1) if stepped else _rows(w, o)
    counts = {a: w.count(a) for a in o.axes[:-1]}
    if row:
        counts[row] = str(int(counts[row]) // rows)
    with w.nest([(f"{a}_i", n) for a, n in counts.items()]) as names:
        outer = dict(zip(counts, names, strict=True))
        if row:
            outer[row] = plus(times(outer[row], rows), "r")
        again = s.buffer in w.zeroed
        for first, trips, width in vectors(w.count(last), w.lowering.lanes, again):
            with w.nest([(f"{last}_v", trips)]) as (v,):
                start = plus(first, times(v, width))
                at = {**outer, last: plus(start, "l") if width > 1 else start}
                place = w.element(read(s.buffer, *o.axes), at)
                window = f"window_{next(w.fresh)}"
                w.put(f'{window} = T.alloc_buffer(({rows}, {width}), "float32")')
                held = f"{window}[{'r' if row else '0'}, {'l' if width > 1 else '0'}]"
                with _each(w, rows, width):
                    w.put(f"{held} = {literal(identity) if again else place}")
                with w.over(o.over) as inside:
                    here = {**at, **inside}
                    with _each_row(w, rows):
                        known = w.invariant(body, last, here)
                        with _lanes(w, width, stepped):
                            value = w.scalar(here, known).text(body)
                            w.put(f"{held} = {reduced(o.reduce, held, value)}")
                with _each(w, rows, width):
                    w.put(f"{place} = {held}")


def reduced(reduce: str, a: str, b: str) -> str:
    return f"{a} + {b}" if reduce == "sum" else f"T.max({a}, {b})"


def _rows(w: Writer, o: Operator) -> tuple[str, int]:
    """The axis and the number of results side by side; none where no axis is known to have as
    many."""
    counts = {a: n for a in o.axes[:-1] if (n := w.count(a)) != "1"}
    row = next(reversed(counts), "")
    known = int(counts[row]) if row and counts[row].isdigit() else 1
    rows = max(n for n in range(1, ROWS + 1) if known % n == 0)
    return (row, rows) if rows > 1 else ("", 1)


@contextmanager
def _each(w: Writer, rows: int, width: int) -> Iterator[None]:
    with _each_row(w, rows), _lanes(w, width):
        yield


def _each_row(w: Writer, rows: int) -> AbstractContextManager[None]:
    return w.block(f"for r in T.unroll({rows}):") if rows > 1 else nullcontext()


def _lanes(w: Writer, width: int, stepped: bool = False) -> AbstractContextManager[None]:
    return w.vector("l", width, stepped) if width > 1 else nullcontext()


def _stepped(w: Writer, body: Expr, last: str) -> bool:
    """Whether neighbours along an axis are apart in the memory of an input that is read."""
    for r in reads(body):
        tensor = w.schedule.buffer(r.tensor).tensor
        if tensor in w.schedule.chain.inputs:
            for index, stride in zip(r.indices, w.strides(tensor, r.tensor), strict=True):
                for a, c in index.terms:
                    beside = isinstance(stride, str) and times(str(c), stride) == "1"
                    if a == last and not beside:
                        return True
    return False
