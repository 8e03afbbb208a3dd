"""A child process that answers requests line by line, and that may die of one."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any

NO_TIME = "no time left"
"""Why there is no answer where the deadline of whoever asked has passed."""

WAITS, WORKS = {"waits": True}, {"waits": False}
"""What a child says before it waits for a lease, and once it has it: others' work is not on its
time."""

ALONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""numpy's threads spin after a product: they spoil timings, and slow down whoever compiles."""

_LONGEST = 3600.0  # seconds of one wait: the system takes no endless ones


class Child:
    """`python -m module arguments..` that reads a JSON line for a request and writes JSON lines.

    `more` is what its environment has beside its parent's.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._errors: IO[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """A new process, without waiting until it is ready."""
        self.stop()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`stop` closes it)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **ALONE, **self._more},
        )

    def _last(self, code: int) -> str:
        """What a child said last that an error ended; of a signal it could say nothing."""
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[:200]}" if lines and code > 0 else ""

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None
        self._pending = b""

    def ask(
        self, request: Mapping[str, Any], count: int, limit: float, deadline: float = math.inf
    ) -> Iterator[dict[str, Any] | str]:
        """So many answers, each within `limit` seconds, all before `deadline` (time.monotonic).

        Where the child ends or is late, the last one says so instead, and the child is stopped.
        """
        late = self._send(json.dumps(request).encode() + b"\n", limit, deadline)
        if late is not None:
            yield late
            return
        for _ in range(count):
            answer = self.line(limit, deadline)
            yield answer
            if isinstance(answer, str):
                return

    def line(self, limit: float, deadline: float = math.inf) -> dict[str, Any] | str:
        """The next answer, or why there is none. While the child waits for a lease it has time."""
        end = time.monotonic() + limit
        while True:
            found = self._line(limit, end, deadline)
            if found == WAITS:
                end = math.inf
            elif found == WORKS:
                end = time.monotonic() + limit
            else:
                return found

    def _line(self, limit: float, end: float, deadline: float) -> dict[str, Any] | str:
        assert self._process is not None and self._process.stdout is not None
        stream = self._process.stdout
        while b"\n" not in self._pending:
            if not _ready(stream, selectors.EVENT_READ, min(end, deadline)):
                return self._late(limit, end, deadline)
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                code = self._process.wait()
                last = self._last(code)
                self.stop()
                return f"the measuring process died with status {code}{last}"
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, data: bytes, limit: float, deadline: float) -> str | None:
        """Writes a request, which a child that does not read may keep waiting; why it could not,
        if so."""
        assert self._process is not None and self._process.stdin is not None
        stream, end, view = self._process.stdin, time.monotonic() + limit, memoryview(data)
        os.set_blocking(stream.fileno(), False)
        while view:
            if not _ready(stream, selectors.EVENT_WRITE, min(end, deadline)):
                return self._late(limit, end, deadline)
            try:
                view = view[os.write(stream.fileno(), view) :]
            except OSError:
                self.stop()
                return "the measuring process died before it began"
        return None

    def _late(self, limit: float, end: float, deadline: float) -> str:
        self.stop()
        return NO_TIME if deadline < end else f"it ran longer than {limit:.3g} s"


def _ready(stream: IO[bytes], event: int, end: float) -> bool:
    """Waits until a pipe can be read or written, until `end` (time.monotonic) at most."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        while not selector.select(max(0.0, min(end - time.monotonic(), _LONGEST))):
            if time.monotonic() >= end:
                return False
        return True
