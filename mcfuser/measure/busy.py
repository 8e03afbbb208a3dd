"""Whether other processes used the CPU while programs were timed on it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ALONE = 0.95
"""On an idle machine a thread that never waits has a core for at least this share of the time."""
PRESSURE = Path("/proc/pressure/cpu")


@contextmanager
def watched(
    wall: Callable[[], float] = time.perf_counter, own: Callable[[], float] = time.thread_time
) -> Iterator[dict[str, Any]]:
    """A dictionary that is filled, when the block ends, with the state of the CPU meanwhile.

    `share` is the share of the time for which this thread had a core, and `busy` whether that is
    less than ALONE; `cores` is the number of cores. Where the system has them: `load`, the average
    of the last minute, and `pressure`, the percentage of the last ten seconds in which some thread
    waited for a core. `wall` and `own` are the clocks, in seconds.
    """
    state: dict[str, Any] = {}
    begun, worked = wall(), own()
    yield state
    share = (own() - worked) / max(wall() - begun, 1e-9)
    state["share"] = round(min(share, 1.0), 3)
    state["busy"] = share < ALONE
    state["cores"] = os.cpu_count()
    if hasattr(os, "getloadavg"):
        state["load"] = round(os.getloadavg()[0], 2)
    if (pressure := _pressure()) is not None:
        state["pressure"] = pressure


def _pressure() -> float | None:
    try:
        words = PRESSURE.read_text()
    except OSError:
        return None
    some = re.search(r"^some avg10=(\d+(?:\.\d+)?)", words)
    return float(some[1]) if some is not None else None
