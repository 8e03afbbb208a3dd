"""Inspections that go wrong, for tests of who asked for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Does what the posted file says."""
    match Path(request["model"]).read_text().split():
        case ["die"]:
            os.abort()
        case ["hang"]:
            time.sleep(600)
        case ["spin"]:
            while True:
                pass
        case ["eat"]:
            bytearray(1 << 40)
        case ["meet", folder, name]:
            _meet(Path(folder), name)
        case ["list"]:
            return {} if not os.listdir(".") else {"found": 1}
    return {}


def _meet(folder: Path, name: str) -> None:
    """Notes how many were at work when this one was, itself included."""
    mark = folder / f"{name}.now"
    mark.touch()
    time.sleep(0.2)
    count = len(list(folder.glob("*.now")))
    (folder / f"{name}.{count}.met").touch()
    mark.unlink()
