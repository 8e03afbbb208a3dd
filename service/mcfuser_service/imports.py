"""Imports of kernels over HTTP: one at a time, in a thread, told line by line."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

from mcfuser.errors import InputError
from mcfuser.tune.exchange import lines_of
from mcfuser_service.importing import Imported, ImportedLine, import_kernels
from mcfuser_service.problems import ProblemError, error, problem
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

_Tell = Callable[[dict[str, Any] | None], None]


class _Left(Exception):
    """The client has gone away, or the server ends."""


class Imports:
    """The imports of a server. Each takes turns with its workers at measuring."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._busy = Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Holds the only turn. Raises ProblemError where another import has it."""
        if not self._busy.acquire(blocking=False):
            words = "another file of kernels is being imported; send this one when that is done"
            raise ProblemError(problem("busy", words), {"Retry-After": "30"})
        try:
            yield
        finally:
            self._busy.release()

    def begin(self, file: Path, seconds: float, held: ExitStack) -> AsyncGenerator[str]:
        """Begins to import a file, each kernel within `seconds`, and gives the lines that tell of
        it. `held` is closed when the import has ended, which it does where the lines are not read
        to their end."""
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        left = Event()

        def tell(item: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, item)

        loop.run_in_executor(None, self._work, file, seconds, held, tell, left)
        return _lines(told, left)

    def _work(self, file: Path, seconds: float, held: ExitStack, tell: _Tell, left: Event) -> None:
        done = Imported()

        def each(line: ImportedLine) -> None:
            done.add(line)
            tell(line.to_json())

        def check() -> None:
            if left.is_set():
                raise _Left

        settings, why = self._settings, None
        try:
            with held:
                import_kernels(
                    file, settings.database_url, settings.job_memory, seconds,
                    tell=each, check=check, niceness=settings.niceness,
                )  # fmt: skip
        except InputError as wrong:
            why = str(wrong)
        except _Left:
            log.info("import was left by its client", extra={"kept": done.kept})
        except Exception:
            log.exception("import failed")
            why = "the server failed; its log says why"
        counts = {"kept": done.kept, "known": done.known, "refused": len(done.refused)}
        tell({**counts, "given_up": why})
        tell(None)


async def _lines(told: asyncio.Queue[dict[str, Any] | None], left: Event) -> AsyncGenerator[str]:
    try:
        while (item := await told.get()) is not None:
            yield json.dumps(item) + "\n"
    finally:
        left.set()


def check_lines(file: Path) -> None:
    """Raises ProblemError where a file does not begin as one of kernels."""
    with file.open("rb") as lines:
        try:
            next(lines_of(lines), None)
        except InputError as wrong:
            raise error("bad-kernels", f"the file of kernels cannot be read: {wrong}") from None
