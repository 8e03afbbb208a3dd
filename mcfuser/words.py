"""What people write for times and shapes, read the same by the command and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcfuser.errors import InputError

LONGEST_TIME = 86400.0
"""The most seconds that a compilation may be given: a day."""
TIME = r"^([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?$"
_TIME = re.compile(TIME)
_SCALE = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_EXTENT = re.compile(r"0*[1-9][0-9]{0,8}")


def seconds(words: str) -> float:
    """The seconds of a time such as `500ms`, `60`, `60s`, `5m` or `1h`.

    Raises InputError where it is written otherwise, is zero or longer than a day.
    """
    found = _TIME.fullmatch(words.strip())
    if found is None:
        raise InputError(f"timeout '{_short(words)}' is not a time; write 60s, 5m or 1h")
    value = float(found[1]) * _SCALE[found[2]]
    if not 0 < value <= LONGEST_TIME:
        raise InputError(
            f"timeout '{_short(words)}' is {value:g} s; it must be more than 0 and at most "
            f"{LONGEST_TIME:g} s"
        )
    return value


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
