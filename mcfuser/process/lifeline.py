"""How a process ends with the one that started it, even where that one is killed.

The parent holds the writing end of a pipe and never writes to it; the child holds the reading end.
However the parent dies, the system closes the writing end, and the child's group is killed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading


def end_group_with(lifeline: int) -> None:
    """Kills the group of the calling process, its leader, once the writing end of the pipe whose
    reading end is the descriptor `lifeline` is closed; at once where it is closed already.

    On Linux the system itself sends the signal, so a process that is busy in C code or waits for a
    lock is killed as well; and no thread of the parent matters, as it would with PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    if select.select([lifeline], [], [], 0)[0]:  # it was closed before the lines above
        os.killpg(0, signal.SIGKILL)


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)
