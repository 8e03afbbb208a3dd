"""Folders and files that only their owner can read: posted models are confidential."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """Makes a folder, for its owner alone, and its parents if they are missing; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(20, "it is not a folder", str(path))


def tighten(path: Path) -> None:
    """Takes other users' access to a file or folder that an older version made."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS and status.st_uid == os.geteuid():
        path.chmod(mode & ~_OTHERS)


def warn_if_open(folder: Path) -> None:
    """Logs a warning where other users can read a folder that the user chose; it stays as it is."""
    if stat.S_IMODE(folder.stat().st_mode) & _OTHERS:
        log.warning(
            "data folder '%s' is open to other users; what mcfuser keeps in it is not, and "
            "chmod 700 closes the folder as well",
            folder,
        )


def make_file(path: Path) -> None:
    """Makes an empty file if there is none, and closes it to other users. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    tighten(path)
