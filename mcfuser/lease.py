"""One measurement at a time: a lock on the CPU that all processes of a user share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lease_file(resource: str) -> Path:
    """Where the lock of a resource (`cpu`) lies, one for each user of the machine."""
    return Path(tempfile.gettempdir()) / f"mcfuser-{os.getuid()}-{resource}.lock"


@contextmanager
def lease(resource: str, exclusive: bool) -> Iterator[None]:
    """Holds the resource: alone for timing, shared for compiling, which must not disturb it."""
    handle = os.open(lease_file(resource), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
