"""In place of mcfuser_service.import_child: some lines end the process, or take for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from mcfuser.errors import InputError


def answer(request, tell) -> dict[str, Any]:
    for number, word in enumerate(Path(request["file"]).read_text().split(), 2):
        if number <= request["after"]:
            continue
        if word == "unreadable":
            raise InputError("it is no file of kernels")
        if word == "before":
            os._exit(3)
        tell({"line": number})
        if word == "dies":
            os._exit(3)
        if word == "hangs":
            time.sleep(3600)
        tell({"line": number, "outcome": word, "words": "a reason"})
    return {}
