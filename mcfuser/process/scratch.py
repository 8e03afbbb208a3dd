"""Folders for temporary files, which somebody else removes where their owner was killed.

A folder's owner holds a lock on a file in it, which ends with the owner. A folder whose lock
nobody holds is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

PREFIX = "mcfuser-"
_LOCK = "owner"


class Scratch:
    """A new folder below the folder for temporary files, with the folders `names` in it; it is
    removed by `remove`, and at the latest as this process ends by itself."""

    def __init__(self, *names: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        for name in names:
            (self.path / name).mkdir()
        new = self.path / f"{_LOCK}.new"
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)  # a lock that is seen is held
        self._remove = weakref.finalize(self, _removed, self.path, lock)

    def remove(self) -> None:
        """Removes the folder with all that is in it; may be called again."""
        self._remove()


def _removed(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def remove_abandoned() -> int:
    """Removes this user's folders whose owners have ended; gives their number."""
    count = 0
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # it is held, or was removed meanwhile
            told = lock.parent.lstat()
            if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid():
                continue  # a link, or another user's
            handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for entry in lock.parent.iterdir():
                    if entry != lock:  # which goes last: what cannot be removed now is found again
                        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
                lock.unlink()
                lock.parent.rmdir()
                count += 1
            finally:
                os.close(handle)
    return count
