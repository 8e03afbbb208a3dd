"""Parses what an API key may use: rates (`60/m`), sizes (`10GB`) and lifetimes (`90d`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError

MOST = 10**9
"""The most requests in a rate."""
LARGEST = 1 << 60
"""The largest size, in bytes."""
LONGEST_LIFE = 3660
"""The longest lifetime, in days."""
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_LIFE = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` requests at once, and on average `count` in `seconds`."""

    count: int
    seconds: float

    def __str__(self) -> str:
        unit = next((u for u, length in _PER.items() if length == self.seconds), None)
        return f"{self.count}/{unit}" if unit is not None else f"{self.count}/{self.seconds:g}s"


def rate(words: str) -> Rate:
    """The rate that `60/m` means: a number of requests by s, m, h or d. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,12})/([smhd])", words.strip())
    count = int(match[1]) if match is not None else 0
    if match is None or not 1 <= count <= MOST:
        raise InputError(
            f"rate '{shortened(words)}' is not one; write requests by s, m, h or d: 60/m"
        )
    return Rate(count, _PER[match[2]])


def size(words: str) -> int:
    """The bytes that `10GB` or `512MiB` means. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([KMGT]?B|[KMGT]iB)?", words.strip())
    found = int(float(match[1]) * _UNIT[match[2] or "B"]) if match is not None else 0
    if not 1 <= found <= LARGEST:
        raise InputError(f"size '{shortened(words)}' is not one; write 500MB, 10GB or 4GiB")
    return found


def lifetime(words: str) -> float:
    """The seconds that `90d`, `12h` or `4w` means. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,6})([hdw])", words.strip())
    found = int(match[1]) * _LIFE[match[2]] if match is not None else 0.0
    if not 0 < found <= LONGEST_LIFE * 86400.0:
        raise InputError(
            f"lifetime '{shortened(words)}' is not one; write 12h, 90d or 4w, at most "
            f"{LONGEST_LIFE}d"
        )
    return found
