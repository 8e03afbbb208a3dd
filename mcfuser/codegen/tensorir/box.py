"""Fills the box of a tile that is loaded from an input with padding (lowering.tensorir.box)."""

from __future__ import annotations

from functools import reduce

import numpy as np

from mcfuser.chain import Bounds, Tensor, last_along
from mcfuser.codegen.tensorir.integer import (
    divided,
    every,
    larger,
    minus,
    plus,
    rest,
    smaller,
    times,
)
from mcfuser.codegen.tensorir.scalar import held_as
from mcfuser.codegen.tensorir.writer import Writer
from mcfuser.expr import DISCRETE
from mcfuser.lowering.tensorir.box import BoxDimension, MovingDigit, PaddedBox
from mcfuser.space.statement import Load


def fill_box(w: Writer, s: Load) -> None:
    """Copies what the tile at hand reads of the array, and writes what is around that."""
    box, tensor = w.boxes[s.buffer], w.schedule.chain.tensor(s.read.tensor)
    firsts = [_first(w, d) for d in box.dimensions]
    starts = [times(first, box.pitches[i]) for i, first in enumerate(firsts)]
    w.put(f"{box.name}_start: T.let[T.int32] = T.int32(0) + {reduce(plus, starts, '0')}")
    outer = range(len(box.dimensions) - 1)
    counts = [_count(w, box.dimensions[i], firsts[i]) for i in outer]
    with w.nest([(f"{box.name}_{i}", n) for i, n in zip(outer, counts, strict=True)]) as at:
        place, address, conditions = "0", str(tensor.offset), []
        for i, position in zip(outer, at, strict=True):
            d, here = box.dimensions[i], plus(firsts[i], position)
            if d.padding is not None:
                conditions += _inside(tensor, d.padding, here, _overhangs(w, d))
                here = minus(here, str(tensor.padding[d.padding].before))
            place = plus(place, times(position, box.pitches[i]))
            address = plus(address, times(here, d.stride))
        if not conditions:
            _copy(w, box, firsts[-1], place, address)
            return
        with w.block(f"if {every(conditions)}:"):
            _copy(w, box, firsts[-1], place, address)
        with w.block("else:"):
            _padding_around(w, box, place, _count(w, box.dimensions[-1], firsts[-1]))


def _first(w: Writer, d: BoxDimension) -> str:
    """The first position of a tile along a dimension, counted from where its padding begins."""
    return reduce(plus, (times(_value(w, m), step) for m, step in d.moving), "0")


def _value(w: Writer, m: MovingDigit) -> str:
    """The value of a digit at the first position of a tile; 0 where the tile has all of them."""
    if int(m.count) >= m.digit.extent:
        return "0"
    first = str(m.index.offset)
    for a, c in m.index.terms:
        least = w.start(a) if c > 0 else minus(plus(w.start(a), w.count(a)), "1")
        first = plus(first, times(least, c))
    value = divided(first, m.unit)
    return value if m.outer else rest(value, m.digit.extent)


def _count(w: Writer, d: BoxDimension, first: str) -> str:
    """The positions along a dimension of the box that the array has, where it has no padding."""
    if d.padding is not None:
        return str(d.span)
    ((m, _),) = d.moving
    return smaller(str(d.span), minus(_end(w, m), first))


def _end(w: Writer, m: MovingDigit) -> str:
    """How many values of a digit there are. What an axis with a run-time extent moves along has as
    many as are read: no dimension with such an extent has several digits."""
    if not any(isinstance(w.schedule.chain.extent(a), Bounds) for a in m.index.axes):
        return str(m.digit.extent)
    end = str(m.index.offset + 1)
    for a, c in m.index.terms:
        end = plus(end, times(minus(w.size(a), "1"), c)) if c > 0 else end
    return end


def _overhangs(w: Writer, d: BoxDimension) -> bool:
    """Whether the box of some tile has positions along a dimension that no element of the tensor
    has: tiles reach past the end of their axis, or past that of a digit."""
    some = [m for m, _ in d.moving if int(m.count) < m.digit.extent]
    split = any(m.unit > 1 or not m.outer for m in some)
    return split or any(w.schedule.ragged(a) for m in some for a in m.index.axes)


def _inside(tensor: Tensor, padding: int, position: str, overhangs: bool) -> list[str]:
    """The conditions on which a position along one of a tensor's paddings, counted from where that
    begins, is inside the array."""
    p = tensor.padding[padding]
    conditions = [f"{position} >= {p.before}"] if p.before else []
    if overhangs or last_along(tensor, padding) >= p.extent:
        conditions.append(f"{position} < {p.before + p.extent}")
    return conditions


def _copy(w: Writer, box: PaddedBox, first: str, place: str, address: str) -> None:
    """A row of the box, along its last dimension, from the array's row at an address."""
    d = box.dimensions[-1]
    begin, end, before = "0", _count(w, d, first), 0
    if d.padding is not None:
        p = w.schedule.chain.tensor(box.tensor).padding[d.padding]
        span, before = end, p.before
        begin = smaller(larger("0", minus(str(before), first)), span)
        end = larger(smaller(span, minus(str(before + p.extent), first)), begin)
        _padding_around(w, box, place, begin)
        _padding_around(w, box, plus(place, end), minus(span, end))
    origin = plus(address, times(minus(first, str(before)), d.stride))

    def write(position: str, _: str) -> None:
        x = plus(begin, position)
        value = f"{box.tensor}_flat[{plus(origin, times(x, d.stride))}]"
        dtype = w.schedule.chain.tensor(box.tensor).dtype
        held = held_as(dtype)
        value = value if held == dtype else f'T.reinterpret("{held}", {value})'
        w.put(f"{box.name}_box[{plus(place, x)}] = {value}")

    if d.stride == 1:
        w.vectors(f"{box.name}_x", minus(end, begin), write, again=True)
    else:
        with w.nest([(f"{box.name}_x", minus(end, begin))]) as (x,):
            write(x, "0")


def _padding_around(w: Writer, box: PaddedBox, place: str, count: str) -> None:
    tensor = w.schedule.chain.tensor(box.tensor)
    value = tensor.padding[0].value
    number = f"T.{tensor.dtype}({int(value) if tensor.dtype in DISCRETE else value})"
    if (held := held_as(tensor.dtype)) != tensor.dtype:
        wide = int(np.float32(value).view(np.uint32))
        number = f"T.{held}({wide + 0x7FFF + (wide >> 16 & 1) >> 16})"  # to the nearest, even one

    def write(position: str, _: str) -> None:
        w.put(f"{box.name}_box[{plus(place, position)}] = {number}")

    w.vectors(f"{box.name}_x", count, write, again=True)
