"""One measurement at a time: a lock on the CPU that all processes of a user share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from mcfuser.errors import InputError


def folders() -> tuple[Path, ...]:
    """Where the locks may lie, the first that can be used: the user's runtime folder
    (XDG_RUNTIME_DIR, or what the system has in its place), else the folder for temporary files."""
    own = f"mcfuser-{os.getuid()}"
    with warnings.catch_warnings():  # that XDG_RUNTIME_DIR is not set is no news
        warnings.simplefilter("ignore")
        runtime = platformdirs.user_runtime_path()
    return runtime / own, Path(tempfile.gettempdir()) / own


@contextmanager
def lease(resource: str, exclusive: bool) -> Iterator[None]:
    """Holds the resource: alone for timing, shared for compiling, which must not disturb it.

    Raises InputError where no folder for the lock is the user's alone.
    """
    handle = _lock_file(f"{resource}.lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _lock_file(name: str) -> int:
    reasons = []
    for folder in folders():
        try:
            place = _private(folder)
        except OSError as error:
            reasons.append(f"'{folder}': {error.strerror}")
            continue
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=place)
        except OSError as error:
            reasons.append(f"'{folder / name}': {error.strerror}")
        finally:
            os.close(place)
    raise InputError(
        f"no folder for locks can be used ({'; '.join(reasons)}); set XDG_RUNTIME_DIR to a folder "
        "that is yours alone"
    )


def _private(folder: Path) -> int:
    """A handle on the folder, made if need be. Raises OSError where it is a link, another user's,
    or open to others: they could put a link in the place of a lock."""
    with contextlib.suppress(FileExistsError):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(handle)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.close(handle)
        raise PermissionError(0, "it is not the user's alone")
    return handle
