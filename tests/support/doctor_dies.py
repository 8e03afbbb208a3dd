"""A trial of mcfuser.doctor.trial that ends as its process' folder says (the test's)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from mcfuser.errors import InputError

HOW = "DOCTOR_DIES"
"""The variable of the environment that says how."""


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Crashes, hangs, refuses, or lacks a module."""
    how = os.environ[HOW]
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        time.sleep(60)
    if how == "refuse":
        raise InputError("TVM cannot build the module: no linker; install one")
    raise ImportError("libtvm_ffi.so: undefined symbol: TVMFFIObjectCreate")
