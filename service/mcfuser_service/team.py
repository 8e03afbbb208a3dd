"""A team's cache, which is only read: a folder of exported files, or a server of mcfuser's."""

from __future__ import annotations

import json
import logging
import os
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

log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
"""How the names of exported files in a team's folder end."""
_SECONDS = 5.0
_MOST = 2 * (LONGEST_LINE + 1)  # bytes of a server's answer: a header and a line


def layered(own: Cache, where: str, key: str | None = None) -> Cache:
    """One's own cache over a team's, which is the folder or the URL `where`; the own one alone if
    that is empty. A server is sent the API `key`. Raises InputError where it is neither."""
    return LayeredCache(own, team_cache(where, key)) if where else own


def team_cache(where: str, key: str | None = None) -> Offer:
    """Looks up tuning records in a folder, or at a server whose URL begins with http, which is sent
    the API `key`. Raises InputError where it is neither."""
    if urlsplit(where).scheme in ("http", "https"):
        return TeamServer(where.rstrip("/"), partial(_fetched, key))
    folder = Path(where)
    if not folder.is_dir():
        raise InputError(
            f"MCFUSER_TEAM_CACHE is '{where[:200]}', which is no folder and no URL that begins "
            "with http; give a folder with files that mcfuser cache export wrote, or a server's "
            "address"
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
