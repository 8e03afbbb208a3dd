"""From a block's number to its place in the grid: its iteration along every axis, and its part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from mcfuser.chain import BYTES, Bounds
from mcfuser.codegen.triton.frame import TAB, Frame, Part, mentions
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import loops

CACHED = 16 << 20
"""Bytes that blocks which start together may read besides their own rows, for these to stay in the
cache. Half of what the smallest data-center GPU of the catalogue caches."""


def identify(frame: Frame, lines: Sequence[str]) -> list[str]:
    """The lines that compute, from a block's number, its iteration of every grid loop (the
    innermost one fastest) and its part.

    Blocks with more iterations start first, so that the last ones to start end soon. Where all
    heads together read more than the cache holds, blocks of a few heads start before those of
    others.
    """
    definitions: list[str] = []
    divisor: list[str] = []
    grid, some = ordered(frame.schedule)
    for i, a in reversed(list(enumerate(grid))):
        count = str(some) if some and i == 1 else frame.trips(a)
        iteration = f"pid // {_product(divisor)}" if divisor else "pid"
        iteration += f" % {count}" if i or some else ""
        divisor.append(count)
        if some and i == 1:
            iteration = (
                f"pid // {_product([*divisor, frame.trips(grid[0])])} * {some} + {iteration}"
            )
        if more_iterations(frame.schedule, a) == "later":
            last = frame.trips(a)
            iteration = f"({int(last) - 1 if last.isdigit() else f'{last} - 1'} - {iteration})"
        tile = frame.schedule.tile(a)
        if mentions(lines, frame.start(a)):
            definitions.append(f"{frame.start(a)} = {iteration}{f' * {tile}' if tile > 1 else ''}")
    number = frame.dialect.word("program_id")
    if mentions([*definitions, *lines], "pid"):
        definitions = [
            f"pid = {number}(0){frame.wide}",
            *_iterations(frame, definitions),
            *definitions,
        ]
    if frame.split is not None:
        definitions += [f"part = {number}(1){frame.wide}", *_first(frame, frame.split)]
    return [f"{TAB}{line}" for line in definitions]


def ordered(schedule: Schedule) -> tuple[list[str], int]:
    """The grid's axes, the fastest one last; and how many positions of the second axis start before
    any others, 0 for all of them."""
    grid = [a for a, n in schedule.grid if n > 1]
    uneven = next((a for a in grid if more_iterations(schedule, a)), None)
    if uneven is None:
        return grid, 0
    others = [a for a in grid if a != uneven]
    some = together(schedule, uneven, others[0]) if others else 0
    return ([others[0], uneven, *others[1:]], 0) if some == 1 else ([uneven, *others], some)


def more_iterations(schedule: Schedule, a: str) -> Literal["earlier", "later", ""]:
    """Whether later or earlier iterations along an axis run more iterations of a loop inside; empty
    where all run the same. The loop of a causal mask ends later for later rows."""
    for loop in loops(schedule.body):
        ends = sum(c for index in loop.hi for axis, c in index.terms if axis == a)
        begins = sum(c for index in loop.lo for axis, c in index.terms if axis == a)
        if ends > begins:
            return "later"
        if ends < begins:
            return "earlier"
    return ""


def together(schedule: Schedule, uneven: str, a: str) -> int:
    """How many positions of an axis start before all others: the largest number that divides the
    axis and for which blocks read at most CACHED bytes besides their own rows; 0 for all."""
    chain, size = schedule.chain, schedule.trips(a)
    if isinstance(chain.extent(a), Bounds):
        return 0
    each = sum(
        math.prod(chain.shape(t)) * BYTES[chain.tensor(t).dtype] // size
        for t in chain.inputs
        if a in chain.tensor(t).shape and uneven not in chain.tensor(t).shape
    )
    if size * each <= CACHED:
        return 0
    return max(n for n in range(1, size) if size % n == 0 and (n == 1 or n * each <= CACHED))


def _product(counts: Sequence[str]) -> str:
    number = math.prod(int(n) for n in counts if n.isdigit())
    words = [*([str(number)] if number > 1 else []), *(n for n in counts if not n.isdigit())]
    return words[0] if len(words) == 1 else f"({' * '.join(words)})"


def _iterations(frame: Frame, lines: Sequence[str]) -> list[str]:
    """The lines that compute the grid's iterations along axes whose extent is an argument."""
    counted = [a for a, _ in frame.schedule.grid if mentions(lines, f"{a}_trips")]
    divided = frame.dialect.word("cdiv")
    return [f"{a}_trips = {divided}({a}_size, {frame.schedule.tile(a)})" for a in counted]


def _first(frame: Frame, part: Part) -> list[str]:
    a, tile = part.axis, frame.schedule.tile(part.axis)
    if not frame.run_time(a):
        return [f"{part.first} = part * {frame.schedule.span(a) * tile}"]
    divided = frame.dialect.word("cdiv")
    iterations = f"{divided}({a}_size, {tile})" if tile > 1 else f"{a}_size"
    span = f"{divided}({iterations}, {frame.schedule.parts}){f' * {tile}' if tile > 1 else ''}"
    return [f"{a}_span = {span}", f"{part.first} = part * {a}_span"]
