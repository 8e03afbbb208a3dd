"""Where the padded positions of a value are.

A bucket computes every value at its upper extents. The positions within the run-time extents are
those of the model, all others are padding. A dimension may hold several extents, as Reshape merges
them: the rows of a matrix that are the positions of all sentences of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Sign = Literal["any", "nonnegative", "positive"]


@dataclass(frozen=True, slots=True)
class Factor:
    """One extent of a dimension: at each of the points at which the model was looked at, the first
    of which is the bucket's upper one.

    Two factors with equal `extents` are one and the same run-time extent. Elements past it are
    zeros where `zero` holds.
    """

    extents: tuple[int, ...]
    zero: bool = False

    @property
    def upper(self) -> int:
        return self.extents[0]

    @property
    def dynamic(self) -> bool:
        return any(e != self.extents[0] for e in self.extents)

    @property
    def plain(self) -> Factor:
        """The factor of which nothing is known past its extent."""
        return Factor(self.extents)

    def with_zero(self, zero: bool) -> Factor:
        return replace(self, zero=zero and self.dynamic)


PaddedDimension = tuple[Factor, ...]
"""The factors of a dimension, outermost first; none of an extent of 1."""
Layout = tuple[PaddedDimension, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A value of the padded graph: its name there, and what is known of it.

    Where it is `finite`, no padded position is NaN or infinite unless a valid one is. `sign` is
    that of all its elements.
    """

    name: str
    layout: Layout
    finite: bool = True
    sign: Sign = "any"


def dimension(*factors: Factor) -> PaddedDimension:
    """A dimension without its factors of 1; neighbours that are numbers become one."""
    made: list[Factor] = []
    for f in factors:
        if not f.dynamic and f.upper == 1:
            continue
        if made and not f.dynamic and not made[-1].dynamic:
            made[-1] = Factor(
                tuple(a * b for a, b in zip(made[-1].extents, f.extents, strict=True))
            )
        else:
            made.append(f)
    return tuple(made)


def room(dim: PaddedDimension) -> int:
    """The extent of a dimension in the bucket, with its padding."""
    return math.prod(f.upper for f in dim)


def extents(dim: PaddedDimension, points: int) -> tuple[int, ...]:
    """The extent of a dimension at each point."""
    return tuple(math.prod(f.extents[i] for f in dim) for i in range(points))


def same(one: PaddedDimension, other: PaddedDimension) -> bool:
    """Whether two dimensions have the same positions padded."""
    return _padded_by(one) == _padded_by(other)


def _padded_by(dim: PaddedDimension) -> list[tuple[int, ...]]:
    """The extents of a dimension's factors. Where the outermost one alone is dynamic, all padding
    is behind the last valid element, as if the dimension held one extent, their product."""
    factors = [f.extents for f in dim]
    if any(f.dynamic for f in dim[1:]):
        return factors
    return [tuple(map(math.prod, zip(*factors, strict=True)))] if factors else []


def finest(dims: Sequence[PaddedDimension]) -> PaddedDimension:
    """Of dimensions that have the same positions padded, the one with most factors, of whose padded
    positions nothing is known; one of an extent of 1 counts as none."""
    return plain(max(dims, key=len, default=()))


def is_dynamic(dim: PaddedDimension) -> bool:
    return any(f.dynamic for f in dim)


def all_zero(dim: PaddedDimension) -> bool:
    """Whether every padded position of a dimension is zero."""
    return all(f.zero for f in dim if f.dynamic)


def plain(dim: PaddedDimension) -> PaddedDimension:
    """The dimension, of whose padded positions nothing is known."""
    return tuple(f.plain for f in dim)


def zeroed(dim: PaddedDimension) -> PaddedDimension:
    """The dimension, all of whose padded positions are zeros."""
    return tuple(f.with_zero(True) for f in dim)
