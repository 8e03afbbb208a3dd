"""What forks of a fork server do in the tests."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any


def answer(request: Any) -> object:
    match request:
        case "places":
            return {"scratch": tempfile.gettempdir(), "nice": os.nice(0), "parent": os.getppid()}
        case "crash":
            os.abort()
        case "bug":
            raise KeyError("x")
        case "sleep":
            time.sleep(3600)
    return request
