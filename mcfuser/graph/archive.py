"""A zip or tar of a model's folder, unpacked: one ONNX file, and files with its weights.

Nothing that an archive says is believed: only plain files are written, below one folder, and no
more bytes and files than the limits allow, whatever sizes its headers give.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from mcfuser.errors import ModelError, SpaceError
from mcfuser.graph.limits import ModelLimits

HEAD = 512
"""The bytes of a file's beginning from which `is_archive` knows it."""
_ZIP, _GZIP = b"PK\x03\x04", b"\x1f\x8b"
_TAR, _TAR_AT = b"ustar", 257
_CHUNK = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, ValueError,
    UnicodeError,
)  # fmt: skip
_PLAIN = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an archive: its name and size as the archive gives them, why it is no plain file
    (None if it is one), whether it is a folder, and its bytes."""

    name: str
    size: int
    odd: str | None
    folder: bool
    opened: Callable[[], IO[bytes]]


def is_archive(head: bytes) -> bool:
    """Whether a file that begins so is a zip or a tar, compressed by gzip or not. No ONNX file
    begins so."""
    return head.startswith((_ZIP, _GZIP)) or head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def unpacked(archive: Path, folder: Path, limits: ModelLimits) -> Path:
    """Unpacks an archive into a folder, which is empty; the path of the one ONNX file in it.

    Raises ModelError, naming the member or the limit, where the archive is damaged or too large,
    holds anything but files and folders with names inside of it, or not exactly one ONNX file.
    Raises SpaceError where the disk is full.
    """
    taken: set[PurePosixPath] = set()
    left = limits.unpacked_bytes
    try:
        with archive.open("rb") as file:
            members = _zip if file.read(len(_ZIP)) == _ZIP else _tar
        for number, member in enumerate(members(archive), 1):
            limits.check("members", number, "the archive has {} members", more=True)
            path = _checked(member)
            if member.folder:
                continue
            if path in taken:
                raise ModelError(f"the archive has two members '{member.name}'; name each once")
            taken.add(path)
            if path.suffix.lower() == ".onnx":
                limits.check("model_bytes", member.size, f"'{member.name}' has {{}} bytes")
            left -= _written(member, folder / path, left, limits)
    except _DAMAGED as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the archive is damaged: {error}; make or send it again") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SpaceError("the disk has no space for the unpacked archive") from None
        raise ModelError(f"the archive cannot be unpacked: {error.strerror or error}") from None
    return folder / _model(taken)


def _model(files: set[PurePosixPath]) -> PurePosixPath:
    found = sorted(path for path in files if path.suffix.lower() == ".onnx")
    if len(found) != 1:
        told = ", ".join(f"'{path}'" for path in found[:3]) or "none"
        raise ModelError(
            f"the archive has {len(found)} ONNX files ({told}); put exactly one .onnx file into it"
        )
    return found[0]


def _checked(member: Member) -> PurePosixPath:
    """The path of a member; raises ModelError where it is no file or folder of the archive."""
    what = f"member '{member.name}' of the archive"
    if member.odd is not None:
        raise ModelError(f"{what} is {member.odd}; put plain files alone into it")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        raise ModelError(f"{what} has a path that leads out of it; name members from its folder on")
    if not path.parts and not member.folder:
        raise ModelError(f"{what} has no name; make the archive again")
    return path


def _written(member: Member, path: Path, left: int, limits: ModelLimits) -> int:
    """Writes a member to a file, and gives its size; at most `left` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with member.opened() as source, open(path, "xb", opener=_private) as target:
        while data := source.read(_CHUNK):
            size += len(data)
            if size > left:
                limits.check(
                    "unpacked_bytes",
                    limits.unpacked_bytes - left + size,
                    "the archive has {} bytes unpacked",
                    more=True,
                )
            target.write(data)
    if size != member.size:
        raise ModelError(
            f"member '{member.name}' of the archive has {size} bytes where it says {member.size}; "
            "make or send it again"
        )
    return size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            odd = None
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                odd = "a link, pipe or device"
            elif info.flag_bits & 1:
                odd = "encrypted"
            elif info.compress_type not in _PLAIN:
                odd = f"compressed by method {info.compress_type}, which is neither 0 nor 8"
            source = partial(opened.open, info)
            yield Member(info.orig_filename, info.file_size, odd, info.is_dir(), source)


def _tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r|*", errorlevel=2) as opened:
        for info in opened:
            odd = None
            if info.issparse() or not (info.isreg() or info.isdir()):
                odd = "a link, pipe, device or sparse file"
            source = partial(_extracted, opened, info)
            yield Member(info.name, info.size, odd, info.isdir(), source)


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None  # of a plain file
    return file
