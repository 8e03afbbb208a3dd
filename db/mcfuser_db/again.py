"""When a failed job is tried again, and when it is given up."""

from __future__ import annotations

from typing import Any

FIRST, FACTOR, LONGEST = 2.0, 4.0, 600.0
"""The wait between a failed attempt and the next one: at first and at most, in seconds, and the
factor by which it grows."""
INTERRUPTIONS = 20
"""A job is given up after its server, its worker or its process was killed so often while it ran:
the job may be the cause."""


def delay(attempts: int) -> float:
    """Seconds to wait after a number of failed attempts."""
    return float(min(LONGEST, FIRST * FACTOR ** (attempts - 1)))


def gave_up(attempts: int) -> dict[str, Any]:
    """The problem of a job whose last attempt failed."""
    return _given_up(
        f"the job was started {attempts} times and each time it failed, or its worker died; the "
        "server's log says why"
    )


def interrupted(times: int) -> dict[str, Any]:
    """The problem of a job during which the server died too often."""
    return _given_up(
        f"the server, or a process of the job, was ended {times} times while the job was running; "
        "the job may be what ends it: look at the system's log, and post the model again"
    )


def _given_up(detail: str) -> dict[str, Any]:
    return {
        "type": "urn:mcfuser:problem:gave-up",
        "title": "The job was given up",
        "status": 422,
        "detail": detail,
    }
