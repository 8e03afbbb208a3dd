"""One measurement at a time: a lock file that all processes of a user share."""

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
    """The folders for lock files; the first that can be used has them.

    They are in the user's runtime folder (XDG_RUNTIME_DIR or the system's default), and in the
    folder for temporary files.
    """
    own = f"mcfuser-{os.getuid()}"
    with warnings.catch_warnings():  # it warns if XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        try:
            runtime = platformdirs.user_runtime_path()
        except OSError:  # it finds no folder that is this user's
            return (Path(tempfile.gettempdir()) / own,)
    return runtime / own, Path(tempfile.gettempdir()) / own


@contextmanager
def lease(resource: str, exclusive: bool) -> Iterator[None]:
    """Holds a resource while the block runs, and waits for it first.

    It is held exclusively for timing, and shared for compiling, which would disturb timing.

    Raises InputError where there is no folder for the lock that only the user can write to.
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
            descriptor = _private(folder)
        except OSError as error:
            reasons.append(f"'{folder}': {error.strerror}")
            continue
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=descriptor)
        except OSError as error:
            reasons.append(f"'{folder / name}': {error.strerror}")
        finally:
            os.close(descriptor)
    raise InputError(
        f"no folder for locks can be used ({'; '.join(reasons)}); set XDG_RUNTIME_DIR to a folder "
        "that is yours alone"
    )


def _private(folder: Path) -> int:
    """A file descriptor of the folder, which is made if need be.

    Raises OSError where it is a link, belongs to another user, or is open to others, who could put
    a link in the place of a lock.
    """
    with contextlib.suppress(FileExistsError):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(handle)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        os.close(handle)
        raise PermissionError(0, "it is not the user's alone")
    return handle
