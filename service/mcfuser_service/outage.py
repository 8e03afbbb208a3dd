"""A database that does not answer: said once in the log, and once more when it answers again."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

FIRST, LAST = 0.5, 15.0
"""Seconds between two attempts at a database that does not answer: doubled from the first to the
last."""


@dataclass
class Outage:
    """What one part of a program knows of the database: whether it answered the last time.

    `log` has a line when the database stops answering and one when it answers again, however often
    it is asked in between; `what` says whom it does not answer.
    """

    log: logging.Logger
    what: str
    since: float | None = field(default=None, init=False)
    pause: float = field(default=FIRST, init=False)

    def failed(self, error: BaseException) -> float:
        """Notes that the database has not answered; gives the seconds to wait before it is asked
        again."""
        if self.since is None:
            self.since, self.pause = time.monotonic(), FIRST
            self.log.warning(
                "%s: the database does not answer, and is asked again until it does: %s",
                self.what,
                reason(error),
            )
        wait, self.pause = self.pause, min(2 * self.pause, LAST)
        return wait

    def over(self) -> None:
        """Notes that the database has answered."""
        if self.since is None:
            return
        seconds, self.since = time.monotonic() - self.since, None
        self.log.info("%s: the database answers again, after %.0f s", self.what, seconds)


def reason(error: BaseException) -> str:
    """The first line of what is wrong, without SQLAlchemy's address of an explanation."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(error).__name__])[0]
