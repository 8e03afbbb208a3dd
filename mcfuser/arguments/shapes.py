"""Parses shapes of inputs, for the command and for HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError
from mcfuser.extents import ExtentRange, InputExtent

_NUMBER = r"0*[1-9][0-9]{0,8}"
_EXTENT = re.compile(rf"{_NUMBER}|0")
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")


def shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs by name, from words such as `input=1x128`, one for each input.

    Raises InputError where a word is of another form or an input is named twice, and where an
    extent is a range, which only compiling takes.
    """
    fixed: dict[str, tuple[int, ...]] = {}
    for name, extents in ranged_shapes(words).items():
        numbers = tuple(e for e in extents if isinstance(e, int))
        if len(numbers) < len(extents):
            given = next(e for e in extents if isinstance(e, ExtentRange))
            raise InputError(
                f"shape of input '{shortened(name)}' has the range {given}, and one shape is "
                f"needed here; give an extent, {given.high} for example"
            )
        fixed[name] = numbers
    return fixed


def ranged_shapes(words: Sequence[str]) -> dict[str, tuple[InputExtent, ...]]:
    """The shapes of inputs by name, from words such as `input=1x16..512`, in which a range is an
    extent that is known at run time. Raises InputError as `shapes` does, and for an empty range."""
    by_name: dict[str, tuple[InputExtent, ...]] = {}
    for word in words:
        name, _, numbers = word.rpartition("=")
        extents = [_extent(e, name) for e in numbers.split("x")]
        known = tuple(e for e in extents if e is not None)
        if not name or len(known) < len(extents):
            raise InputError(
                f"shape '{shortened(word)}' is not of the form input=1x128 or input=1x16..512, "
                "ranges from 1 on"
            )
        if name in by_name:
            raise InputError(f"shape of input '{shortened(name)}' is given twice")
        by_name[name] = known
    return by_name


def _extent(words: str, name: str) -> InputExtent | None:
    """A number or a range; None where the words are neither. A range of one is a number."""
    if _EXTENT.fullmatch(words):
        return int(words)
    if (bounds := _RANGE.fullmatch(words)) is None:
        return None
    low, high = map(int, bounds.groups())
    if low > high:
        raise InputError(
            f"shape of input '{shortened(name)}' has the range {low}..{high}, which ends before it "
            "begins; write the smaller extent first"
        )
    return ExtentRange(low, high) if low < high else low
