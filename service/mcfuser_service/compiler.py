"""The compiler of a worker's jobs."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from mcfuser.arguments.in_place import in_place_pairs
from mcfuser.process.confined import Confined
from mcfuser.tune.progress import Listener
from mcfuser_db import Storage
from mcfuser_service.compilation import CompileRequest, CompileResult, compiled, start
from mcfuser_service.schemas import JobOptions
from mcfuser_service.settings import ServiceSettings


class Compiler:
    """Compiles the jobs of a worker, each in a process; that for the next job is started in
    advance."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._next: Confined | None = start(settings.job_memory)

    def __call__(
        self, model: Path, options: JobOptions, store: Storage, listener: Listener
    ) -> CompileResult:
        begun = time.monotonic()
        ready, self._next = self._next, None
        if ready is None or not ready.alive:
            ready = start(self._settings.job_memory)
        request = CompileRequest(
            model,
            options.device,
            asdict(options.tuning),
            options.shapes,
            self._settings.database_url,
            options.timeout,
            begun,
            asdict(self._settings.model_limits),
            precision=options.precision,
            buckets=options.buckets,
            in_place=in_place_pairs(options.in_place),
            team=self._settings.team,
        )
        try:
            return compiled(request, ready, listener)
        finally:
            self._next = start(self._settings.job_memory)

    def stop(self) -> None:
        """Ends the process that was started in advance."""
        if self._next is not None:
            self._next.end()
            self._next = None
