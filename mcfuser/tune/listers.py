"""Processes that look at a chain's plans beside this one.

Of a chain with hundreds of plans, to ask the model for the least time of each one's tiles takes
seconds (mcfuser.space.candidates.promising). The plans are dealt out to processes, which are kept:
they are forked from one that has loaded what they need (mcfuser.tune.lister).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.process.forkserver import Fork, ForkFailed, ForkServer, Post
from mcfuser.space.plan import Floats
from mcfuser.space.prune import SpaceKind

MANY = 64
"""Plans that are dealt out, at least: one takes 2.7 ms (a GPU's, EPYC)."""
MOST = 8
"""Processes, this one included: each takes the space of every chain apart anew."""
HANDS = 4
"""Parts for each process, as plans take unequal times."""
LONGEST = 60.0
"""Seconds after which a process is given up, and its part is done here."""
LookHere = Callable[[Sequence[int]], list[Floats]]
"""What gives the least times [tiles] of some plans of a chain, by their numbers."""


@dataclass(frozen=True, slots=True)
class LeastRequest:
    """Plans of a chain's space, by their numbers, whose tiles' least times are asked for."""

    chain: Chain
    device: Device
    space: SpaceKind
    shifts: bool
    plans: tuple[int, ...] = ()


def least_times(request: LeastRequest, count: int, here: LookHere) -> list[Floats]:
    """The least times of the tiles of each of `count` plans; of few plans all are computed `here`,
    as is what other processes do not answer."""
    if count < MANY or not (crew := _crew()).helpers:
        return here(range(count))
    return crew.least_times(request, count, here)


def stop() -> None:
    """Ends the processes, which are started again when they are needed."""
    _crew().stop()


@cache
def _crew() -> _Crew:
    """The one of this process: chains are priced long before anything is tuned."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _Crew(min(MOST, cores or 1) - 1)


class _Crew:
    """So many processes beside this one; each is forked when it is first asked something."""

    def __init__(self, helpers: int) -> None:
        self.helpers = helpers
        self._server = ForkServer("mcfuser.tune.lister")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._forks = dict[int, Fork]()
        self._one = threading.Lock()

    def least_times(self, request: LeastRequest, count: int, here: LookHere) -> list[Floats]:
        if not self._one.acquire(blocking=False):  # another thread has them all
            return here(range(count))
        try:
            return self._dealt(request, count, here)
        finally:
            self._one.release()

    def stop(self) -> None:
        with self._one:
            for fork in self._forks.values():
                fork.end()
            self._forks.clear()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _dealt(self, request: LeastRequest, count: int, here: LookHere) -> list[Floats]:
        hands = min(count, HANDS * (self.helpers + 1))
        left = deque(range(i, count, hands) for i in range(hands))
        times = dict[int, Floats]()

        def taken() -> Iterator[range]:
            with suppress(IndexError):
                while True:
                    yield left.popleft()

        def look_here() -> None:
            for part in taken():
                times.update(zip(part, here(part), strict=True))

        def help_out(number: int) -> None:
            for part in taken():
                answer = self._asked(number, replace(request, plans=tuple(part)))
                if answer is None:
                    left.append(part)
                    return
                times.update(zip(part, answer, strict=True))

        with ThreadPoolExecutor(self.helpers, "lister") as threads:
            helping = [threads.submit(help_out, i) for i in range(self.helpers)]
            look_here()
            for one in helping:
                one.result()
        look_here()  # what was not answered
        return [times[i] for i in range(count)]

    def _asked(self, number: int, request: LeastRequest) -> list[Floats] | None:
        """What a process answers; None where it does not, and is ended. Where none can be started,
        none is asked any more."""
        try:
            if number not in self._forks:
                self._folder = self._folder or tempfile.TemporaryDirectory(prefix="mcfuser-")
                self._forks[number] = self._server.fork(Post(Path(self._folder.name), 0))
            answer: list[Floats] = self._forks[number].ask(request, LONGEST)
        except (TimeoutError, EOFError, ForkFailed):
            fork = self._forks.pop(number, None)
            if fork is None or fork.pid is None:
                self.helpers = 0
            if fork is not None:
                fork.end()
            return None
        return answer
