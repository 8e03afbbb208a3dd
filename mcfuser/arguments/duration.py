"""Parses durations: `60s`, `5m`, `1h`."""

from __future__ import annotations

import math
import re

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError

LONGEST = 86400.0
"""The longest time, in seconds, that one compilation may be given: a day."""
TIME = r"^([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?$"
_SCALE = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def seconds(words: str, what: str = "timeout", most: float = math.inf) -> float:
    """The seconds of a duration; a number without a unit is seconds.

    Raises InputError, naming `what`, where it is not above zero and at most `most`.
    """
    shown = shortened(words)
    match = re.fullmatch(TIME, words.strip())
    length = float(match[1]) * _SCALE[match[2]] if match is not None else 0.0
    if not 0 < length < math.inf:
        raise InputError(f"{what} '{shown}' is not a time; write 60s, 5m or 1h")
    if length > most:
        raise InputError(f"{what} '{shown}' is {length:g} s; it must be at most {most:g} s")
    return length
