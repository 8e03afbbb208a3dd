"""`mcfuser serve` with a compiler that waits: `python serve_slowly.py FOLDER PORT SECONDS`.

It writes each start to FOLDER/starts. A model that holds `crash` kills the worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import Store
from service import work
from service.schemas import Options
from service.serve import serve
from service.settings import Settings
from service.worker import Compiler, Progress

FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[3])


@dataclass
class Made:
    module: bytes
    report: Mapping[str, Any]


def compile_slowly(model: bytes, options: Options, cache: Store, progress: Progress) -> Made:
    """As long as it takes, with a child process beside it, as a measurement has."""
    child = subprocess.Popen(["sleep", "7200"])
    with (FOLDER / "starts").open("a") as file:
        file.write(f"{os.getpid()} {child.pid}\n")
    if b"crash" in model:
        os.abort()
    steps = int(SECONDS / 0.05)
    try:
        for step in range(steps):
            progress("waiting", step, steps)
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    return Made(b"module of " + model[-8:], {"steps": steps})


def load(settings: Settings) -> Compiler:
    return compile_slowly


if __name__ == "__main__":
    work.revision = lambda: "1"  # the same after a restart, even while the source is edited
    serve(Settings(data=FOLDER, port=int(sys.argv[2]), grace=120, upload_stall=2), load)
