"""Bytes kept under their own sha256: models that were posted, modules that were built."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ABANDONED = 24 * 3600.0  # s: no upload takes so long


class Incoming:
    """Bytes that are arriving; they are kept only by `keep`."""

    def __init__(self, file: BinaryIO, path: Path, blobs: Blobs) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._blobs = blobs
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def flushed(self) -> Path:
        """The file of all that has arrived, for others to read."""
        self._file.flush()
        return self.path

    def keep(self) -> str:
        """Makes the bytes last, whole or not at all; gives their digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        final = self._blobs.path(self.digest)
        final.parent.mkdir(exist_ok=True)
        os.replace(self.path, final)
        _sync(final.parent)
        return self.digest


class Blobs:
    """A folder of files named by the sha256 of what they hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._arriving = root / "arriving"
        self._arriving.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the bytes of that digest lie, if they do; raises ValueError where it is none."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"'{digest}' is not a sha256 in hexadecimal")
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def read(self, digest: str) -> bytes:
        """The bytes; raises FileNotFoundError, or ValueError where the disk has changed them."""
        data = self.path(digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"the file of {digest} no longer holds what it held")
        return data

    def put(self, data: bytes) -> str:
        with self.arriving() as incoming:
            incoming.write(data)
            return incoming.keep()

    @contextmanager
    def arriving(self) -> Iterator[Incoming]:
        """A place to write bytes to; what is not kept is removed at the end."""
        path = self._arriving / uuid4().hex
        try:
            with path.open("xb") as file:
                yield Incoming(file, path, self)
        finally:
            path.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Removes what killed processes were writing; gives how many files that were."""
        old = time.time() - _ABANDONED
        stale = [p for p in self._arriving.iterdir() if p.stat().st_mtime < old]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
