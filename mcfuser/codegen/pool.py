"""Processes that compile kernels side by side, kept for a whole search.

They are forked from one that has loaded Triton once, which a machine of two cores notices.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import FrameType, TracebackType

from mcfuser.codegen.cubin import Binary, attempt, compile_all
from mcfuser.codegen.triton import Source
from mcfuser.space.statement import Illegal

LONGEST = 30
"""Seconds after which a compilation is given up: what takes ptxas so long spills hopelessly."""
PRELOADED = ["mcfuser.codegen.cubin", "triton.compiler", "triton.experimental.gluon._runtime"]
"""What every process has imported when it starts."""
Pending = Future[Binary | Illegal]
LATE = "it took the compiler longer than its peers"


def outcome(pending: Pending) -> Binary | Illegal:
    """What a compilation that has ended made, or why nothing."""
    try:
        return pending.result()
    except BrokenProcessPool:
        return Illegal("the compiler crashed, or one beside it")


class Compilers:
    """So many compiling processes; use it as a context manager."""

    def __init__(self, workers: int, longest: int = LONGEST) -> None:
        self.workers, self.longest = workers, longest
        self._pool: ProcessPoolExecutor | None = None

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
        if self._pool is None:
            return
        processes = list((self._pool._processes or {}).values())  # public from Python 3.14 on
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        self._pool = None

    def warm(self) -> None:
        """Starts every process, without waiting until they are ready."""
        if self._pool is None:
            pool = self._started()
            for _ in range(self.workers):
                pool.submit(_ready)

    def compile(
        self, sources: Sequence[Source], arch: str, patience: float = math.inf,
        late: list[tuple[int, Pending]] | None = None,
    ) -> Iterator[tuple[int, Binary | Illegal]]:  # fmt: skip
        """Each source's number and binary, or the reason why there is none, as they come.

        A compiler that crashes costs only the source that it crashed on. Once three quarters have
        come, the others have `patience` times as long as these took; then they are given up, or go
        on and are added to `late` (`outcome`).
        """
        pool, left = self._started(), set(range(len(sources)))
        pending: dict[Pending, int] = {}
        begun, end = time.monotonic(), math.inf
        try:
            for i in range(len(sources)):
                pending[pool.submit(_attempt, sources[i], arch, self.longest)] = i
            while left and time.monotonic() < end:
                running = [f for f, i in pending.items() if i in left]
                timeout = None if math.isinf(end) else max(0.0, end - time.monotonic())
                for future in wait(running, timeout, FIRST_COMPLETED).done:
                    found = future.result()
                    left.discard(pending[future])
                    yield pending[future], found
                if math.isinf(end) and 4 * len(left) <= len(sources):
                    end = time.monotonic() + patience * (time.monotonic() - begun)
        except BrokenProcessPool:
            self._pool = None
            for i in sorted(left):  # one of them took its process along, and the pool with it
                yield i, compile_all([sources[i]], arch, 1)[0]
            return
        for future, i in pending.items():
            if i in left and late is not None:
                late.append((i, future))
            elif i in left:
                future.cancel()
                yield i, Illegal(LATE)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(PRELOADED)
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context)
        return self._pool


def _attempt(source: Source, arch: str, longest: int) -> Binary | Illegal:
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(longest)
    try:
        return attempt(source, arch)
    finally:
        signal.alarm(0)


def _late(number: int, frame: FrameType | None) -> None:
    raise Illegal("it took the compiler too long")


def _ready() -> None:
    import triton.backends.compiler
    import triton.compiler  # noqa: F401
