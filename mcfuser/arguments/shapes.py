"""Parses shapes of inputs, for the command and for HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcfuser.errors import InputError

_EXTENT = re.compile(r"0*[1-9][0-9]{0,8}")


def shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs by name, from words such as `input=1x128`, one for each input.

    Raises InputError where a word is of another form or an input is named twice.
    """
    by_name: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, _, numbers = word.rpartition("=")
        extents = numbers.split("x")
        if not name or not all(_EXTENT.fullmatch(e) for e in extents):
            raise InputError(
                f"shape '{_short(word)}' is not of the form input=1x128, extents at least 1"
            )
        if name in by_name:
            raise InputError(f"shape of input '{_short(name)}' is given twice")
        by_name[name] = tuple(int(e) for e in extents)
    return by_name


def _short(words: str) -> str:
    return words if len(words) <= 60 else f"{words[:60]}.."
