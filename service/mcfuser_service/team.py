"""A team's cache, which is only read: a folder of exported files, a server of mcfuser's, or an
artefact in an OCI registry."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx

from mcfuser.errors import InputError
from mcfuser.tune.exchange import LONGEST_LINE, TuningRecord, lines_of, read_line
from mcfuser.tune.key import CacheKey
from mcfuser.tune.layers import LayeredCache, Offer
from mcfuser.tune.tuned import Cache
from mcfuser_service.oci import transfer
from mcfuser_service.oci.reference import Reference, read_reference
from mcfuser_service.settings import Team

log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
"""How the names of exported files in a team's folder end."""
FRESH = 300.0
"""Seconds for which a tag is taken to be where it was."""
_SECONDS = 5.0
_TRANSFER = 60.0  # seconds that an artefact may take to be pulled
_MOST = 2 * (LONGEST_LINE + 1)  # bytes of a server's answer: a header and a line


def layered(own: Cache, team: Team) -> Cache:
    """One's own cache over a team's; the own one alone if there is none. Raises InputError."""
    return LayeredCache(own, team_cache(team)) if team.where else own


def team_cache(team: Team) -> Offer:
    """Looks up tuning records in a team's cache. Raises InputError where that is none."""
    scheme = urlsplit(team.where).scheme
    if scheme in ("http", "https"):
        return TeamServer(team.where.rstrip("/"), partial(_fetched, team.key))
    if scheme == "oci":
        transfer.check_installed()
        return TeamArtefact(read_reference(team.where), team.folder)
    folder = Path(team.where)
    if not folder.is_dir():
        raise InputError(
            f"MCFUSER_TEAM_CACHE is '{team.where[:200]}', which is no folder and no URL of a "
            "known kind; give a folder with files that mcfuser cache export wrote, a server's "
            "address that begins with http, or oci://HOST/REPOSITORY:TAG"
        )
    return TeamFolder(folder)


@dataclass
class TeamFolder:
    """The files of a folder that end in SUFFIX. They are read at the first question, and then only
    the lines that are asked for; what cannot be read is logged and left out."""

    folder: Path
    places: dict[str, tuple[Path, int]] | None = field(default=None)
    """Where the record with a key is, by the key's digest: a file, and a line."""

    def __call__(self, key: CacheKey) -> TuningRecord | None:
        if self.places is None:
            self.places = self._found()
        place = self.places.get(key.digest)
        if place is None:
            return None
        path, number = place
        try:
            with path.open("rb") as file:
                line = next((text for n, text in lines_of(file) if n == number), b"")
            return read_line(line)
        except (OSError, InputError) as error:
            log.warning("line %d of the team's %s is left out: %s", number, path, error)
            return None

    def _found(self) -> dict[str, tuple[Path, int]]:
        places: dict[str, tuple[Path, int]] = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                with open(path, "rb", opener=_regular) as file:
                    places |= {digest: (path, n) for n, digest in _digests(file)}
            except (OSError, InputError) as error:
                log.warning("the team's file %s is left out: %s", path, error)
        return places


def _regular(path: str, flags: int) -> int:
    """Opens without waiting: a pipe without a writer is empty."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _digests(file: BinaryIO) -> list[tuple[int, str]]:
    """The numbers of a file's lines that have a cache key, and its digest."""
    found = []
    for number, line in lines_of(file):
        try:
            found.append((number, CacheKey.from_json(json.loads(line)["made"]).digest))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    return found


@dataclass
class TeamServer:
    """A server's /v1/kernels/export. Where it does not answer, that is logged, and this process
    asks it no more."""

    url: str
    fetch: Callable[[str], bytes]
    gone: bool = False

    def __call__(self, key: CacheKey) -> TuningRecord | None:
        if self.gone:
            return None
        try:
            answer = self.fetch(f"{self.url}/v1/kernels/export?key={key.digest}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("the team's cache at %s does not answer: %s", self.url, error)
            self.gone = True
            return None
        lines = answer.splitlines()
        try:
            return read_line(lines[1]) if len(lines) > 1 else None
        except InputError as error:
            log.warning("a kernel of the team's cache at %s is refused: %s", self.url, error)
            return None


@dataclass
class TeamArtefact:
    """The artefact of an OCI registry. It is pulled at the first question, and kept in a folder of
    its own under `folder`; a registry is asked for a tag again when FRESH seconds have passed,
    and the artefact is pulled again where the tag has moved. Where the registry fails, that is
    logged, and what was pulled last serves.
    """

    reference: Reference
    folder: Path
    pull: Callable[[Path, Reference, transfer.Login, str | None], transfer.Pulled] = transfer.pull
    clock: Callable[[], float] = time.monotonic
    asked: float = float("-inf")
    """When the registry was asked last, on the clock."""
    lines: TeamFolder | None = None

    def __call__(self, key: CacheKey) -> TuningRecord | None:
        if self.clock() - self.asked >= FRESH:
            self.asked = self.clock()
            self._refresh()
        return self.lines(key) if self.lines is not None else None

    @property
    def own(self) -> Path:
        """The folder of this reference's file, which is named after its digest."""
        return self.folder / hashlib.sha256(str(self.reference).encode()).hexdigest()[:32]

    def _refresh(self) -> None:
        known = _intact(self.own)
        if known is None or self.reference.digest is None:  # what a digest names does not change
            try:
                self._pull(known)
            except (InputError, OSError) as error:
                kept = "; what was pulled before serves" if known is not None else ""
                log.warning("the team's cache is not refreshed: %s%s", error, kept)
        if self.lines is None and (known is not None or _intact(self.own) is not None):
            self.lines = TeamFolder(self.own)

    def _pull(self, known: str | None) -> None:
        """Pulls the artefact unless it has the digest `known`, in place of the one before."""
        self.own.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.own) as folder:
            file = Path(folder) / "pulled"
            pulled = self.pull(file, self.reference, transfer.Login(seconds=_TRANSFER), known)
            if pulled.layer == known:
                return
            target = self.own / f"{pulled.layer.removeprefix('sha256:')}{SUFFIX}"
            os.replace(file, target)
        for other in self.own.glob(f"*{SUFFIX}"):
            if other != target:
                other.unlink(missing_ok=True)
        self.lines = TeamFolder(self.own)


def _intact(folder: Path) -> str | None:
    """The digest of the file that is kept in a folder, None where there is none, or it is not as
    its name says: that one is removed."""
    for path in folder.glob(f"*{SUFFIX}"):
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == path.stem:
            return f"sha256:{found}"
        path.unlink(missing_ok=True)
    return None


def _fetched(key: str | None, url: str) -> bytes:
    """The first bytes of an answer. No redirect is followed: the key is for this server alone."""
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    with httpx.stream("GET", url, headers=headers, timeout=_SECONDS) as answer:
        if answer.status_code != 200:
            refused = answer.status_code in (401, 403)
            advice = "; MCFUSER_TEAM_CACHE_KEY must be a key of its" if refused else ""
            raise httpx.HTTPError(f"its answer has the status {answer.status_code}{advice}")
        data = b""
        for part in answer.iter_bytes():
            data += part
            if len(data) > _MOST:
                break
    return data[:_MOST]
