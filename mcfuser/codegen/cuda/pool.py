"""Processes that compile kernels side by side, kept for a whole search.

They are forked from one that has loaded Triton once, which saves each of them over a second. Each
leads a group of processes, so that ptxas ends with it, and ends with whoever asked for it.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType

from mcfuser.codegen.cuda.cubin import Binary, KernelRequest
from mcfuser.codegen.triton import TritonSource
from mcfuser.process.forkserver import GONE, Fork, ForkServer, Post
from mcfuser.space.statement import Illegal

LONGEST = 30
"""Seconds after which a compilation is given up: a kernel that takes so long spills too much."""
BEHIND = 5
"""Niceness of compilers: they yield to processes that measure, and to the one that feeds them."""
TRIES = 2
"""Processes that may die of one source before that is called its fault."""
Pending = Future[Binary | Illegal]
"""A compilation under way; `Compilers.outcome` tells what it made."""


class Abandoned(Exception):
    """A compilation was ended with all the others, before it had made anything."""


class Compilers:
    """So many compiling processes; use it as a context manager."""

    def __init__(self, workers: int, longest: int = LONGEST) -> None:
        self.workers, self.longest = workers, longest
        self._crew: _Crew | None = None
        self._under_way = set[Pending]()

    def __enter__(self) -> Compilers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def processes(self) -> frozenset[int]:
        """The numbers of the processes that compile or have compiled, and live."""
        return self._crew.processes if self._crew is not None else frozenset()

    def stop(self) -> None:
        """Ends every process, whatever it compiles: nobody waits for it any more."""
        self._under_way.clear()
        if self._crew is not None:
            self._crew.end()
            self._crew = None

    def abandon(self) -> None:
        """Ends what is still compiled, if anything is, lest it slow down what comes next."""
        if self._under_way:
            self.stop()

    def warm(self) -> None:
        """Starts the process that forks the others, without waiting until it is ready."""
        _server().start()

    def begin(self, source: TritonSource, arch: str) -> Pending:
        """Compiles a source while the caller goes on."""
        self._crew = self._crew or _Crew(self.workers)
        pending = self._crew.begin(KernelRequest(source, arch), self.longest)
        self._under_way.add(pending)
        pending.add_done_callback(self._under_way.discard)
        return pending

    def outcome(self, pending: Pending, source: TritonSource, arch: str) -> Binary | Illegal:
        """What a compilation made, or why nothing; waits until it has ended. One that was ended
        with others is begun again."""
        with contextlib.suppress(Abandoned):
            return pending.result()
        return self.begin(source, arch).result()

    def compile(
        self, sources: Sequence[TritonSource], arch: str, deadline: float = math.inf
    ) -> Iterator[tuple[int, Binary | Illegal]]:
        """Each source's number and binary, or the reason why there is none, as they come; those
        that are not done at the `deadline` (time.monotonic) are ended and left out."""
        pending = {self.begin(source, arch): i for i, source in enumerate(sources)}
        while pending:
            left = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
            done = futures.wait(pending, left, futures.FIRST_COMPLETED).done
            if not done:
                self.abandon()
                return
            for future in done:
                i = pending.pop(future)
                yield i, self.outcome(future, sources[i], arch)


@cache
def _server() -> ForkServer:
    """The one that all compilers of this process are forked from: to load Triton again for each
    search would take longer than many a search."""
    return ForkServer("mcfuser.codegen.cuda.compile_server")


class _Crew:
    """Compiling processes that end together, and a thread for each that is asked something.

    A process is forked where a thread finds none idle, and kept until the crew ends.
    """

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, "compiler")
        self._folder = tempfile.TemporaryDirectory(prefix="mcfuser-", ignore_cleanup_errors=True)
        self._changed = threading.Condition()
        self._busy, self._idle = set[Fork](), list[Fork]()
        self._over = False

    @property
    def processes(self) -> frozenset[int]:
        with self._changed:
            return frozenset(f.pid for f in (*self._busy, *self._idle) if f.pid is not None)

    def begin(self, request: KernelRequest, longest: float) -> Pending:
        return self._threads.submit(self._compile, request, longest)

    def end(self) -> None:
        """Ends every process, and waits until each has ended."""
        with self._changed:
            self._over = True
            idle, self._idle = self._idle, []
            for fork in (*self._busy, *idle):
                fork.hang_up()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for fork in idle:
            fork.end()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, GONE)
            for fork in self._busy:  # Triton is still being loaded
                fork.cut_off()
        self._folder.cleanup()

    def _compile(self, request: KernelRequest, longest: float) -> Binary | Illegal:
        for _ in range(TRIES):
            fork = self._taken()
            try:
                made: Binary | Illegal = fork.ask(request, longest)
            except TimeoutError:
                self._drop(fork)
                return Illegal("it took the compiler too long")
            except EOFError:
                self._drop(fork)
                if fork.pid is None:
                    _server().check()
            else:
                self._give_back(fork)
                return made
        return Illegal("the compiler crashed")

    def _taken(self) -> Fork:
        """A process that does nothing else."""
        with self._changed:
            if self._over:
                raise Abandoned
            post = Post(Path(self._folder.name), BEHIND)
            fork = self._idle.pop() if self._idle else _server().fork(post)
            self._busy.add(fork)
            return fork

    def _give_back(self, fork: Fork) -> None:
        with self._changed:
            if not self._over:
                self._busy.discard(fork)
                self._idle.append(fork)
                return
        self._drop(fork)

    def _drop(self, fork: Fork) -> None:
        """Ends a process that is of no use any more."""
        fork.end()
        with self._changed:
            self._busy.discard(fork)
            self._changed.notify()
            if self._over:
                raise Abandoned
