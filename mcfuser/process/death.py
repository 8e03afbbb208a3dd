"""Why a child process gave no answer."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_SHORT = re.compile(r"bad_alloc|MemoryError|[Mm]emory allocation|[Oo]ut of memory|allocate memory")
"""How libraries say that they are given no memory, before they end the process."""

Why = Literal["memory", "processor", "time", "death"]


@dataclass(frozen=True, slots=True)
class Death:
    """Why a child gave no answer. `status` is its exit status, negative for a signal, and None
    where it lives on, as after `time`; `words` are the last that it wrote to standard error."""

    why: Why
    status: int | None = None
    words: str = ""

    @property
    def signalled(self) -> bool:
        """A signal ended it; of that it could say nothing."""
        return self.status is not None and self.status < 0

    @property
    def manner(self) -> str:
        """What it died of: `signal SIGSEGV`, or `status 1`."""
        if self.status is None or not self.signalled:
            return f"status {self.status}"
        try:
            return f"signal {signal.Signals(-self.status).name}"
        except ValueError:  # one of the real-time signals
            return f"signal {-self.status}"

    @property
    def last(self) -> str:
        """The last line of its words."""
        return (self.words.strip().splitlines() or [""])[-1].strip()

    @property
    def fault(self) -> bool:
        """It did something that the system forbids, or gave itself up, as C++ does: it would
        again. Others were killed, or had a Python error."""
        return self.status is not None and -self.status in _FAULTS


def death_of(status: int | None, words: str, limited: bool) -> Death:
    """What a child died of that had this exit status and these last words; `limited` says that its
    memory was."""
    if status == -signal.SIGXCPU:
        return Death("processor", status, words)
    if limited and _SHORT.search(words):
        return Death("memory", status, words)
    return Death("death", status, words)
