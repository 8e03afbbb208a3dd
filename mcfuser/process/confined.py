"""Work in a process of its own that can be limited and ended.

The process is the leader of a group of its own, works in an empty folder, and keeps what it writes
in a folder beside that; the whole group and both folders go when the work is over, however it
ended. `mcfuser.process.confinement` is the child's side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import mcfuser
from mcfuser import errors

_POLL = 0.1  # s between two looks at whether the work is still wanted
_KEPT = 8192  # bytes of the last words of a child
_ANSWER = 64 << 20  # bytes of one line: no answer is so long, results go through files

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_MEMORY = "it needed more memory than it may have"
_SHORT = re.compile(r"bad_alloc|MemoryError|[Mm]emory allocation|[Oo]ut of memory|allocate memory")
"""How libraries say that they are given no memory, before they end the process."""

Why = Literal["memory", "processor", "time", "death"]
Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the work may take; None is no limit.

    `memory` is bytes of its own data and `processor` CPU time in seconds, of each process;
    `files` are open ones of each process; `wall` is seconds from the request to the answer.
    Without `network` the work cannot open sockets and cannot start programs.
    """

    memory: int | None = None
    processor: float | None = None
    wall: float | None = None
    files: int | None = None
    network: bool = True


class Stopped(Exception):
    """The work ended without an answer: `why`, a sentence, and the process's last words.

    After a death, `fault` says that the process did something that the system forbids, or gave
    itself up, as C++ does: it would again. Others were killed, or had a Python error.
    """

    def __init__(self, why: Why, sentence: str, words: str = "", fault: bool = False) -> None:
        super().__init__(sentence)
        self.why = why
        self.words = words
        self.fault = fault


class Confined:
    """A process that will do one piece of work; use it as a context manager.

    It runs `answer(request, tell)` of the named module, which gives a JSON object, may call `tell`
    with JSON objects on the way, and may raise InputError. The process starts at once and imports
    the module meanwhile.
    """

    def __init__(self, module: str, limits: Limits = Limits()) -> None:
        self.limits = limits
        self._folder = tempfile.TemporaryDirectory(prefix="mcfuser-", ignore_cleanup_errors=True)
        self.scratch = Path(self._folder.name) / "scratch"
        empty = Path(self._folder.name) / "empty"
        empty.mkdir()
        self.scratch.mkdir()
        command = [sys.executable, "-m", "mcfuser.process.confinement"]
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(limits)), module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=empty, env=_environment(self.scratch), start_new_session=True,
        )  # fmt: skip
        self._pending = b""
        self._last = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.end()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kills what is left of the process and of all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._folder.cleanup()

    def run(
        self,
        request: Mapping[str, Any],
        tell: Tell = lambda message: None,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The answer to the request, once for each process.

        `check` is called ten times a second and may raise what ends the wait. Raises the
        InputError that the work raised, or Stopped.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: its last words tell why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        end = time.monotonic() + self.limits.wall if self.limits.wall is not None else None
        with selectors.DefaultSelector() as selector:
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            while True:
                message = self._message(selector, end, check)
                if "tell" in message:
                    tell(message["tell"])
                elif "answer" in message:
                    found: dict[str, Any] = message["answer"]
                    return found
                else:
                    raise _error(message)

    def _message(
        self, selector: selectors.BaseSelector, end: float | None, check: Callable[[], None]
    ) -> dict[str, Any]:
        while b"\n" not in self._pending:
            check()
            if end is not None and time.monotonic() > end:
                raise Stopped("time", f"it took longer than {self.limits.wall:.3g} s")
            for key, _ in selector.select(_POLL):
                self._read(selector, key)
            if not selector.get_map() or self._gone(selector):
                raise self._death()
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, 1 << 16)
        if not data:
            selector.unregister(key.fileobj)
        elif key.fileobj is self._process.stdout:
            self._pending += data
            if len(self._pending) > _ANSWER:
                raise Stopped("memory", f"its answer has more than {_ANSWER} bytes")
        else:
            self._last = (self._last + data)[-_KEPT:]

    def _gone(self, selector: selectors.BaseSelector) -> bool:
        """The process has ended and nothing is left to read; what it started may hold the pipes."""
        return self._process.poll() is not None and not selector.select(0)

    def _death(self) -> Stopped:
        code = self._process.wait()
        words = self._last.decode(errors="replace")
        if code == -signal.SIGXCPU:
            took = f"it took more than {self.limits.processor:.3g} s of processor time"
            return Stopped("processor", took, words)
        if self.limits.memory is not None and _SHORT.search(words):
            return Stopped("memory", _MEMORY, words)
        last = words.strip().splitlines()[-1:] if code > 0 else []
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        told = ": ".join([f"its process died of {how}", *last])
        return Stopped("death", told, words, fault=-code in _FAULTS)


def run(
    module: str, request: Mapping[str, Any], limits: Limits,
    tell: Tell = lambda message: None, check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """One piece of work in a process started for it; see `Confined`."""
    with Confined(module, limits) as confined:
        return confined.run(request, tell, check)


def _error(message: Mapping[str, Any]) -> Exception:
    if message.get("stopped") == "memory":
        return Stopped("memory", _MEMORY)
    kind = getattr(errors, str(message.get("kind")), errors.InputError)
    made: Exception = kind(str(message.get("error")))
    return made


def _environment(scratch: Path) -> dict[str, str]:
    """The parent's own, with a place for temporary files that goes with the process. A checkout
    that is not installed is found from another folder as well."""
    root = str(Path(str(mcfuser.__file__)).parent.parent)
    given = [str(Path(p).absolute()) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    installed = Path(root).name in ("site-packages", "dist-packages")
    places = given if installed or root in given else [*given, root]
    return {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(places)}
