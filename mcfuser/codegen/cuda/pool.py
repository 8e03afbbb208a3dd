"""Processes that compile kernels side by side, kept for a whole search.

They are forked from one that has loaded Triton once, which saves each of them over a second. Each
leads a group of processes, so that ptxas ends with it, and ends with whoever asked for it.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType, TracebackType
from typing import Any

from mcfuser.codegen.cuda.cubin import Binary, attempt, compile_all
from mcfuser.codegen.triton import Source
from mcfuser.space.statement import Illegal

LONGEST = 30
"""Seconds after which a compilation is given up: what takes ptxas so long spills hopelessly."""
PRELOADED = ["mcfuser.codegen.cuda.preloaded"]
BEHIND = 5
"""How much compilers yield to whoever measures beside them, and to who feeds them."""
Pending = Future[Binary | Illegal]
"""A compilation under way; `Compilers.outcome` tells what it made."""


class Compilers:
    """So many compiling processes; use it as a context manager."""

    def __init__(self, workers: int, longest: int = LONGEST) -> None:
        self.workers, self.longest = workers, longest
        self._pool: ProcessPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
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

    def stop(self) -> None:
        """Ends every process, whatever it compiles: nobody waits for it any more."""
        self._under_way.clear()
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())  # public from Python 3.14 on
            answers: Any = self._pool._result_queue
            self._pool.shutdown(wait=False, cancel_futures=True)
            answers._writer.close()  # or the pool waits for the rest of one that is cut short
            for process in processes:
                _kill(process)
            for process in processes:
                connection.wait([process.sentinel], 1.0)
            self._pool = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def abandon(self) -> None:
        """Ends what is still compiled, if anything is, lest it slow down what comes next."""
        if self._under_way:
            self.stop()

    def warm(self) -> None:
        """Starts the process that forks the others, without waiting until it is ready."""
        if self._pool is None:
            self._started()
            forkserver.ensure_running()

    def begin(self, source: Source, arch: str) -> Pending:
        """Compiles a source while the caller goes on."""
        try:
            with _without_main():
                pending = self._started().submit(_attempt, source, arch, self.longest)
        except BrokenProcessPool:  # by one before
            self._pool = None
            return self.begin(source, arch)
        self._under_way.add(pending)
        pending.add_done_callback(self._under_way.discard)
        return pending

    def outcome(self, pending: Pending, source: Source, arch: str) -> Binary | Illegal:
        """What a compilation made, or why nothing; waits until it has ended. A compiler that
        crashed took those beside it along, so each is tried again, and then alone."""
        with contextlib.suppress(BrokenProcessPool):
            return pending.result()
        with contextlib.suppress(BrokenProcessPool):
            return self.begin(source, arch).result()
        return compile_all([source], arch, 1)[0]

    def compile(
        self, sources: Sequence[Source], arch: str, deadline: float = math.inf
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

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(PRELOADED)
            self._folder = self._folder or tempfile.TemporaryDirectory(
                prefix="mcfuser-", ignore_cleanup_errors=True
            )
            self._pool = ProcessPoolExecutor(self.workers, context, _ready, (self._folder.name,))
        return self._pool


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A process that is started meanwhile does not run the script that started this one. Compilers
    need nothing of it, and what it imports takes each of them longer than to load the rest."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _ready(folder: str) -> None:
    """What a compiler does first."""
    os.setpgrp()
    os.nice(BEHIND)
    tempfile.tempdir = folder
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """Ends this compiler's group after the process that wanted it, however that has ended: a
    terminal that closes tells its own group alone."""
    asked = multiprocessing.parent_process()
    assert asked is not None
    connection.wait([asked.sentinel])
    os.kill(0, signal.SIGKILL)


def _kill(process: BaseProcess) -> None:
    """Kills a compiler and all that it has started."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it leads no group yet, or has ended
        process.kill()


def _attempt(source: Source, arch: str, longest: int) -> Binary | Illegal:
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(longest)
    try:
        return attempt(source, arch)
    finally:
        signal.alarm(0)


def _late(number: int, frame: FrameType | None) -> None:
    raise Illegal("it took the compiler too long")
