"""Starts, watches, asks and ends child processes: all processes that run mcfuser's own modules.

- A child leads a process group; processes that it leaves there are killed when it has ended.
- It ends with its parent, however that ends (mcfuser.process.lifeline).
- It has its parent's environment, with additions; its limits are set before it imports anything
  else (mcfuser.process.limits).
- Its standard error is read continuously, and the end of it is kept: its last words.
- Every wait for it ends at a time on time.monotonic(); meanwhile the caller's `check` is called
  ten times a second.
- mcfuser.process.death.Death says why there is no answer: no time was left, it had too little
  memory or processor time, or it ended with a signal or a status.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from types import MappingProxyType
from typing import IO

import mcfuser
from mcfuser.process.birth import Birth
from mcfuser.process.death import Death, death_of
from mcfuser.process.limits import UNLIMITED, Limits
from mcfuser.process.oom import oom_kills
from mcfuser.process.scratch import Scratch

PIPE = subprocess.PIPE
Stream = IO[bytes] | int | None
"""A file, PIPE, or None for the parent's stream."""

_POLL = 0.1  # seconds between two checks of the child and of the caller
_KEPT = 8192  # bytes of a child's last words
_ANSWER = 64 << 20  # the largest answer in bytes: large results go through files
_LAST = 1.0  # seconds that a child has to end after it has closed its output
_KILLED = 60.0  # seconds after which a killed process has surely ended


def _still(*_: object) -> None:
    """The default `check`: the caller waits as long as it takes."""


class Supervised:
    """A process that runs `main` of a module (mcfuser.process.birth); it is started at once.

    `environment` has variables besides its parent's. With `scratch` it works in an empty folder and
    keeps temporary files in the folder `scratch`; both are removed with it. With `session` it leads
    a session as well: Linux then shares the processor between the two sessions as if each were one
    process (sched(7), autogroups). It, and a session that it leads, is nicer than its parent by
    `niceness`. The creator must call `end`.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        limits: Limits = UNLIMITED,
        environment: Mapping[str, str] = MappingProxyType({}),
        scratch: bool = False,
        session: bool = False,
        niceness: int = 0,
        input: Stream = PIPE,
        output: Stream = PIPE,
        errors: Stream = PIPE,
    ) -> None:
        self.limits = limits
        self._folder = Scratch("scratch", "empty") if scratch else None
        place = self._folder.path if self._folder is not None else None
        self.scratch = place / "scratch" if place is not None else None
        more = {"TMPDIR": str(self.scratch)} if place is not None else {}
        reading, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "mcfuser.process.birth"]
        try:
            self._process = Popen(
                [*command, Birth(reading, limits, niceness).to_json(), module, *arguments],
                stdin=input,
                stdout=output,
                stderr=errors,
                pass_fds=[reading],
                start_new_session=session,
                process_group=None if session else 0,
                cwd=place / "empty" if place is not None else None,
                env=_environment({**environment, **more}),
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)
        self._left = True  # processes of its group may be left
        self._ended_here = False
        self._oom_kills = oom_kills()
        self._pending, self._words = b"", bytearray()
        self._reader = threading.Thread(target=self._keep_words, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it lives. Once it has ended, the rest
        of its group is killed."""
        if self._process.poll() is not None and self._left:
            self._left = False
            self._kill()
        return self._process.returncode

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def killed_from_outside(self) -> bool:
        """Whether SIGKILL ended it that came from elsewhere: not from here, nor from Linux because
        memory was short. Where that cannot be known it is False."""
        killed = self.status == -signal.SIGKILL and not self._ended_here
        return killed and self._oom_kills is not None and self._oom_kills == oom_kills()

    def write(self, data: bytes, until: float = math.inf) -> Death | None:
        """Writes to its standard input; None when done, else the reason why this failed by
        `until`."""
        assert self._process.stdin is not None
        stream, view = self._process.stdin.fileno(), memoryview(data)
        os.set_blocking(stream, False)
        while view:
            if (left := until - time.monotonic()) <= 0:
                return Death("time")
            if _ready(stream, selectors.EVENT_WRITE, left):
                try:
                    view = view[os.write(stream, view) :]
                except OSError:
                    return self.death()
            elif not self.alive:
                return self.death()
        return None

    def close_input(self) -> None:
        """Closes its standard input: there are no more requests."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def line(self, until: float = math.inf, check: Callable[[], object] = _still) -> bytes | Death:
        """The next line of its standard output, or the reason why there is none by `until`. `check`
        may raise an exception to end the wait."""
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            check()
            if (left := until - time.monotonic()) <= 0:
                return Death("time")
            if _ready(stream, selectors.EVENT_READ, left):
                data = os.read(stream, 1 << 16)
                if not data:
                    return self.death()
                self._pending += data
                if len(self._pending) > _ANSWER:
                    return Death("memory", words=f"its answer has more than {_ANSWER} bytes")
            elif not self.alive and not _ready(stream, selectors.EVENT_READ, 0):
                return self.death()  # processes that it started still hold the pipe
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def wait(self, until: float = math.inf, check: Callable[[], object] = _still) -> int | None:
        """Waits for its end: the exit status, None where it still lives at `until`. `check` may
        raise an exception to end the wait."""
        while self.alive:
            check()
            if (left := until - time.monotonic()) <= 0:
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(left, _POLL))
        return self.status

    def death(self) -> Death:
        """How it ended. A child that has closed its output but does not end is killed."""
        if self.wait(time.monotonic() + _LAST) is None:
            self._end_now()
        self._reader.join(_LAST)
        words = self._words.decode(errors="replace")
        found = death_of(self.status, words, self.limits.memory is not None)
        return replace(found, outside=self.killed_from_outside)

    def terminate(self) -> None:
        """Sends SIGTERM; see `end`."""
        if self.alive:
            self._process.terminate()

    def end(self, polite: float = 0.0) -> None:
        """Ends it and all that it has started, and removes its folders.

        If `polite` is above 0, it is sent SIGTERM and has so many seconds to end by itself. Then
        the group is killed.
        """
        if polite > 0:
            self.terminate()
            self.wait(time.monotonic() + polite)
        if self.alive:
            self._end_now()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._reader.join(_LAST)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._folder is not None:
            self._folder.remove()

    def _end_now(self) -> None:
        self._ended_here = True
        self._kill()
        self.wait(time.monotonic() + _KILLED)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _keep_words(self) -> None:
        """Reads its standard error until all processes that can write to it have ended."""
        if self._process.stderr is None:
            return
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), 1 << 16):
                self._words += data
                del self._words[:-_KEPT]


def _ready(stream: int, event: int, seconds: float) -> bool:
    """Waits a moment; tells whether a pipe can be read or written."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        return bool(selector.select(max(0.0, min(seconds, _POLL))))


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """The parent's environment with additions. PYTHONPATH is extended so that a checkout that is
    not installed is found from another folder."""
    root = str(Path(str(mcfuser.__file__)).parent.parent)
    given = [str(Path(p).absolute()) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    installed = Path(root).name in ("site-packages", "dist-packages")
    places = given if installed or root in given else [*given, root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}
