"""The end of a command whose time is limited."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from mcfuser.errors import LimitError


def process_start() -> float:
    """The time at which this process was started, on time.monotonic().

    A limit holds for the whole command, and loading it takes seconds on a busy machine.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, AttributeError):  # no Linux
        age = time.process_time()
    return time.monotonic() - age


@contextmanager
def interrupted(end: float | None, limit: float | None) -> Iterator[None]:
    """Raises LimitError in the block some time (mcfuser_service.compilation.grace) after `end`
    (time.monotonic), the end of a limit of `limit` seconds.

    The block ends in time by itself, except on a busy machine, where a step that checks no clock
    may take long. Nothing is done where either is None.
    """
    if end is None or limit is None:
        yield
        return

    from mcfuser_service.compilation import grace

    def late(*_: object) -> NoReturn:
        raise LimitError(f"the chain was not tuned within {limit:g} s; give it more time")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, end + grace(limit) - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
