"""Statements of a schedule: loops, and what is done to buffers inside them.

A statement's expressions read buffers by name, at indices in the chain's axes: inside the loops
that surround it, a loop over axis a at iteration i stands for positions i*tile(a) ..
(i+1)*tile(a)-1, an axis with no loop for all its positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from mcfuser.chain import Operator
from mcfuser.expr import Affine, Expr, Read

Level = Literal["register", "shared", "global"]
LoopKind = Literal["grid", "serial", "unrolled", "parallel", "split"]


class Illegal(Exception):
    """A candidate that cannot be built, with the reason; raised anywhere, caught where counted."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a buffer: the index that it holds; where `whole`, the buffer holds all tiles
    along it, not only the one of the current iteration."""

    index: Affine
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tile held by a block: of a loaded tensor, or of an operator's result."""

    name: str
    tensor: str
    dims: tuple[Dim, ...]
    dtype: str
    level: Level


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over the tiles of an axis; `Schedule.iterations` says which of them it runs.

    The iterations of a split loop are parts: each stands for the iterations that the serial loop
    over the same axis takes inside it. `lo` and `hi` bound the positions that the domains admit,
    both inclusive and affine in other axes: an iteration is taken where it holds a position that is
    no less than the least value of every `lo`, and no more than the greatest of every `hi`, over
    the positions at hand.
    """

    axis: str
    kind: LoopKind
    body: tuple[Statement, ...]
    lo: tuple[Affine, ...] = ()
    hi: tuple[Affine, ...] = ()


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
class Fill:
    """From this statement on, a buffer holds `value` at positions past the end of `axes`.

    Along the axes in `ended` it already holds the value past the very end of the axis, but not at
    positions of the next tile.
    """

    buffer: str
    axes: tuple[str, ...]
    value: float
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """buffer = body, or buffer = reduce(buffer, body) over the tile of `operator.over`.

    Outside the extents and the domain, a reduction takes its identity and a map is undefined.
    `masked` are the axes past whose end the body of a reduction must be replaced by the identity:
    past the end of its other axes the body is the identity already, once `fill` was done before.
    `masked_factors` are the axes past whose end each factor of the body is not zero, for products
    that mask their operands one by one (space.ends).
    """

    operator: Operator
    buffer: str
    body: Expr
    domain: Expr | None = None
    masked: tuple[str, ...] = ()
    masked_factors: tuple[tuple[str, ...], ...] = ()
    fill: Fill | None = None


@dataclass(frozen=True, slots=True)
class SaveOld:
    """old = buffer: the value of a moving reduction before its next step."""

    old: str
    buffer: str


@dataclass(frozen=True, slots=True)
class Repair:
    """buffer = h(buffer, old, new): an accumulated value is adjusted to the new value of the moving
    reduction that it was computed with."""

    buffer: str
    old: str
    new: str
    h: Expr


@dataclass(frozen=True, slots=True)
class StorePartial:
    """A part of a split reduction stores its partial result in the workspace, for `Combine`."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Combine:
    """buffer = reduce over the partial results of all parts: the global phase of a split.

    Before it is reduced, a part's value goes through the `repairs`, one after the other. In these
    the buffer stands for that value, `old` for the moving reduction as the same part stored it, and
    `new` for the combined one.
    """

    operator: Operator
    buffer: str
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """The elements of an output's tile that are inside the tensor."""

    tensor: str
    buffer: str


SimpleStatement = Load | Init | Compute | SaveOld | Repair | StorePartial | Combine | Store
"""A statement that is no loop."""
Statement = Loop | SimpleStatement


def loops(body: Sequence[Statement]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from loops(statement.body)


def statements(
    body: Sequence[Statement], outer: tuple[Loop, ...] = ()
) -> Iterator[tuple[SimpleStatement, tuple[Loop, ...]]]:
    """Every statement but loops, with the loops around it, outermost first."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from statements(statement.body, (*outer, statement))
        else:
            yield statement, outer


def notation(body: Sequence[Statement], hidden: Sequence[str] = ()) -> str:
    """The placed statements as the paper writes them: `mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)`.

    Loops in `hidden` (batch axes) are left out. `n/` is a loop over parts of n, and G_E combines
    what they found of E.
    """
    parts: list[str] = []
    for s in body:
        if isinstance(s, Loop):
            inner = notation(s.body, hidden)
            printed = [i for i in s.body if isinstance(i, (Loop, Load, Compute, Store))]
            only = len(printed) == 1 and isinstance(printed[0], Loop)
            name = "" if s.axis in hidden else s.axis + "/" * (s.kind == "split")
            parts.append(name + inner if only or not name else f"{name}({inner})")
        elif isinstance(s, Load):
            parts.append(f"L_{s.read.tensor}")
        elif isinstance(s, Compute):
            parts.append(f"C_{s.operator.out}")
        elif isinstance(s, Combine):
            parts.append(f"G_{s.buffer}")
        elif isinstance(s, Store):
            parts.append(f"S_{s.tensor}")
        elif not isinstance(s, (Init, SaveOld, Repair, StorePartial)):  # have no letter
            assert_never(s)
    return ",".join(parts)


def plain_index(index: Affine) -> str:
    """The axis of a computed tile's dimension."""
    name = index.plain
    assert name is not None
    return name
