"""From a block's number to its place in the grid: its turn along every axis, and its part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from mcfuser.codegen.triton.frame import TAB, Frame, Part, mentions
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import loops


def identify(frame: Frame, lines: Sequence[str]) -> list[str]:
    """From the block's number to its turn of every grid loop, the innermost one fastest; and to
    its part. Blocks with more turns start first: those that start last should end soon."""
    found: list[str] = []
    divisor: list[str] = []
    grid = [a for a, n in frame.schedule.grid if n > 1]
    uneven = next(((a, up) for a in grid if (up := more_turns(frame.schedule, a))), None)
    if uneven is not None:
        grid = [uneven[0], *(a for a in grid if a != uneven[0])]
    for i, a in reversed(list(enumerate(grid))):
        turn = f"pid // {_product(divisor)}" if divisor else "pid"
        turn += f" % {frame.trips(a)}" if i else ""
        divisor.append(frame.trips(a))
        if uneven == (a, "later"):
            last = frame.trips(a)
            turn = f"({int(last) - 1 if last.isdigit() else f'{last} - 1'} - {turn})"
        tile = frame.schedule.tile(a)
        if mentions(lines, frame.start(a)):
            found.append(f"{frame.start(a)} = {turn}{f' * {tile}' if tile > 1 else ''}")
    wide = ".to(tl.int64)" if frame.layout.wide else ""
    if mentions([*found, *lines], "pid"):
        found = [f"pid = tl.program_id(0){wide}", *_turns(frame, found), *found]
    if frame.split is not None:
        found += [f"part = tl.program_id(1){wide}", *_first(frame, frame.split)]
    return [f"{TAB}{line}" for line in found]


def more_turns(schedule: Schedule, a: str) -> Literal["earlier", "later", ""]:
    """Which turns along an axis take more turns of a loop inside: that of a causal mask ends later
    for later rows, that of a window begins later, too."""
    for loop in loops(schedule.body):
        ends = sum(c for index in loop.hi for axis, c in index.terms if axis == a)
        begins = sum(c for index in loop.lo for axis, c in index.terms if axis == a)
        if ends > begins:
            return "later"
        if ends < begins:
            return "earlier"
    return ""


def _product(counts: Sequence[str]) -> str:
    number = math.prod(int(n) for n in counts if n.isdigit())
    words = [*([str(number)] if number > 1 else []), *(n for n in counts if not n.isdigit())]
    return words[0] if len(words) == 1 else f"({' * '.join(words)})"


def _turns(frame: Frame, lines: Sequence[str]) -> list[str]:
    """How many turns the grid takes along axes whose extent is an argument."""
    counted = [a for a, _ in frame.schedule.grid if mentions(lines, f"{a}_turns")]
    return [f"{a}_turns = tl.cdiv({a}_size, {frame.schedule.tile(a)})" for a in counted]


def _first(frame: Frame, part: Part) -> list[str]:
    a, tile = part.axis, frame.schedule.tile(part.axis)
    if not frame.run_time(a):
        return [f"{part.first} = part * {frame.schedule.span(a) * tile}"]
    turns = f"tl.cdiv({a}_size, {tile})" if tile > 1 else f"{a}_size"
    span = f"tl.cdiv({turns}, {frame.schedule.parts}){f' * {tile}' if tile > 1 else ''}"
    return [f"{a}_span = {span}", f"{part.first} = part * {a}_span"]
