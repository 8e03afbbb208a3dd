"""A process that loads a module once and forks children that have it, for whoever asks.

The module's function `answer(request)` is what each fork runs, request after request; requests and
answers are pickled values. Importing the module must leave no threads behind, which a fork would
not have.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from mcfuser.process.lifeline import end_group_with
from mcfuser.process.supervised import Supervised

GONE = 1.0
"""Seconds in which a fork that is killed has ended."""
_START = 600.0  # s until the module is loaded, on the busiest machine


@dataclass(frozen=True, slots=True)
class Post:
    """What a fork is told first: its folder for temporary files, and how much it yields to other
    processes (see nice(2))."""

    scratch: Path
    niceness: int


class ForkFailed(RuntimeError):
    """The process that forks ended: the sentence says how."""


class Fork:
    """The parent's side of a forked process, which leads a group of its own and ends with the
    parent. One thread at a time asks it; others may call `hang_up` and `cut_off`."""

    def __init__(self, channel: socket.socket, lifeline: int) -> None:
        self._channel: socket.socket | None = channel
        self._connection = Connection(os.dup(channel.fileno()))
        self._lifeline = lifeline
        self._lock = threading.Lock()
        self.pid: int | None = None
        """Its process's number, once it has answered."""

    def tell(self, post: Post) -> None:
        self._connection.send(post)

    def ask(self, request: object, seconds: float) -> Any:
        """What `answer` of its module gives. Raises TimeoutError where that takes longer, and
        EOFError where the process ends; then it is of no use any more."""
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
        """Kills its group, without waiting until that has ended. Whoever waits for an answer is
        told then."""
        with self._lock:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def cut_off(self) -> None:
        """Whoever waits for an answer is told now that there is none."""
        with self._lock:
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kills its group, and waits until the process has ended; nobody asks it any more."""
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
    """The process that loads the module and forks. It is kept until this process ends, and started
    anew where it has died."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: Supervised | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts it, without waiting until the module is loaded."""
        with self._lock:
            self._started()

    def fork(self, post: Post) -> Fork:
        """A forked process, which may not be ready yet."""
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
        """Raises ForkFailed where it has died, or does so within a second: a fork that has never
        answered was perhaps not forked."""
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
                    "mcfuser.process.forkserver", [self._module], input=stream,
                    output=subprocess.DEVNULL,
                )  # fmt: skip
        return self._control


# --- the server's side ----------------------------------------------------------------------


def main() -> None:
    """Forks a process for each pair of descriptors that comes: its channel and its lifeline."""
    answer = import_module(sys.argv[1]).answer
    signal.signal(signal.SIGCHLD, _bury)
    control = socket.socket(fileno=0)
    gc.freeze()  # or each fork copies the pages of what it shares, at its first collection
    while True:
        said, descriptors, *_ = socket.recv_fds(control, 1, 2)
        if not said:
            return
        if os.fork() == 0:
            _live(answer, *descriptors)
        for one in descriptors:
            os.close(one)


def _bury(*_: object) -> None:
    """Of forks that have died, kills what they have started."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(dead.si_pid, signal.SIGKILL)
            os.waitpid(dead.si_pid, 0)


def _live(answer: Callable[[Any], object], channel: int, lifeline: int) -> NoReturn:
    """The life of a fork, which ends when its parent has hung up."""
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
