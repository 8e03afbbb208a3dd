"""How fast this machine's cores are, for limits of time that a test sets."""

from __future__ import annotations

import time
from functools import cache

_STEPS = 200_000
_SECONDS = _STEPS * 17e-9  # on a core of 2024, at 4 GHz


@cache
def slowness() -> float:
    """The time that Python takes here for a plain loop, as a multiple of the time on the core that
    limits were set on; 1 where this one is faster."""
    return max(1.0, min(_loop() for _ in range(5)) / _SECONDS)


def _loop() -> float:
    start, total = time.process_time(), 0
    for i in range(_STEPS):
        total += i
    return time.process_time() - start
