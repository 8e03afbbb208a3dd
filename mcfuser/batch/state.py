"""Keeps the outcomes of a batch's entries, so that later batches need not do them again.

Each entry has a folder with module.so, report.json, log.txt and, written last, outcome.json; and
module.intoto.jsonl where someone has signed the first two.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from mcfuser.arguments.files import check_readable
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.zoo import Entry
from mcfuser.errors import InputError
from mcfuser.revision import revision

OUTCOME = "outcome.json"
ENVELOPE = "module.intoto.jsonl"
BASELINE = "baseline"
"""The folder with the module that the baseline in mcfuser.lock was measured with."""
_LIBRARIES = ("apache-tvm", "apache-tvm-ffi", "triton", "onnx", "onnxruntime", "numpy")


def work_key(
    entry: Entry,
    device: str,
    at_hand: bool,
    locked: str | None = None,
    server: tuple[str, str | None] | None = None,
) -> str:
    """A hash of everything that an entry's outcome depends on: the model's bytes, options and code.

    `device` is the device's key; whether it is `at_hand` decides whether the module is checked.
    `locked` is a hash of the lock's kernels that it is built from, if it is, and `server` the
    address and the version of the server that compiles it, if one does. Of a server's job the
    address stands for the model.
    Raises InputError where the model cannot be read.
    """
    parts = {
        "model": file_hash(entry.model) if entry.job is None else entry.name,
        "shapes": entry.shapes,
        "options": asdict(entry.options),
        "device": [device, at_hand],
        "code": revision(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }
    if locked is not None:
        parts["locked"] = locked
    if server is not None:
        parts["server"] = server
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """The SHA-256 of a file; raises InputError where it cannot be read."""
    check_readable(path, f"'{path}'")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None


def known(folder: Path, key: str, beside: Path) -> Outcome | None:
    """The kept outcome for a key, if it was good and its module is still there and unchanged, as
    are the files with weights in the model's folder `beside`.

    An entry that failed before is done again: the cause may have been the machine.
    """
    kept = _kept(folder)
    if kept is None or kept[0] != key:
        return None
    outcome = kept[1]
    if not all(has(beside / name, digest) for name, digest in outcome.external.items()):
        return None
    module = folder / "module.so"
    if not outcome.good or not module.is_file() or file_hash(module) != outcome.module:
        return None
    return outcome


def last(folder: Path) -> Outcome | None:
    """The kept outcome of whatever was done last in an entry's folder, if there is one."""
    kept = _kept(folder)
    return kept[1] if kept is not None else None


def _kept(folder: Path) -> tuple[str, Outcome] | None:
    """The key and the outcome that are kept in an entry's folder; None where they cannot be
    read."""
    try:
        document = json.loads((folder / OUTCOME).read_bytes())
        return document["key"], Outcome.from_json(document["outcome"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def has(path: Path, digest: str) -> bool:
    """Whether a file can be read and has this SHA-256."""
    try:
        return file_hash(path) == digest
    except InputError:
        return False


def keep(folder: Path, key: str, outcome: Outcome) -> None:
    """Keeps an outcome; it is written atomically."""
    document = {"key": key, "outcome": outcome.to_json()}
    write(folder / OUTCOME, json.dumps(document, indent=2) + "\n")


def forget(folder: Path, baseline: str | None = None) -> None:
    """Removes what is kept of an entry, before it is done again. Raises InputError.

    The module with the SHA-256 `baseline` is kept beside, to be timed against the new one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if baseline is not None and has(folder / "module.so", baseline):
            (folder / BASELINE).mkdir(exist_ok=True)
            for name in ("report.json", "module.so"):
                os.replace(folder / name, folder / BASELINE / name)
        for name in (OUTCOME, ENVELOPE, "module.so", "report.json", "log.txt"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be used: {error.strerror}") from None


def write(path: Path, words: str) -> None:
    """Writes a text file atomically. Raises InputError where that fails."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(words)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Makes a folder and locks it: one batch at a time may write to it. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be used: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another batch writes to '{folder}'; wait for it") from None
        yield
    finally:
        os.close(handle)
