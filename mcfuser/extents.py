"""Extents of inputs as users give them: numbers, and ranges that are known at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUCKETS = 4
"""The most buckets that the ranges of a model become, unless another number is asked for."""
MOST = 32
"""The most buckets that can be asked for: each is compiled as a model is."""


@dataclass(frozen=True, slots=True)
class ExtentRange:
    """An extent that is known only at run time, from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


Extent = int | ExtentRange
Shapes = Mapping[str, tuple[Extent, ...]]
"""The shapes of inputs, by name."""


def ranged(shapes: Shapes) -> bool:
    """Whether some extent is known only at run time."""
    return any(isinstance(e, ExtentRange) for shape in shapes.values() for e in shape)


def highest(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes in which every range is its highest extent."""
    return {
        name: tuple(e.high if isinstance(e, ExtentRange) else e for e in shape)
        for name, shape in shapes.items()
    }


def to_json(shapes: Shapes) -> dict[str, list[int | str]]:
    """Shapes as JSON; a range is a text such as `1..8`."""
    return {
        name: [str(e) if isinstance(e, ExtentRange) else e for e in shape]
        for name, shape in shapes.items()
    }


def from_json(document: Mapping[str, list[int | str]]) -> dict[str, tuple[Extent, ...]]:
    """The shapes of a document that `to_json` wrote. Raises ValueError."""
    return {name: tuple(map(_extent, shape)) for name, shape in document.items()}


def _extent(value: int | str) -> Extent:
    if isinstance(value, int):
        return value
    low, _, high = value.partition("..")
    return ExtentRange(int(low), int(high))
