"""A worker by itself with a compiler that waits: `python work_slowly.py FOLDER SECONDS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcfuser_service import room, work
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.worker import run
from tests.support.slow_compiler import load

if __name__ == "__main__":
    folder, seconds = sys.argv[1:]
    os.environ["MCFUSER_TEST_SECONDS"] = seconds
    room.WAIT = 0.5  # a job that waits for the database is tried again soon
    work.revision = lambda: "1"  # as the server of the tests has it (serve_slowly.py)
    run(ServiceSettings(data=Path(folder), grace=120), load, "work_slowly")
