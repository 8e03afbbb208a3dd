"""Folders and files that are for their owner's eyes alone: posted models are not everyone's."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """The folder with its parents, open to its owner alone where it is new; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(20, "it is not a folder", str(path))


def tighten(path: Path) -> None:
    """Closes to others what this program made before it took care of that."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(mode & ~_OTHERS)


def warn_if_open(folder: Path) -> None:
    """Says so where others may look into a folder that the user chose, and leaves it as it is."""
    if stat.S_IMODE(folder.stat().st_mode) & _OTHERS:
        log.warning(
            "data folder '%s' is open to other users; what mcfuser keeps in it is not, and "
            "chmod 700 closes the folder as well", folder,
        )  # fmt: skip


def make_file(path: Path) -> None:
    """An empty file where there is none; either way its owner's alone. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    tighten(path)
