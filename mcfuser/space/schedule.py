"""Schedules: one candidate as an explicit program of statements, all that codegen ever sees.

A statement's expressions read buffers by name, at indices in the chain's axes: inside the loops
that surround it, a loop over axis a at trip i stands for positions i*tile(a) .. (i+1)*tile(a)-1,
an axis with no loop for all its positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from mcfuser.chain import BYTES, Chain, Operator, fixed
from mcfuser.expr import Affine, Expr, Read
from mcfuser.space.expression import Expression

Level = Literal["register", "shared", "global"]
Kind = Literal["grid", "serial", "unrolled", "parallel", "split"]
LOWEST = -3.4028234663852886e38
"""The identity of a running maximum: finite, so that differences of maxima are never NaN."""


class Illegal(Exception):
    """A candidate that cannot be built, with the reason; raised anywhere, caught where counted."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a tile: the index that it holds; `whole` where it keeps every tile."""

    index: Affine
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tile held by a block: of a loaded tensor, or of an operator's result.

    `owner` is the innermost loop whose turn it lives through, None for the block itself.
    """

    name: str
    tensor: str
    dims: tuple[Dim, ...]
    dtype: str
    level: Level
    owner: str | None


@dataclass(frozen=True, slots=True)
class Loop:
    """Trips along an axis.

    `lo` and `hi`, where given, bound the trips that the domain admits, `hi` exclusive; an axis in
    them stands for the first position of its current turn.
    """

    axis: str
    kind: Kind
    body: tuple[Statement, ...]
    lo: Expr | None = None
    hi: Expr | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The tile of an input, zero outside the tensor."""

    buffer: str
    read: Read


@dataclass(frozen=True, slots=True)
class Init:
    buffer: str
    value: float


@dataclass(frozen=True, slots=True)
class Compute:
    """buffer = body, or buffer = reduce(buffer, body) over the tile of `operator.over`.

    Outside the extents and the domain, a reduction takes its identity and a map is undefined.
    """

    operator: Operator
    buffer: str
    body: Expr
    domain: Expr | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """old = buffer, before a moving reduction takes its next step."""

    old: str
    buffer: str


@dataclass(frozen=True, slots=True)
class Repair:
    """buffer = h(buffer, old, new): what was accumulated catches up with a moved reduction."""

    buffer: str
    old: str
    new: str
    h: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """The tile of an output, where it lies inside the tensor."""

    tensor: str
    buffer: str


Statement = Loop | Load | Init | Compute | Keep | Repair | Store


@dataclass(frozen=True)
class Schedule:
    """A candidate placed: the chain it computes, its loops and tiles, buffers and statements."""

    chain: Chain
    expression: Expression
    tiles: tuple[tuple[str, int], ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]

    @cached_property
    def _tiles(self) -> dict[str, int]:
        return dict(self.tiles)

    @cached_property
    def _buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.buffers}

    def tile(self, axis: str) -> int:
        """Positions of an axis that one turn covers; a batch axis takes one at a time."""
        return self._tiles.get(axis, 1)

    def trips(self, axis: str) -> int:
        return -(-self.chain.size(axis) // self.tile(axis))

    def ragged(self, axis: str) -> bool:
        """The last tile reaches past the extent."""
        return self.trips(axis) * self.tile(axis) != self.chain.extent(axis)

    def at(self, extents: Mapping[str, int]) -> Schedule:
        """The same program where run-time extents have these values; all of them must be given.

        Raises ChainError where one is missing or outside its bounds.
        """
        return replace(self, chain=fixed(self.chain, extents))

    def buffer(self, name: str) -> Buffer:
        return self._buffers[name]

    def extent(self, dim: Dim) -> int:
        """Elements that a tile holds along one of its dimensions."""
        span = 1
        for axis, c in dim.index.terms:
            positions = self.trips(axis) * self.tile(axis) if dim.whole else self.tile(axis)
            span += abs(c) * (positions - 1)
        return span

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.extent(d) for d in self._buffers[name].dims)

    def bytes_of(self, name: str) -> int:
        return math.prod(self.shape(name)) * BYTES[self._buffers[name].dtype]

    @property
    def grid(self) -> tuple[tuple[str, int], ...]:
        """The grid loops, outermost first, with their trips."""
        return tuple(
            (loop.axis, self.trips(loop.axis)) for loop in loops(self.body) if loop.kind == "grid"
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self, self.body, 0))


def loops(body: Sequence[Statement]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from loops(statement.body)


def statements(
    body: Sequence[Statement], outer: tuple[Loop, ...] = ()
) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    """Every statement but loops, with the loops around it, outermost first."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from statements(statement.body, (*outer, statement))
        else:
            yield statement, outer


def notation(body: Sequence[Statement], hidden: Sequence[str] = ()) -> str:
    """The placed statements as the paper writes them: `mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)`.

    Loops in `hidden` (batch axes) are left out.
    """
    parts: list[str] = []
    for s in body:
        if isinstance(s, Loop):
            inner = notation(s.body, hidden)
            printed = [i for i in s.body if isinstance(i, (Loop, Load, Compute, Store))]
            only = len(printed) == 1 and isinstance(printed[0], Loop)
            name = "" if s.axis in hidden else s.axis
            parts.append(name + inner if only or not name else f"{name}({inner})")
        elif isinstance(s, Load):
            parts.append(f"L_{s.read.tensor}")
        elif isinstance(s, Compute):
            parts.append(f"C_{s.operator.out}")
        elif isinstance(s, Store):
            parts.append(f"S_{s.tensor}")
    return ",".join(parts)


def _lines(schedule: Schedule, body: Sequence[Statement], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for s in body:
        if isinstance(s, Loop):
            trips = schedule.trips(s.axis)
            yield f"{pad}{s.kind} {s.axis} in {trips} x {schedule.tile(s.axis)}:"
            yield from _lines(schedule, s.body, depth + 1)
        else:
            yield pad + _line(s)


def _line(s: Statement) -> str:
    from mcfuser.expr import text

    if isinstance(s, Load):
        return f"{s.buffer} = load {text(s.read)}"
    if isinstance(s, Init):
        return f"{s.buffer} = {s.value!r}"
    if isinstance(s, Compute):
        kind = f"{s.operator.reduce}[{', '.join(s.operator.over)}] " if s.operator.over else ""
        domain = f" where {text(s.domain)}" if s.domain is not None else ""
        return f"{s.buffer} {'<-' if kind else '='} {kind}{text(s.body)}{domain}"
    if isinstance(s, Keep):
        return f"{s.old} = {s.buffer}"
    if isinstance(s, Repair):
        return f"{s.buffer} = repair {text(s.h)}"
    assert isinstance(s, Store)
    return f"store {s.tensor} = {s.buffer}"
