"""Loops of a schedule as lines of Triton: blocks of statements, ranges, iterations written out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from mcfuser.codegen.triton.called import NEXT
from mcfuser.codegen.triton.frame import TAB, Frame, MatrixSum, assign, call
from mcfuser.codegen.triton.position import ONE, Position
from mcfuser.codegen.triton.statement import write
from mcfuser.codegen.triton.tile import TileValue, aligned, shape_text
from mcfuser.expr import Affine
from mcfuser.lowering.uses import touched
from mcfuser.space.statement import (
    Compute,
    Illegal,
    Init,
    Loop,
    SimpleStatement,
    Statement,
    statements,
)

MOST_WRITTEN_OUT = 64
"""The most iterations that are written out: more tiles than that fit in no register file."""


def block(frame: Frame, body: Sequence[Statement], handover: Statement | None = None) -> list[str]:
    """The lines of a sequence of statements; the next kernel may start before `handover`, where
    that is one of them. Raises Illegal where Triton cannot express one."""
    lines: list[str] = []
    for i, s in enumerate(body):
        if s is handover:
            lines.append(NEXT)
        if isinstance(s, Loop):
            lines += _loop(frame, s)
        elif isinstance(s, Init) and _overwritten(frame, s.buffer, body[i + 1 :]):
            frame.fresh.add(s.buffer)
        else:
            lines += _iterations(frame, _unset_axes(frame, s), partial(write, frame, s))
    return lines


def _overwritten(frame: Frame, name: str, rest: Sequence[Statement]) -> bool:
    """The buffer is next written by one whole reduction, so its initial value is not needed."""
    for s in rest:
        inside = [t for t, _ in statements(s.body)] if isinstance(s, Loop) else [s]
        if any(name in touched(t) for t in inside):
            return (
                isinstance(s, Compute)
                and touched(s).count(name) == 1
                and all(a in frame.at for a in s.operator.over)
            )
    return False


def _unset_axes(frame: Frame, s: SimpleStatement) -> tuple[str, ...]:
    """Axes of which a statement covers every tile, with no loop of their own around it."""
    axes = [a for name in touched(s) for a in frame.layout.kept(name)]
    if isinstance(s, Compute):
        axes += s.operator.related
    return tuple(dict.fromkeys(a for a in axes if a not in frame.at))


def _loop(frame: Frame, s: Loop) -> list[str]:
    if s.axis in frame.at:  # one iteration
        return block(frame, s.body)
    if frame.layout.written_out(s):
        if frame.split is not None and s.axis == frame.split.axis:
            raise Illegal(f"the loop over '{s.axis}' has parts, yet must be written out")
        return _iterations(frame, (s.axis,), partial(_guarded, frame, s), comment=True)
    summed = _summed(frame, s)
    frame.summed |= {name: {} for name in summed}
    lines = repeated(frame, s, loop_range(frame, s), lambda: _iteration(frame, s))
    before, after = list[str](), list[str]()
    for buffer in summed:
        for tile, made in frame.summed.pop(buffer).items():
            kept = frame.layout.space(buffer)
            before += assign(frame.depth, made.matrix, _as_matrix(frame, tile, kept, made))
            after += assign(frame.depth, tile, _as_tile(frame, kept, made))
    return [*before, *lines, *after]


def _iteration(frame: Frame, s: Loop) -> list[str]:
    return frame.define(s.axis, block(frame, s.body))


def repeated(
    frame: Frame, s: Loop, ends: Sequence[str], make: Callable[[], list[str]]
) -> list[str]:
    """The lines of a loop over a range (first position, end and step, as text), whose iterations
    `make` writes; the last one stands behind the loop where it alone reaches past the extent."""
    first, last, *step = ends
    end = _whole_end(frame, s, first)
    if end is None:
        return _ranged(frame, s, [first, last, *step], make)
    frame.whole.add(s.axis)
    lines = _ranged(frame, s, [first, end, *step], make)
    frame.whole.discard(s.axis)
    frame.at[s.axis] = frame.schedule.trips(s.axis) - 1
    lines += make()
    del frame.at[s.axis]
    return lines


def _ranged(frame: Frame, s: Loop, ends: Sequence[str], make: Callable[[], list[str]]) -> list[str]:
    frame.at[s.axis] = None
    head = call(frame.depth, f"for {frame.start(s.axis)} in range", ends, ":")
    frame.depth += 1
    lines = make()
    frame.depth -= 1
    del frame.at[s.axis]
    return [*head, *lines]


def _whole_end(frame: Frame, s: Loop, first: str) -> str | None:
    """The end of the iterations whose tiles lie inside the extent, where the last one is written
    apart; None where all are written as one.

    The scores of a softmax are filled past the end of the axis. In one loop that costs every
    iteration a selection for each of its numbers, and a mask for what it loads.

    An iteration with loops inside stays in its loop: where it loads several tiles in a row, ptxas
    12.8 takes the registers of one tile's address for another's, and the kernel is wrong or reads
    where nothing is (H200, 2026-11-30).
    """
    a, schedule = s.axis, frame.schedule
    fills = [t.fill for t in s.body if isinstance(t, Compute) and t.fill is not None]
    if not any(a in fill.axes for fill in fills) or any(isinstance(t, Loop) for t in s.body):
        return None
    if s.lo or s.hi or frame.run_time(a) or not first.isdigit():
        return None
    if frame.split is not None and frame.split.axis == a:
        return None
    if not schedule.ragged(a) or frame.layout.width(a) > schedule.tile(a):
        return None
    end = schedule.chain.size(a) // schedule.tile(a) * schedule.tile(a)
    return str(end) if end > int(first) else None


def _summed(frame: Frame, s: Loop) -> list[str]:
    """The buffers to which a loop, and none around it, does nothing but add matrix products.

    Triton adds a matrix to another one where the tensor cores keep it. A sum of tiles that have
    several axes along a dimension of the matrix takes it from there in each iteration: a tile of
    2 x 32 rows by 128 columns took twice as long as one of 64 (H200, 2026-11-30).
    """
    if frame.groups is not None:
        return []
    inside = [t for t, _ in statements(s.body)]
    counts = Counter(name for t in inside for name in touched(t))
    return [
        t.buffer
        for t in inside
        if isinstance(t, Compute)
        and t.operator.out in frame.layout.dots
        and counts[t.buffer] == 1
        and t.buffer not in frame.summed
    ]


def _as_matrix(frame: Frame, tile: str, kept: tuple[str, ...], made: MatrixSum) -> str:
    """The text of a tile as the matrix that a loop adds to."""
    turned = aligned(frame.dialect, TileValue(tile, kept, "float32"), made.axes)
    return f"{frame.dialect.moving('reshape')}({turned.text}, {shape_text(made.extents)})"


def _as_tile(frame: Frame, kept: tuple[str, ...], made: MatrixSum) -> str:
    """The text of the tile that a matrix holds."""
    shape = shape_text([frame.layout.width(a) for a in made.axes])
    words = f"{frame.dialect.moving('reshape')}({made.matrix}, {shape})"
    return aligned(frame.dialect, TileValue(words, made.axes, "float32"), kept).text


def _iterations(
    frame: Frame, names: Sequence[str], make: Callable[[], list[str]], comment: bool = False
) -> list[str]:
    """Every iteration of some axes, written out one after the other."""
    counts = [frame.schedule.trips(a) for a in names]
    if math.prod(counts) > MOST_WRITTEN_OUT:
        raise Illegal(f"{math.prod(counts)} tiles along {', '.join(names)} fit no register file")
    for a in names:
        if frame.layout.scalar(a) and frame.run_time(a):
            raise Illegal(f"single positions of '{a}', known at run time only, are written out")
    written: list[str] = []
    for iteration in product(*(range(n) for n in counts)):
        frame.at |= dict(zip(names, iteration, strict=True))
        lines = make()
        for a in reversed(names):
            lines = frame.define(a, lines)
        if comment and lines:
            written.append(
                f"{TAB * frame.depth}# {names[0]}: iteration {iteration[0] + 1} of {counts[0]}"
            )
        written += lines
    for a in names:
        del frame.at[a]
    return written


# --- bounds


def loop_range(frame: Frame, s: Loop) -> list[str]:
    """The arguments of a loop's `range`: first position, end and step (`Schedule.iterations`)."""
    tile, split = frame.schedule.tile(s.axis), frame.split
    edges = [edge(frame, index, greatest=False) for index in s.lo]
    low = [] if any(e.natural for e in edges) else ["0"]
    high = [frame.size(s.axis)]
    if split is not None and s.axis == split.axis:
        low, high = [split.first], [split.end] if split.even else [split.end, *high]
    first = _extreme(frame, "maximum", [*low, *map(str, edges)])
    ends = (edge(frame, index, greatest=True).plus(ONE) for index in s.hi)
    last = _extreme(frame, "minimum", [*high, *map(str, ends)])
    if tile == 1:
        return [first, last]
    if s.lo and first.isdigit():
        first = str(int(first) // tile * tile)
    elif s.lo:  # an iteration starts at a multiple of the tile
        atom = first.isidentifier() or first.startswith(frame.dialect.word(""))
        first = f"{first if atom else f'({first})'} // {tile} * {tile}"
    return [first, last, str(tile)]


def _guarded(frame: Frame, s: Loop) -> list[str]:
    """An iteration that is written out, taken only where the loop's bounds admit it."""
    first, last = frame.first(s.axis), frame.last(s.axis)
    tests = []
    for index in s.lo:
        low = edge(frame, index, greatest=False)
        tests += [] if last.plus(low, -1).natural else [f"{low} <= {last}"]
    for index in s.hi:
        high = edge(frame, index, greatest=True)
        tests += [] if high.plus(first, -1).natural else [f"{first} <= {high}"]
    if not tests:
        return block(frame, s.body)
    frame.depth += 1
    lines = block(frame, s.body)
    frame.depth -= 1
    return [f"{TAB * frame.depth}if {' and '.join(tests)}:", *lines]


def edge(frame: Frame, index: Affine, greatest: bool) -> Position:
    """The greatest or the least value of an index over the current tiles of its axes."""
    position = Position(number=index.offset)
    for a, c in index.terms:
        position = position.plus(frame.last(a) if (c > 0) == greatest else frame.first(a), c)
    return position


def _extreme(frame: Frame, kind: str, ends: Sequence[str]) -> str:
    """The largest or the smallest of some positions; numbers are compared here."""
    numbers = [int(e) for e in ends if e.lstrip("-").isdigit()]
    candidates = [e for e in dict.fromkeys(ends) if not e.lstrip("-").isdigit()]
    if numbers:
        candidates.append(str(max(numbers) if kind == "maximum" else min(numbers)))
    words = candidates.pop()
    while candidates:
        words = f"{frame.dialect.word(kind)}({candidates.pop()}, {words})"
    return words
