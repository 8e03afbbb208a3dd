"""`mcfuser serve` with a compiler that waits: `python -m tests.support.serve_slowly FOLDER PORT
SECONDS`. Its workers are forked (tests.support.forked_birth)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcfuser_db import again
from mcfuser_service import supervisor, work
from mcfuser_service.serve import serve
from mcfuser_service.settings import ServiceSettings
from tests.support import forked_birth


def main() -> None:
    folder, port, seconds = sys.argv[1:]
    os.environ["MCFUSER_TEST_SECONDS"] = seconds
    forked_birth.install()
    supervisor._LATE = 0.1  # a worker that died is replaced soon, however often
    again.delay = lambda tried: 0.1  # and its job tried again
    work.revision = lambda: "1"  # the same after a restart, even while the source is edited
    settings = ServiceSettings(data=Path(folder), port=int(port), grace=120, upload_stall=2)
    serve(settings, "tests.support.slow_compiler:load")


if __name__ == "__main__":
    main()
