"""A child process that answers requests with lines of JSON, and that may die of a request."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mcfuser.process.death import Death
from mcfuser.process.limits import UNLIMITED, Limits
from mcfuser.process.supervised import Supervised

NO_TIME = "no time left"
"""The reason why there is no answer where the caller's deadline has passed."""

WAITS, WORKS = {"waits": True}, {"waits": False}
"""The messages of a child before it waits for a lease, and when it has it: the time for which it
waits does not count as its own."""

ALONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""The environment that keeps numpy to one thread: its threads spin after a product, which disturbs
timings and slows down compilers."""


class Child:
    """A process that runs `main` of a module with `arguments`.

    `main` reads requests from standard input and writes answers to standard output, one JSON object
    per line. The process has its parent's environment and the variables in `more`, and `limits`.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        more: Mapping[str, str] = MappingProxyType({}),
        limits: Limits = UNLIMITED,
    ) -> None:
        self._module, self._arguments = module, arguments
        self._environment, self._limits = {**ALONE, **more}, limits
        self._process: Supervised | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Starts a new process, and does not wait until it is ready."""
        self.stop()
        self._process = Supervised(
            self._module, self._arguments, self._limits, environment=self._environment
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def ask(
        self, request: Mapping[str, Any], count: int, limit: float, deadline: float = math.inf
    ) -> Iterator[dict[str, Any] | str]:
        """Sends a request and yields `count` answers, each within `limit` seconds, all before the
        `deadline` (time.monotonic).

        Where the child ends or is late, a sentence that says so is yielded in place of the answer,
        as the last one, and the child is stopped.
        """
        assert self._process is not None
        end = time.monotonic() + limit
        death = self._process.write(json.dumps(request).encode() + b"\n", min(end, deadline))
        if death is not None:
            yield self._ended(death, limit, end, deadline)
            return
        for _ in range(count):
            answer = self.line(limit, deadline)
            yield answer
            if isinstance(answer, str):
                return

    def greeting(self, limit: float, deadline: float = math.inf) -> dict[str, Any] | str:
        """What the child says before it is asked anything, or a sentence that says why there is
        nothing. One that has said nothing by the `deadline` goes on, and may be waited for again:
        it has not been asked for anything that comes too late."""
        assert self._process is not None
        end = time.monotonic() + limit
        line = self._process.line(min(end, deadline))
        if not isinstance(line, Death):
            found: dict[str, Any] = json.loads(line)
            return found
        late = line.why == "time" and deadline < end
        return NO_TIME if late else self._ended(line, limit, end, deadline)

    def line(self, limit: float, deadline: float = math.inf) -> dict[str, Any] | str:
        """The next answer, or a sentence that says why there is none. The time for which the child
        waits for a lease is not limited."""
        assert self._process is not None
        end = time.monotonic() + limit
        while True:
            line = self._process.line(min(end, deadline))
            if isinstance(line, Death):
                return self._ended(line, limit, end, deadline)
            answer: dict[str, Any] = json.loads(line)
            if answer == WAITS:
                end = math.inf
            elif answer == WORKS:
                end = time.monotonic() + limit
            else:
                return answer

    def _ended(self, death: Death, limit: float, end: float, deadline: float) -> str:
        """Stops the child; gives the reason why there is no answer."""
        self.stop()
        if death.why == "time":
            return NO_TIME if deadline < end else f"it ran longer than {limit:.3g} s"
        if death.status is None:
            return death.words  # its answer was too long
        last = f": {death.last[:200]}" if death.last and not death.signalled else ""
        return f"the measuring process died with status {death.status}{last}"
