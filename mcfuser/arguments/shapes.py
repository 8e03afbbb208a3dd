"""Shapes of inputs as people write them, read the same by the command and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcfuser.errors import InputError

_EXTENT = re.compile(r"0*[1-9][0-9]{0,8}")


def shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs by name, from words such as `input=1x128`, one for each input.

    Raises InputError where a word is of another form or an input is named twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, _, numbers = word.rpartition("=")
        extents = numbers.split("x")
        if not name or not all(_EXTENT.fullmatch(e) for e in extents):
            raise InputError(
                f"shape '{_short(word)}' is not of the form input=1x128, extents at least 1"
            )
        if name in found:
            raise InputError(f"shape of input '{_short(name)}' is given twice")
        found[name] = tuple(int(e) for e in extents)
    return found


def _short(words: str) -> str:
    return words if len(words) <= 60 else f"{words[:60]}.."
