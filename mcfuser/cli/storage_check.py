"""Whether the data folder and the database can be used (mcfuser.diagnosis)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mcfuser.diagnosis import Diagnosis
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser_service.settings import ServiceSettings

FOLDER, DATABASE = "data folder", "database"
_ELSEWHERE = "set MCFUSER_DATA to a folder of your own"


def settings() -> Iterator[Diagnosis]:
    """Whether the settings in the environment can be read. Each MCFUSER_ variable is one."""
    from mcfuser_service.settings import read_settings

    try:
        found = read_settings()
    except InputError as error:
        sentence, _, remedy = str(error).rpartition("; ")
        yield Diagnosis("settings", "problem", sentence, remedy)
        return
    given = sorted(f"MCFUSER_{name.upper()}" for name in found.model_fields_set)
    words = f"changed by {', '.join(given)}" if given else "none is changed by the environment"
    yield Diagnosis("settings", "ok", words, facts={"set": given})


def data_folder() -> Iterator[Diagnosis]:
    """Whether what is learnt can be kept: who may read and write its folder, and its disk."""
    from mcfuser.doctor.machine import room

    path = _settings().data
    facts = {"path": str(path)}
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        words = f"'{path}' cannot be made: '{existing}' is no folder"
        yield Diagnosis(FOLDER, "problem", words, _ELSEWHERE, facts)
        return
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        words = f"'{existing}' cannot be read and written by this user"
        remedy = f"{_ELSEWHERE}, or let this user own it"
        yield Diagnosis(FOLDER, "problem", words, remedy, facts)
        return
    status = existing.stat()
    if existing != path:
        words = f"'{path}' is not there yet; it is made when something is to be kept"
        yield Diagnosis(FOLDER, "ok", words, facts=facts)
    elif stat.S_IMODE(status.st_mode) & 0o077:
        words = f"'{path}' is open to other users; posted models and their kernels are kept there"
        yield Diagnosis(FOLDER, "warning", words, f"run chmod 700 '{path}'", facts)
    else:
        yield Diagnosis(FOLDER, "ok", f"'{path}' is this user's alone", facts=facts)
    yield from room(FOLDER, existing, "MCFUSER_DATA")


def database() -> Iterator[Diagnosis]:
    """Whether the database opens. One of an older version is upgraded, as every command does it."""
    from mcfuser_db import Storage, StorageError

    found = _settings()
    shown, path = "the database of MCFUSER_DATABASE", found.data / "mcfuser.db"
    if found.database is None:
        shown = f"'{path}'"
        if not path.exists():
            words = f"{shown} is not there yet; it is made when the first kernel is kept"
            yield Diagnosis(DATABASE, "ok", words, facts={"path": str(path)})
            return
    remedy = "look at the URL" if found.database is not None else _moved(path)
    try:
        store = Storage(found.database_url)
        store.close()
    except InputError as error:
        sentence, _, advice = str(error).rpartition("; ")
        own = found.database is None and advice == "check the URL"
        yield Diagnosis(DATABASE, "problem", sentence or advice, remedy if own else advice)
        return
    except StorageError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        yield Diagnosis(DATABASE, "problem", f"{shown} cannot be used: {reason}", remedy)
        return
    yield Diagnosis(
        DATABASE,
        "ok",
        f"{shown} opens",
        facts={"path": str(path)} if found.database is None else {},
    )


def _moved(path: Path) -> str:
    return f"move '{path}' away, and a new one is made; kernels are searched again"


def _settings() -> ServiceSettings:
    from mcfuser_service.settings import read_settings

    return read_settings()
