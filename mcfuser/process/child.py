"""A child process that answers requests line by line, and that may die of one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mcfuser.process.death import Death
from mcfuser.process.supervised import Supervised

NO_TIME = "no time left"
"""Why there is no answer where the deadline of whoever asked has passed."""

WAITS, WORKS = {"waits": True}, {"waits": False}
"""What a child says before it waits for a lease, and once it has it: others' work is not on its
time."""

ALONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""numpy's threads spin after a product: they spoil timings, and slow down whoever compiles."""


class Child:
    """A process that runs `main` of a module with these arguments, which reads a JSON line for a
    request from standard input and writes JSON lines to standard output.

    `more` is what its environment has beside its parent's.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._module, self._arguments = module, arguments
        self._environment = {**ALONE, **more}
        self._process: Supervised | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """A new process, without waiting until it is ready."""
        self.stop()
        self._process = Supervised(self._module, self._arguments, environment=self._environment)

    def stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def ask(
        self, request: Mapping[str, Any], count: int, limit: float, deadline: float = math.inf
    ) -> Iterator[dict[str, Any] | str]:
        """So many answers, each within `limit` seconds, all before `deadline` (time.monotonic).

        Where the child ends or is late, the last one says so instead, and the child is stopped.
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

    def line(self, limit: float, deadline: float = math.inf) -> dict[str, Any] | str:
        """The next answer, or why there is none. While the child waits for a lease it has time."""
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
        """Why there is no answer, once the child is stopped."""
        self.stop()
        if death.why == "time":
            return NO_TIME if deadline < end else f"it ran longer than {limit:.3g} s"
        if death.status is None:
            return death.words  # of an answer that had no end
        last = f": {death.last[:200]}" if death.last and not death.signalled else ""
        return f"the measuring process died with status {death.status}{last}"
