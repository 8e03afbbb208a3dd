"""A process that imports a module once, and forks children that have it loaded.

Each fork calls the module's function `answer(request)` for one request after the other; requests
and answers are pickled. Importing the module must not leave threads running: a fork has none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from mcfuser.process.lifeline import end_group_with
from mcfuser.process.load import load
from mcfuser.process.supervised import Supervised

GONE = 1.0
"""Seconds after which a killed fork has ended."""
_START = 600.0  # seconds until the module is imported, on a very busy machine


@dataclass(frozen=True, slots=True)
class Post:
    """The settings of a fork: its folder for temporary files, and its niceness (nice(2))."""

    scratch: Path
    niceness: int


class ForkFailed(RuntimeError):
    """The process that forks has ended; the message says how."""


class Fork:
    """A forked process, as its parent sees it. It leads a process group and ends with its parent.

    One thread at a time may call `ask`; others may call `hang_up` and `cut_off` meanwhile.
    """

    def __init__(self, channel: socket.socket, lifeline: int) -> None:
        self._channel: socket.socket | None = channel
        self._connection = Connection(os.dup(channel.fileno()))
        self._lifeline = lifeline
        self._lock = threading.Lock()
        self.pid: int | None = None
        """The process id, known once it has answered."""

    def tell(self, post: Post) -> None:
        self._connection.send(post)

    def ask(self, request: object, seconds: float) -> Any:
        """The answer to a request.

        Raises TimeoutError where it takes longer than `seconds`, EOFError where the process ends.
        After either the fork must not be asked again.
        """
        try:
            if self.pid is None:
                self.pid = self._next(_START)
            self._connection.send(request)
            return self._next(seconds)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def _next(self, seconds: float) -> Any:
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv()

    def hang_up(self) -> None:
        """Kills its group and does not wait for the end. A waiting `ask` raises EOFError then."""
        with self._lock:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def cut_off(self) -> None:
        """Makes a waiting `ask` raise EOFError at once."""
        with self._lock:
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kills its group and waits for the end of the process."""
        self.hang_up()
        with contextlib.suppress(OSError, EOFError):
            while self._connection.poll(GONE):  # the system closes the other end with the process
                self._connection.recv_bytes()
        with self._lock:
            self._connection.close()
            if self._channel is not None:
                self._channel.close()
                self._channel = None


class ForkServer:
    """The process that imports a module and forks.

    It lives until this process ends, and is started again where it has died.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: Supervised | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts it, and does not wait until the module is imported."""
        with self._lock:
            self._started()

    def fork(self, post: Post) -> Fork:
        """Forks a process; does not wait until it is ready."""
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        fork = Fork(ours, writing)
        try:
            with self._lock:
                socket.send_fds(self._started(), [b"f"], [theirs.fileno(), reading])
            fork.tell(post)
        except OSError:
            fork.end()
            raise ForkFailed(self._why()) from None
        finally:
            theirs.close()
            os.close(reading)
        return fork

    def check(self) -> None:
        """Raises ForkFailed where the server has died, or dies within a second: then a fork that
        has never answered may not exist."""
        process = self._process
        if process is not None and process.wait(time.monotonic() + GONE) is not None:
            raise ForkFailed(self._why())

    def _why(self) -> str:
        assert self._process is not None
        death = self._process.death()
        return f"the process that forks others for {self._module} died of {death.manner}: " + (
            death.last or "it said nothing"
        )

    def _started(self) -> socket.socket:
        if self._process is not None and not self._process.alive:
            self._process.end()
            self._process = None
        if self._process is None or self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs, theirs.makefile("rb") as stream:
                self._process = Supervised(
                    "mcfuser.process.forkserver",
                    [self._module],
                    input=stream,
                    output=subprocess.DEVNULL,
                )
        return self._control


# --- the server's side ----------------------------------------------------------------------


def main() -> None:
    """Forks a process for each pair of file descriptors received: a channel and a lifeline."""
    # What is loaded is frozen: else the first collection in a fork copies the pages that it shares.
    answer = load(sys.argv[1]).answer
    signal.signal(signal.SIGCHLD, _bury)
    control = socket.socket(fileno=0)
    while True:
        said, descriptors, *_ = socket.recv_fds(control, 1, 2)
        if not said:
            return
        if os.fork() == 0:
            _live(answer, *descriptors)
        for one in descriptors:
            os.close(one)


def _bury(*_: object) -> None:
    """Reaps forks that have ended, and kills the processes that they have started."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(dead.si_pid, signal.SIGKILL)
            os.waitpid(dead.si_pid, 0)


def _live(answer: Callable[[Any], object], channel: int, lifeline: int) -> NoReturn:
    """Runs in a fork: answers requests until the parent closes the channel."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        end_group_with(lifeline)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        connection = Connection(channel)
        post: Post = connection.recv()
        os.environ["TMPDIR"] = str(post.scratch)
        os.nice(post.niceness)
        connection.send(os.getpid())
        with contextlib.suppress(EOFError):
            while True:
                connection.send(answer(connection.recv()))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)
