"""Checks a posted model before it becomes a job, outside of the web process.

The web process never parses a model. It starts a process for each one, with limited memory,
processor time and time, without network, and in an empty folder.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcfuser.errors import ModelError
from mcfuser.extents import InputShapes, to_json
from mcfuser.process.confined import Limits, Stopped, run
from mcfuser_service.problems import ProblemError, problem
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

Inspect = Callable[[Path, InputShapes], Awaitable[None]]
"""Raises ModelError where a file is no model that can be compiled with these input shapes."""

_COPIES = 6  # of a model's bytes in memory at the same time while it is parsed
_UNPACKED = 32 << 20  # bytes of an archive that a second more is allowed for
_FILES = 64
_BESIDE = 1.0  # seconds on the clock beyond those of processor time: on a machine that is free, a
# model that never ends reaches the limit of processor time first
_NAMED = {
    "memory": "MCFUSER_INSPECT_MEMORY",
    "processor": "MCFUSER_INSPECT_SECONDS",
}


class Inspector:
    """Checks a few models at a time; others wait without holding a thread."""

    def __init__(
        self, settings: ServiceSettings, module: str = "mcfuser_service.inspect_child"
    ) -> None:
        self._settings = settings
        self._module = module
        self._turns = anyio.Semaphore(settings.inspections)
        self._threads = anyio.CapacityLimiter(settings.inspections)

    async def __call__(self, model: Path, shapes: InputShapes) -> None:
        """Raises ModelError where the model is wrong or exceeds a limit, ProblemError where it
        could not be looked at in time, or too many others wait."""
        await self._turn()
        try:
            await anyio.to_thread.run_sync(
                partial(self._inspect, model, shapes), limiter=self._threads
            )
        finally:
            self._turns.release()

    async def _turn(self) -> None:
        with anyio.move_on_after(self._settings.inspect_wait):
            await self._turns.acquire()
            return
        raise _busy("other models are being looked at; post this one again in a while")

    def _inspect(self, model: Path, shapes: InputShapes) -> None:
        settings = self._settings
        size = model.stat().st_size
        memory = settings.inspect_memory + _COPIES * min(size, settings.max_model_bytes)
        seconds = settings.inspect_seconds + size / _UNPACKED
        limits = Limits(memory, seconds, seconds + _BESIDE, _FILES, network=False)
        request = {
            "model": str(model.absolute()),
            "shapes": to_json(shapes),
            "limits": asdict(settings.model_limits),
        }
        try:
            run(self._module, request, limits)
        except Stopped as stopped:
            log.warning("inspection stopped: %s", stopped, extra={"why": stopped.why})
            log.debug("the last words: %s", stopped.words)
            if stopped.why == "time" or stopped.outside:  # it had no processor, or was killed
                raise _late() from None
            raise ModelError(_sentence(stopped, memory)) from None


def _busy(detail: str) -> ProblemError:
    return ProblemError(problem("busy", detail), {"Retry-After": "5"})


def _late() -> ProblemError:
    return _busy("the model could not be looked at in time on a busy machine; post it again")


def _sentence(stopped: Stopped, memory: int) -> str:
    if stopped.why == "death":
        return (
            f"the model cannot be read: {stopped}; it is damaged, or made to break its readers: "
            "export it again"
        )
    most = f"the {memory} bytes of memory" if stopped.why == "memory" else "the time"
    return (
        f"looking at the model took more than {most} that it may take ({stopped}); make the model "
        f"smaller or raise {_NAMED[stopped.why]}"
    )
