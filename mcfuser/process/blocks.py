"""What the C library does with large blocks of memory that are freed."""

from __future__ import annotations

import ctypes

BLOCK = 1 << 20
"""Bytes of a block that is given back to the system as it is freed."""
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h


def return_blocks() -> bool:
    """Has this process give blocks of BLOCK bytes and more back as they are freed; tells whether
    the C library knows of that.

    glibc raises this size to that of the largest block that was freed, 32 MiB at most, and keeps
    what is smaller: a model's weights, which come and go, stay in memory several times.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, BLOCK))
