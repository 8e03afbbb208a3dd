"""The reasons why a child process gave no answer."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_SHORT = re.compile(r"bad_alloc|MemoryError|[Mm]emory allocation|[Oo]ut of memory|allocate memory")
"""Messages of libraries that end the process because they get no more memory."""

_ERROR = re.compile(r"\b(catastrophic |fatal )?error\b( [#\w-]+)?:")
"""What a compiler of C writes before the words of an error."""

Why = Literal["memory", "processor", "time", "death"]


@dataclass(frozen=True, slots=True)
class Death:
    """Why a child gave no answer.

    `status` is its exit status, negative for a signal, and None where it still lives, as after
    "time". `words` is the end of what it wrote to standard error. `outside` says that it was killed
    from elsewhere, and not because memory was short: it is not to blame.
    """

    why: Why
    status: int | None = None
    words: str = ""
    outside: bool = False

    @property
    def signalled(self) -> bool:
        """Whether a signal ended it, so that it could not say why."""
        return self.status is not None and self.status < 0

    @property
    def manner(self) -> str:
        """How it ended: `signal SIGSEGV`, or `status 1`."""
        if self.status is None or not self.signalled:
            return f"status {self.status}"
        try:
            return f"signal {signal.Signals(-self.status).name}"
        except ValueError:  # one of the real-time signals
            return f"signal {-self.status}"

    @property
    def last(self) -> str:
        """The last line of `words` that says anything: compilers end their logs with a NUL."""
        lines = (line.strip(" \t\0") for line in reversed(self.words.splitlines()))
        return next((line for line in lines if line), "")

    @property
    def telling(self) -> str:
        """The first line of `words` that a compiler marks as an error, else the last one: after
        its errors a compiler says that it ends."""
        lines = (line.strip(" \t\0") for line in self.words.splitlines())
        return next((line for line in lines if _ERROR.search(line)), self.last)

    @property
    def fault(self) -> bool:
        """Whether it crashed or aborted, so that it would do so again. Other processes were killed,
        or raised a Python exception."""
        return self.status is not None and -self.status in _FAULTS


def death_of(status: int | None, words: str, limited: bool) -> Death:
    """The death of a child with an exit status and last words; `limited` says whether its memory
    was limited."""
    if status == -signal.SIGXCPU:
        return Death("processor", status, words)
    if limited and _SHORT.search(words):
        return Death("memory", status, words)
    return Death("death", status, words)
