"""Work for tests/test_confined.py, which goes wrong in each possible manner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from mcfuser.errors import ModelError


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    match request["do"]:
        case "echo":
            tell({"first": 1})
            print("not an answer")
            places = {"here": os.listdir("."), "scratch": tempfile.gettempdir()}
            return {**places, "asked": request["value"]}
        case "reach":
            return {
                "internet": _refused(lambda: socket.socket(socket.AF_INET)),
                "local": _refused(lambda: socket.socket(socket.AF_UNIX)),
                "program": _refused(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
            }
        case "memory":
            return {"size": len(bytearray(1 << 34))}
        case "spin":
            while True:
                pass
        case "start another":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            tell({"child": child.pid, "mine": os.getpid(), "scratch": tempfile.gettempdir()})
            time.sleep(600)
        case "abort":
            os.abort()
        case "mistake":
            raise ModelError("the model has 13 opsets; give it one")
        case "bug":
            raise KeyError("x")
    raise AssertionError(request)


def _refused(do: Callable[[], object]) -> bool:
    try:
        do()
    except PermissionError:
        return True
    return False
