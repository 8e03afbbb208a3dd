"""What the machine offers besides packages: a linker, folders for locks and temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mcfuser.diagnosis import Diagnosis
from mcfuser.errors import InputError
from mcfuser.process import linker as tools

LEAST, SCARCE = 64 << 20, 1 << 30
"""Bytes of a disk: below the first nothing can be compiled, below the second it is soon full."""


def linker() -> Iterator[Diagnosis]:
    """Whether modules can be linked."""
    found = tools.linker()
    if found is None:
        yield Diagnosis("linker", "problem", tools.ABSENT, tools.REMEDY)
        return
    yield Diagnosis("linker", "ok", f"modules are linked by {found}", facts={"path": found})


def locks() -> Iterator[Diagnosis]:
    """Whether measurements can wait for each other."""
    from mcfuser.measure.lease import folders, lease

    try:
        with lease("doctor", exclusive=False):
            pass
    except InputError as error:
        sentence, _, remedy = str(error).rpartition("; ")
        yield Diagnosis("lock folder", "problem", sentence, remedy)
        return
    used = next((f for f in folders() if (f / "doctor.lock").exists()), folders()[0])
    words = f"measurements wait for each other by locks in {used}"
    yield Diagnosis("lock folder", "ok", words, facts={"path": str(used)})


def temporary() -> Iterator[Diagnosis]:
    """Whether temporary files can be written."""
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
            file.flush()
            folder = Path(file.name).parent
    except OSError as error:
        yield Diagnosis(
            "temporary files", "problem", f"they cannot be written: {error.strerror or error}",
            "set TMPDIR to a folder that can be written to, on a disk with room",
        )  # fmt: skip
        return
    yield from room("temporary files", folder, "TMPDIR")


def room(subject: str, folder: Path, variable: str) -> Iterator[Diagnosis]:
    """How much room a folder's disk has; `variable` of the environment moves the folder."""
    usage = shutil.disk_usage(folder)
    facts = {"path": str(folder), "free": usage.free}
    words = f"{folder} has {_bytes(usage.free)} left"
    remedy = f"free some space, or set {variable} to a folder on another disk"
    if usage.free < LEAST:
        yield Diagnosis(subject, "problem", f"{words}: the disk is full", remedy, facts)
    elif usage.free < SCARCE:
        yield Diagnosis(subject, "warning", f"{words}, which large models may fill", remedy, facts)
    else:
        yield Diagnosis(subject, "ok", words, facts=facts)


def _bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
