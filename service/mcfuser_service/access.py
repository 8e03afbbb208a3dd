"""Who asks, and what they may do: API keys in the Authorization header, and what a path needs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from mcfuser_db import ApiKey, KeyText, Storage, StorageError
from mcfuser_db.api_keys import api_key, note_key_use
from mcfuser_service.hosts import is_loopback
from mcfuser_service.problems import ProblemError, error
from mcfuser_service.rates import TokenBuckets
from mcfuser_service.settings import ServiceSettings

log = logging.getLogger(__name__)

KeyScope = Literal["submit", "read", "import", "admin"]
SCOPES: tuple[KeyScope, ...] = ("submit", "read", "import", "admin")
"""What a key may do: post, cancel and retry its jobs; see everything but keys; take kernels from
files, and remove kernels; everything."""
FRESH = 5.0
"""Seconds for which a key is taken for what it was: another process may have revoked it since."""
_USED = 60.0  # seconds between two notes that a key was used
PROBES = frozenset({"/livez", "/readyz"})
"""What orchestrators ask, which call a server by whatever address they know."""
_OPEN = frozenset({"/", "/healthz", "/openapi.json"}) | PROBES
_LONGEST = 200  # characters of a header that are looked at


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the id and the name of their key, None without one, and what they may
    do."""

    key: str | None
    name: str | None
    scopes: frozenset[str]

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    def may(self, scope: KeyScope) -> bool:
        return self.is_admin or scope in self.scopes


ANYONE = Caller(None, None, frozenset(SCOPES))
"""Who sends no key where none is needed."""


def caller_of(request: Request) -> Caller:
    """The caller of a request that was let in."""
    found = request.scope.get("user", ANYONE)
    assert isinstance(found, Caller)
    return found


def wants_keys(settings: ServiceSettings) -> bool:
    """Whether requests without a key are refused."""
    return settings.require_key or not (settings.insecure or is_loopback(settings.host))


def needed(method: str, path: str) -> KeyScope | None:
    """The scope that a request needs; None where everyone may send it.

    It is read from the path: an address that is added later is closed until this says otherwise.
    """
    if path in _OPEN or path.startswith("/page/"):
        return None
    if _within(path, "/v1/keys"):
        return "admin"
    if method in ("GET", "HEAD"):
        return "read"
    if _within(path, "/v1/jobs"):
        return "submit"
    return "import" if _within(path, "/v1/kernels") else "admin"


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


class Access:
    """Finds the caller of each request, and refuses those who may not send it."""

    def __init__(self, settings: ServiceSettings, store: Storage) -> None:
        self._required = wants_keys(settings)
        self._store = store
        self._buckets = TokenBuckets()
        self._known: dict[str, tuple[float, ApiKey]] = {}
        self._reading = asyncio.Lock()

    def forget(self, id: str) -> None:
        """Reads a key anew at its next use, because it was changed."""
        self._known.pop(id, None)

    async def caller(self, method: str, path: str, headers: Headers) -> Caller:
        """Who sends a request. Raises ProblemError where they may not, StorageError where the
        database does not answer."""
        scope = needed(method, path)
        words = _bearer(headers)
        if words is None:
            # Keys are made with a key, whatever the address: the first one by the command.
            if scope is not None and (self._required or _within(path, "/v1/keys")):
                raise _unknown(
                    "this needs a key: send the header 'Authorization: Bearer mcfuser_…'; "
                    "'mcfuser keys create' makes one",
                    given=False,
                )
            return ANYONE
        if scope is None:
            return ANYONE  # what everyone may see is shown with a key that has expired, too
        row = await self._row(words)
        found = Caller(row.id, row.name, frozenset(row.scopes))
        if row.requests is not None and row.period is not None:
            self._check_rate(row, row.requests, row.period)
        if not found.may(scope):
            raise ProblemError(
                error(
                    "not-allowed",
                    f"key '{row.name}' has the scopes {', '.join(row.scopes)}; this needs "
                    f"'{scope}'",
                ).details,
                {"WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{scope}"'},
            )
        return found

    async def _row(self, words: str) -> ApiKey:
        text = KeyText.parsed(words)
        if text is None:
            raise _unknown("the key has another form, or was not copied whole")
        row = await self._fresh(text.id)
        if row is None or not text.matches(row.hash):
            raise _unknown("the key is not known here")
        if row.revoked is not None:
            raise _unknown(f"key '{row.name}' was revoked on {row.revoked:%Y-%m-%d}")
        if row.expires is not None and row.expires <= self._store.now():
            raise _unknown(f"key '{row.name}' expired on {row.expires:%Y-%m-%d}")
        return row

    async def _fresh(self, id: str) -> ApiKey | None:
        """A key as it was FRESH seconds ago at most; many requests at once read it once."""
        if (row := self._kept(id)) is not None:
            return row
        async with self._reading:
            if (row := self._kept(id)) is not None:
                return row
            row = await run_in_threadpool(self._read, id)
            if row is not None:
                self._known[id] = (time.monotonic(), row)
            return row

    def _kept(self, id: str) -> ApiKey | None:
        at, row = self._known.get(id, (-math.inf, None))
        return row if time.monotonic() - at < FRESH else None

    def _read(self, id: str) -> ApiKey | None:
        row = api_key(self._store, id)
        if row is not None and row.revoked is None:
            before = (self._store.now() - row.used).total_seconds() if row.used else math.inf
            if before >= _USED:
                try:
                    note_key_use(self._store, id, _USED)
                except StorageError as error:  # the request is answered all the same
                    log.warning("use of a key not noted: %s", error, extra={"key": row.name})
        return row

    def _check_rate(self, row: ApiKey, count: int, seconds: float) -> None:
        wait = self._buckets.wait(row.id, count, seconds)
        if wait > 0:
            raise ProblemError(
                error(
                    "too-many-requests",
                    f"key '{row.name}' may make {count} requests in {seconds:g} s; ask again in "
                    f"{math.ceil(wait)} s",
                ).details,
                {"Retry-After": str(math.ceil(wait))},
            )


_REALM = 'Bearer realm="mcfuser"'


def _unknown(detail: str, given: bool = True) -> ProblemError:
    """RFC 6750: a request without a key is told no error code."""
    told = f'{_REALM}, error="invalid_token"' if given else _REALM
    return ProblemError(error("no-key", detail).details, {"WWW-Authenticate": told})


def _bearer(headers: Headers) -> str | None:
    """The key that a request is sent with; other schemes than Bearer are a proxy's business."""
    given = headers.getlist("authorization")
    found = [w for w in given if w[:7].lower() in ("bearer", "bearer ")]
    if not found:
        return None
    if len(found) > 1:
        raise _unknown("there are several keys; send one")
    return found[0][7:].strip()[:_LONGEST]


def secured(method: str, path: str) -> Mapping[str, Any]:
    """The part of an operation in /openapi.json that says which scope it needs."""
    scope = needed(method.upper(), path)
    if scope is None:
        return {"security": []}
    return {"security": [{"key": [scope]}, *([{}] if scope != "admin" else [])]}
