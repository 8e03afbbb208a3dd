"""Whether the machine did something else while programs were timed on its CPU."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ALONE = 0.95
"""The share of the time that a thread which never waits has a core of its own at least, where
nothing else wants it."""
PRESSURE = Path("/proc/pressure/cpu")


@contextmanager
def watched(
    wall: Callable[[], float] = time.perf_counter, own: Callable[[], float] = time.thread_time
) -> Iterator[dict[str, Any]]:
    """Fills in, when the block ends, the state of the machine while this thread worked in it: the
    `share` of the time that the thread had a core, whether that is `busy`, the load of the last
    minute on so many cores, and the percentage of the last ten seconds in which something waited
    for a core, where the system tells."""
    found: dict[str, Any] = {}
    begun, worked = wall(), own()
    yield found
    share = (own() - worked) / max(wall() - begun, 1e-9)
    found["share"] = round(min(share, 1.0), 3)
    found["busy"] = share < ALONE
    found["cores"] = os.cpu_count()
    if hasattr(os, "getloadavg"):
        found["load"] = round(os.getloadavg()[0], 2)
    if (pressure := _pressure()) is not None:
        found["pressure"] = pressure


def _pressure() -> float | None:
    try:
        words = PRESSURE.read_text()
    except OSError:
        return None
    some = re.search(r"^some avg10=(\d+(?:\.\d+)?)", words)
    return float(some[1]) if some is not None else None
