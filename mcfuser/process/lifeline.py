"""Ends a process with its parent, even where that is killed.

The parent holds the writing end of a pipe and never writes to it; the child holds the reading end.
However the parent ends, the system closes the writing end, and the child's group is killed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading


def end_group_with(lifeline: int) -> None:
    """Has the calling process's group, of which it must be the leader, killed once a pipe is
    closed.

    `lifeline` is the reading end of the pipe. The group is killed at once where the writing end is
    closed already. On Linux the kernel sends the signal, so a process that is busy in C code or
    waits for a lock is killed as well. Unlike PR_SET_PDEATHSIG, this does not depend on the thread
    of the parent that started the process.
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
