"""Durations as people write them: `60s`, `5m`, `1h`."""

from __future__ import annotations

import math
import re

from mcfuser.errors import InputError

LONGEST = 86400.0
"""The most seconds that one compilation may be given: a day."""
TIME = r"^([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?$"
_SCALE = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def seconds(words: str, what: str = "timeout", most: float = math.inf) -> float:
    """Seconds, more than zero and at most `most`; a bare number is seconds. Raises InputError that
    names `what`."""
    told = words if len(words) <= 60 else f"{words[:60]}.."
    found = re.fullmatch(TIME, words.strip())
    length = float(found[1]) * _SCALE[found[2]] if found is not None else 0.0
    if not 0 < length < math.inf:
        raise InputError(f"{what} '{told}' is not a time; write 60s, 5m or 1h")
    if length > most:
        raise InputError(f"{what} '{told}' is {length:g} s; it must be at most {most:g} s")
    return length
