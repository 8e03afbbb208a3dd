"""Extents of inputs as users give them: numbers, and ranges that are known at run time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BUCKETS = 4
"""The most buckets that the ranges of a model become, unless another number is asked for."""
MOST = 32
"""The most buckets that can be asked for: each is compiled as a model is."""


RANGE = re.compile(r"[1-9][0-9]{0,8}\.\.[1-9][0-9]{0,8}")
"""A range as reports and zoos have it."""


@dataclass(frozen=True, slots=True)
class ExtentRange:
    """An extent that is known only at run time, from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


InputExtent = int | ExtentRange
InputShapes = Mapping[str, tuple[InputExtent, ...]]
"""The shapes of inputs, by name."""


def ranged(shapes: InputShapes) -> bool:
    """Whether some extent is known only at run time."""
    return any(isinstance(e, ExtentRange) for shape in shapes.values() for e in shape)


def highest(shapes: InputShapes) -> dict[str, tuple[int, ...]]:
    """The shapes in which every range is its highest extent."""
    return {
        name: tuple(e.high if isinstance(e, ExtentRange) else e for e in shape)
        for name, shape in shapes.items()
    }


def to_json(shapes: InputShapes) -> dict[str, list[int | str]]:
    """InputShapes as JSON; a range is a text such as `1..8`."""
    return {
        name: [str(e) if isinstance(e, ExtentRange) else e for e in shape]
        for name, shape in shapes.items()
    }


def from_json(document: Mapping[str, list[int | str]]) -> dict[str, tuple[InputExtent, ...]]:
    """The shapes of a document that `to_json` wrote. Raises ValueError."""
    return {name: tuple(map(_extent, shape)) for name, shape in document.items()}


def _extent(value: int | str) -> InputExtent:
    if isinstance(value, int):
        return value
    low, _, high = value.partition("..")
    return ExtentRange(int(low), int(high))
