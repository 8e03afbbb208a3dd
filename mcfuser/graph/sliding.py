"""The windows that slide over the data of a convolution or a pooling operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """By spatial dimension: the extents of the windows, the distance between two windows and
    between two elements of one, and the padding before and after the data."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def padded(self) -> bool:
        return any(self.before) or any(self.after)


def sliding_windows(attributes: Any, extents: Sequence[int]) -> SlidingWindows:
    """The windows of an operator, given its attributes and their extents."""
    padding = tuple(int(p) for p in attributes.padding)
    return SlidingWindows(
        tuple(int(e) for e in extents),
        tuple(int(s) for s in attributes.strides),
        tuple(int(d) for d in attributes.dilation),
        padding[: len(extents)],
        padding[len(extents) :],
    )


def surrounded(
    data: relax.Expr, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> relax.Expr:
    """Data [n, c, ..] with a number around them, so often in each spatial dimension."""
    width = [n for pair in zip(before, after, strict=True) for n in pair]
    if not any(width):
        return data
    return relax.op.nn.pad(data, [0, 0, 0, 0, *width], pad_value=value)
