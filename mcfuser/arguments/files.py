"""Reads files that a user names; errors are one sentence."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from mcfuser.errors import InputError

LARGEST = 64 << 20
"""The largest size of a JSON file, in bytes."""


def check_readable(path: Path, what: str) -> None:
    """Raises InputError where a path is no regular file that can be opened; `what` names it.

    Pipes and devices are refused because they may never end.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kind = os.fstat(handle).st_mode
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{what} cannot be read: {reason}") from None
    if not stat.S_ISREG(kind):
        actual = "a folder" if stat.S_ISDIR(kind) else "a pipe, socket or device"
        raise InputError(f"{what} cannot be read: it is {actual}, not a file")


def read_model(path: Path) -> bytes:
    """The bytes of a model's file. Raises InputError."""
    check_readable(path, f"model '{path}'")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"model '{path}' cannot be read: {error.strerror}") from None


def read_bounded(path: Path, what: str, most: int) -> bytes:
    """The bytes of a file, `most` of them at the most; `what` names the file in messages. Raises
    InputError where it cannot be read or is larger."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{what} cannot be read: {reason}") from None
    if len(data) > most:
        raise InputError(f"{what} has more than {most} bytes, which is the limit")
    return data


def read_json(path: Path, what: str) -> dict[str, object]:
    """The object that a JSON file holds; `what` names the file in messages: `chain file 'x'`.

    Raises InputError where the file cannot be read, is larger than LARGEST, is not JSON, holds
    something other than an object, or is nested too deep for Python's reader.
    """
    check_readable(path, what)
    data = read_bounded(path, what, LARGEST)
    try:
        document = json.loads(data)
    except RecursionError:
        raise InputError(f"{what} is nested too deep to be read") from None
    except ValueError as error:
        raise InputError(f"{what} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{what} must hold an object, not {type(document).__name__}")
    return document
