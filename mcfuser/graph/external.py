"""External data: tensors whose bytes are in files of the model's folder, beside the model's file.

A tensor names the file and the place of its bytes in it. Only regular files of the folder are
opened, whatever the names say, and only the bytes that a tensor's shape asks for are read.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from mcfuser.errors import ModelError

Octets = NDArray[np.uint8]

_DIGITS = 19  # of a number of bytes that fits in 63 bits


class DataFolder:
    """The folder of a model. Its files are mapped when they are first asked for, never copied."""

    def __init__(self, path: Path) -> None:
        self._root = Path(os.path.realpath(path))
        self._files: dict[str, Octets] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The locations that were read, as the model names them."""
        return tuple(self._files)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each of these files, in hexadecimal."""
        return {n: hashlib.sha256(data.data).hexdigest() for n, data in sorted(self._files.items())}

    def data(self, tensor: TensorProto, size: int) -> Octets:
        """The `size` bytes of a tensor with external data.

        Raises ModelError, naming the tensor and the file, where the file is not one of this folder,
        or the place does not have these bytes.
        """
        what = described(tensor)
        entries = Counter(entry.key for entry in tensor.external_data)
        if twice := [key for key, count in entries.items() if count > 1]:
            raise ModelError(f"{what}, with two values of '{twice[0]}'; export the model again")
        given = {entry.key: entry.value for entry in tensor.external_data}
        offset = _number(given.get("offset", "0"), "offset", what)
        length = _number(given.get("length", str(size)), "length", what)
        if length != size:
            raise ModelError(
                f"{what}, {length} bytes where its shape asks for {size}; export the model again"
            )
        location = given.get("location", "")
        if location not in self._files:
            self._files[location] = _mapped(self._root, location, what)
        whole = self._files[location]
        if offset + size > len(whole):
            raise ModelError(
                f"{what}, which has {len(whole)} bytes, so not the {size} from offset {offset} on; "
                "export or download the model again"
            )
        return whole[offset : offset + size]


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor names a file for its data, whatever else it says."""
    return tensor.data_location == TensorProto.EXTERNAL or len(tensor.external_data) > 0


def described(tensor: TensorProto) -> str:
    """The beginning of a message about a tensor with external data."""
    places = [entry.value for entry in tensor.external_data if entry.key == "location"]
    return f"tensor '{tensor.name}' is kept in the external file '{places[-1] if places else '?'}'"


def _number(words: str, key: str, what: str) -> int:
    if not (words.isascii() and words.isdigit()) or len(words) > _DIGITS:
        raise ModelError(
            f"{what}, with the {key} '{words[:40]}', which is no number of bytes; export the model "
            "again"
        )
    return int(words)


def _mapped(root: Path, location: str, what: str) -> Octets:
    """The bytes of a file below `root`; the file is mapped, and stays so while they are used."""
    try:
        handle = _opened(root, location, what)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, FileNotFoundError):
            raise ModelError(
                f"{what}, which is not in the model's folder; put it there, beside the model"
            ) from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{what}, which cannot be read: {reason}") from None
    try:
        size = os.fstat(handle).st_size
        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(handle, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(handle)


def _opened(root: Path, location: str, what: str) -> int:
    """A descriptor of a regular file below `root`.

    Links are followed before the file is opened, and no more while it is: one that is put in its
    place meanwhile is not followed.
    """
    named = PurePosixPath(location)
    if named.is_absolute() or not named.parts or ".." in named.parts:
        raise ModelError(
            f"{what}, which is no path inside of the model's folder; put the file there, and save "
            "the model anew"
        )
    found = Path(os.path.realpath(root / location))
    if not found.is_relative_to(root):
        raise ModelError(
            f"{what}, a link that leads out of the model's folder; put the file itself beside the "
            "model"
        )
    *folders, name = found.relative_to(root).parts or (".",)
    inside = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            outer, folder = folder, os.open(part, inside | os.O_DIRECTORY, dir_fd=folder)
            os.close(outer)
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), what)
        file = os.open(name, inside | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check_regular(os.fstat(file), what)
    except ModelError:
        os.close(file)
        raise
    return file


def _check_regular(status: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket, link or device"
        raise ModelError(f"{what}, which is {kind}, not a file; put the file beside the model")
