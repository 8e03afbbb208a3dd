"""Whether an NVIDIA driver is at hand."""

from __future__ import annotations

import ctypes


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
