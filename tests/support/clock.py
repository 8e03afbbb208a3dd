"""A clock that tests set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
