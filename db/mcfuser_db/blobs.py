"""Files named by the SHA-256 of their contents: posted models and compiled modules."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from mcfuser_db.private import make_folder, tighten

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ABANDONED = 24 * 3600.0  # seconds; no upload takes so long
_REMEMBERED = 10_000  # files whose digest was checked


class LostBlob(ValueError):
    """Bytes that were kept are missing or were changed."""


class Incoming:
    """Bytes that are being received into a temporary file; `keep` keeps them."""

    def __init__(self, file: BinaryIO, path: Path, blobs: Blobs) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._blobs = blobs
        self._hash = hashlib.sha256()

    def write(self, data: bytes | mmap) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def flushed(self) -> Path:
        """The file with all bytes received so far."""
        self._file.flush()
        return self.path

    def keep(self) -> str:
        """Moves the bytes to their final file, atomically; gives their digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        final = self._blobs.path(self.digest)
        make_folder(final.parent)
        os.replace(self.path, final)
        _sync(final.parent)
        return self.digest


class Blobs:
    """A folder of files named by the SHA-256 of their contents."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._arriving = root / "arriving"
        self._seen: dict[str, tuple[int, ...]] = {}
        for folder in (root, self._arriving):
            make_folder(folder)
            tighten(folder)

    def path(self, digest: str) -> Path:
        """The path for the bytes with a digest, whether they are kept or not; raises ValueError
        where `digest` is not a SHA-256 in hexadecimal."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"'{digest}' is not a sha256 in hexadecimal")
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def sound(self, digest: str) -> bool:
        """Whether the bytes are kept and unchanged.

        The file is read again only where its size, time or inode has changed.
        """
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if self._seen.get(digest) == state:
                    return True
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return False
        except OSError:  # it is not there, or the disk cannot read it
            return False
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[digest] = state
        return True

    def read(self, digest: str) -> bytes:
        """The bytes with a digest; raises LostBlob where they are missing or changed."""
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise LostBlob(f"the file of {digest} is gone") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise LostBlob(f"the file of {digest} no longer holds what it held")
        return data

    def whole(self, digest: str) -> Path:
        """The path of the bytes with a digest, which are read and compared with it; raises LostBlob
        where they are missing or changed."""
        path = self.path(digest)
        if not path.is_file():
            raise LostBlob(f"the file of {digest} is gone")
        if not self.sound(digest):
            raise LostBlob(f"the file of {digest} no longer holds what it held")
        return path

    def files(self) -> Iterator[tuple[str, int, float]]:
        """The digest of every file that is kept, its size in bytes, and when it was written
        (time.time)."""
        for folder in self.root.iterdir():
            if len(folder.name) != 2:
                continue
            for path in folder.iterdir():
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = path.stat()
                    if _DIGEST.fullmatch(path.name):
                        yield path.name, status.st_size, status.st_mtime

    def remove(self, digest: str, age: float) -> int:
        """Removes a file that was written more than `age` seconds ago; gives the bytes that this
        frees."""
        path = self.path(digest)
        try:
            status = path.stat()
            if status.st_mtime > time.time() - age:
                return 0
            path.unlink()
        except FileNotFoundError:
            return 0
        self._seen.pop(digest, None)
        return status.st_size

    def put(self, data: bytes | mmap) -> str:
        """Keeps bytes; gives their digest."""
        with self.arriving() as incoming:
            incoming.write(data)
            return incoming.keep()

    @contextmanager
    def arriving(self) -> Iterator[Incoming]:
        """A temporary file to write bytes to; it is removed with the block unless it was kept."""
        path = self._arriving / uuid4().hex
        try:
            with open(path, "xb", opener=_private) as file:
                yield Incoming(file, path, self)
        finally:
            path.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Removes the temporary files of processes that were killed; gives their number."""
        old = time.time() - _ABANDONED
        stale = [p for p in self._arriving.iterdir() if p.stat().st_mtime < old]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
