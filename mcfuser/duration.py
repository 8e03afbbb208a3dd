"""Durations as people write them: `60s`, `5m`, `1h`."""

from __future__ import annotations

import math
import re

from mcfuser.errors import InputError

_SCALE = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def seconds(words: str, what: str = "timeout") -> float:
    """Seconds, more than zero; a bare number is seconds. Raises InputError that names `what`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", words.strip(), re.ASCII)
    length = float(found[1]) * _SCALE[found[2]] if found is not None else 0.0
    if not 0 < length < math.inf:
        raise InputError(f"{what} '{words}' is not a time; write 60s, 5m or 1h")
    return length
