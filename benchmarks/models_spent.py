"""Where a module's time goes: by kernel, inside of tuned chains and outside."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

TUNED_ON_HOST = re.compile("chain_")
TUNED_ON_GPU = re.compile("kernel_[0-9a-f]{16}")
"""What the names of tuned functions and kernels begin with (mcfuser.compile, mcfuser.tune)."""
MOST = 12
"""Functions of each sort that are kept by name, those that take longest."""


def one_by_one(ran: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """The seconds of each kernel, given the times between which kernels ran. One that started while
    another ran waited for it: only what comes after that one's end is its own."""
    seconds, ended = dict[str, float](), -math.inf
    for name, start, end in sorted(ran, key=lambda r: r[1:]):
        seconds[name] = seconds.get(name, 0.0) + max(0.0, end - max(start, ended))
        ended = max(ended, end)
    return seconds


def divided(
    seconds: Mapping[str, float], calls: Mapping[str, int], runs: int, tuned: re.Pattern[str]
) -> dict[str, Any]:
    """Seconds and calls of one run inside of tuned chains and outside, and the longest of each."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted(seconds, key=lambda n: -seconds[n]):
        parts[tuned.match(name) is not None].append(name)
    whole = sum(seconds.values())
    inside, outside = (
        {
            "seconds": sum(seconds[n] for n in parts[own]) / runs,
            "calls": sum(calls[n] for n in parts[own]) // runs,
            "longest": [
                {"name": n[:120], "seconds": seconds[n] / runs, "calls": calls[n] // runs}
                for n in parts[own][:MOST]
            ],
        }
        for own in (True, False)
    )
    share = sum(seconds[n] for n in parts[False]) / whole if whole else 0.0
    return {"outside_share": round(share, 4), "chains": inside, "outside": outside}
