"""The candidates of a search in T4, the format in which auto-tuners exchange results.

T4 1.0.0 is what Kernel Tuner writes and benchmark suites of auto-tuners read: one document for each
search space, one result for each configuration that was tried. Times are in milliseconds there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from mcfuser.chain import to_json
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned

VERSION = "1.0.0"
"""The version of T4."""

Invalidity = Literal["correct", "compile", "runtime", "correctness", "timeout", "constraints"]

# A reason is kept as a sentence, for people; T4 has six words. What no pattern knows was refused
# before it ran: it has no legal source, or does not fit the device.
_REASONS: tuple[tuple[re.Pattern[str], Invalidity], ...] = (
    (re.compile(r"too far off|should be infinite|its error is|not defined on the"), "correctness"),
    (re.compile(r"took .*(longer|too long)|more than .* processor time"), "timeout"),
    (re.compile(r"does not compile|the compiler|Triton (gives|lays)"), "compile"),
    (
        re.compile(r"it fails|died|needed more memory|broke the device|illegal|misaligned|launch"),
        "runtime",
    ),
)


def t4_document(tuned: Tuned, tried: Sequence[Tried], kept: datetime) -> dict[str, Any]:
    """All candidates that were tried for a kernel, as a T4 document.

    Of each candidate only its result is kept, not when it was tried: all have the time at which the
    kernel was `kept`. `runtimes` has one time, the median that was measured.
    """
    axes = [a.name for a in tuned.chain.axes]
    results = [_result(t.named(axes), kept) for t in tried]
    return {"schema_version": VERSION, "metadata": _metadata(tuned), "results": results}


def _metadata(tuned: Tuned) -> dict[str, Any]:
    """What the results are of. T4 asks for the hardware and the environment; the kernel is
    mcfuser's own addition, which readers of T4 pass over."""
    made = tuned.made
    programs = dict(made.toolchain) if made is not None else {}
    hardware = {"name": tuned.device, "key": made.device if made is not None else ""}
    packages = {**programs, **tuned.versions}
    return {
        "hardware": {"hardware_description": [hardware]},
        "environment": {
            "device_query": dict(tuned.conditions),
            "requirements": [f"{name}=={version}" for name, version in sorted(packages.items())],
        },
        "kernel": {
            "key": tuned.key,
            "chain": to_json(tuned.chain),
            "space": tuned.space,
            "candidates": tuned.stages.get("lowered"),
        },
    }


def _result(named: Mapping[str, Any], kept: datetime) -> dict[str, Any]:
    """A candidate, with the names of its chain's axes (Tried.named), as a result of T4."""
    seconds, error, failed = named["measured"], named["error"], named["failed"]
    measurements: list[dict[str, Any]] = []
    if seconds is not None:
        measurements.append({"name": "time", "value": seconds * 1e3, "unit": "ms"})
    if error is not None:
        measurements.append({"name": "error", "value": error, "unit": ""})
    if failed is not None:
        measurements.append({"name": "reason", "value": failed, "unit": ""})
    return {
        "timestamp": kept.isoformat(),
        "configuration": {
            "expression": named["expression"],
            **{f"tile_{axis}": size for axis, size in named["tiles"].items()},
            "split": named["split"] or "none",
            "parts": named["parts"],
            "shifts": named["shifts"],
            **named["lowering"],
        },
        "times": {"runtimes": [seconds * 1e3] if seconds is not None else []},
        "invalidity": "correct" if seconds is not None else invalidity(failed or ""),
        "correctness": 1 if seconds is not None else 0,
        "measurements": measurements,
        "objectives": ["time"],
    }


def invalidity(reason: str) -> Invalidity:
    """The word that T4 has for the reason for which a candidate failed."""
    return next((word for known, word in _REASONS if known.search(reason)), "constraints")
