"""Signs the folder that a compilation wrote, and checks it before anything in it is loaded.

Nothing here loads a module, or TVM.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mcfuser.arguments.files import check_readable
from mcfuser.errors import InputError, SignatureError, in_one_line
from mcfuser.signing.dsse import opened, sealed
from mcfuser.signing.key import SigningKey, VerifyingKey
from mcfuser.signing.statement import (
    MODULE,
    REPORT,
    ModuleStatement,
    Subject,
    read_statement,
    statement,
)

ENVELOPE = "module.intoto.jsonl"
"""The name of the file with the envelope: one line of JSON."""
LARGEST = 64 << 20
"""The largest envelope, and the largest report, in bytes."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found in a folder: a sentence for each thing that is wrong, and, where a key has
    signed one, the statement."""

    keyid: str
    wrong: tuple[str, ...]
    statement: ModuleStatement | None = None


def sign(folder: Path, key: SigningKey | None) -> bytes:
    """The line with the envelope for the module and the report in a folder; without a key that with
    the statement alone.

    Raises InputError where the files are not those of a compilation.
    """
    path = folder / REPORT
    try:
        with _plain(folder / MODULE) as file:
            size = os.fstat(file.fileno()).st_size
            module = Subject(_digest(file, size), size)
        with _plain(path) as file:
            report = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(
            f"'{folder}' is no folder that compile wrote: {error.filename} cannot be read: "
            f"{error.strerror}"
        ) from None
    if len(report) > LARGEST:
        raise InputError(f"report '{path}' has more than {LARGEST} bytes, which is the limit")
    stated = statement(report, module)
    return stated + b"\n" if key is None else sealed(stated, key).line


def verify(folder: Path, key: VerifyingKey, model: Path | None = None) -> Verification:
    """Compares a folder with what a key has signed: the envelope, both files and, where one is
    given, the `model` with the files of its weights."""
    try:
        stated = _stated(folder, key)
    except SignatureError as error:
        return Verification(key.keyid, (str(error),))
    wrong = [*_wrong_files(folder, stated, None)]
    if model is not None:
        wrong += _wrong_model(model, stated)
    return Verification(key.keyid, tuple(map(in_one_line, wrong)), stated)


@contextmanager
def verified(folder: Path, key: VerifyingKey) -> Iterator[Path]:
    """A folder, of this user's alone, with copies of the module and the report that a key has
    signed: what is loaded from it is what was checked, whatever becomes of the original meanwhile.

    It is removed with the block. Raises SignatureError, with all that is wrong.
    """
    stated = _stated(folder, key)
    with tempfile.TemporaryDirectory(prefix="mcfuser-verified-") as name:
        wrong = [*_wrong_files(folder, stated, Path(name))]
        if wrong:
            raise SignatureError("; ".join(wrong))
        yield Path(name)


def _stated(folder: Path, key: VerifyingKey) -> ModuleStatement:
    """The statement that a key has signed for a folder. Raises SignatureError."""
    try:
        with _plain(folder / ENVELOPE) as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise SignatureError(f"'{folder}' is not signed: it has no {ENVELOPE}") from None
    except OSError as error:
        raise SignatureError(f"{ENVELOPE} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise SignatureError(f"{ENVELOPE} has more than {LARGEST} bytes, which is the limit")
    return read_statement(opened(data, key, ENVELOPE), ENVELOPE)


def _wrong_files(folder: Path, stated: ModuleStatement, copies: Path | None) -> Iterator[str]:
    """A sentence for each file that is not the stated one. What is read is copied to `copies`."""
    for name, subject in sorted(stated.subjects.items()):
        try:
            with _plain(folder / name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != subject.size:  # said before it is read: the other one may be huge
                    yield f"{name} has {size} bytes; the signed one has {subject.size}"
                    continue
                digest = _digest(file, size, copies / name if copies is not None else None)
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"
        else:
            if digest != subject.sha256:
                yield f"{name} is not the signed one: its sha256 is {digest}"


def _wrong_model(model: Path, stated: ModuleStatement) -> Iterator[str]:
    """A sentence for the model, or for each file of its weights, that is not the stated one.

    Raises InputError where the model's own file cannot be read.
    """
    digest = _digest_of(model, f"model '{model}'")
    if digest == stated.model.archive:
        return
    if digest != stated.model.sha256:
        yield (
            f"model '{model}' is not the one that was compiled: its sha256 is {digest}, not "
            f"{stated.model.sha256}"
        )
        return
    for name, wanted in sorted(stated.model.external.items()):
        what = f"the file '{name}' with weights of model '{model}'"
        try:
            if _digest_of(model.parent / name, what) != wanted:
                yield f"{what} is not the one that was compiled"
        except InputError as error:
            yield str(error)


def _digest_of(path: Path, what: str) -> str:
    """The SHA-256 of a file that a user names. Raises InputError where it cannot be read."""
    check_readable(path, what)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror}") from None


def _plain(path: Path) -> BinaryIO:
    """A plain file, opened. Raises OSError, also for a link, and for what is no file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, not a file", str(path)) from None
        raise
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
    return file


def _digest(file: BinaryIO, size: int, copy: Path | None = None) -> str:
    """The SHA-256 of a file's first `size` bytes, which are copied meanwhile where a `copy` is
    asked for. Raises InputError where there is no space for that."""
    found = hashlib.sha256()
    with open(copy, "xb") if copy is not None else nullcontext() as target:
        while size > 0 and (data := file.read(min(size, _CHUNK))):
            found.update(data)
            size -= len(data)
            if target is not None:
                _write(target, data)
    return found.hexdigest()


def _write(target: BinaryIO, data: bytes) -> None:
    try:
        target.write(data)
        target.flush()
    except OSError as error:
        raise InputError(
            f"what is checked cannot be copied to '{target.name}': {error.strerror}; free some "
            "space, or set TMPDIR to another folder"
        ) from None
