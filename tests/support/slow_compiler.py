"""A compiler that waits as long as MCFUSER_TEST_SECONDS says, for the tests of the service.

It writes each start to `starts` in the data folder. A model that holds `crash` kills the worker.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcfuser.tune.progress import Progress
from mcfuser_db import Storage
from mcfuser_service.schemas import JobOptions
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.worker import CompileFunction, Listener


@dataclass
class Made:
    module: bytes
    report: Mapping[str, Any]


def load(settings: ServiceSettings) -> CompileFunction:
    steps = int(float(os.environ["MCFUSER_TEST_SECONDS"]) / 0.05)

    def compile_slowly(
        model: Path, options: JobOptions, cache: Storage, listener: Listener
    ) -> Made:
        """Has a child process, as a measurement has."""
        child = subprocess.Popen(["sleep", "7200"])
        with (settings.data / "starts").open("a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        if b"crash" in model.read_bytes():
            os.abort()
        try:
            for step in range(steps):
                listener(Progress("waiting", step, steps))
                time.sleep(0.05)
        finally:
            child.kill()
            child.wait()
        return Made(b"module of " + model.read_bytes()[-8:], {"steps": steps})

    return compile_slowly
