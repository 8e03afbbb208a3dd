"""How many processes Linux has killed for want of memory."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")
_NAME = "oom_kill "


def oom_kills(vmstat: Path = _VMSTAT) -> int | None:
    """The number of processes that were killed since the start of the machine, because it or one
    of its control groups had no more memory; None where that is not told."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(x.removeprefix(_NAME)) for x in lines if x.startswith(_NAME)), None)
