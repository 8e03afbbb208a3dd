"""Talks to a server of mcfuser (docs/service.md): posts a model, follows its job, fetches files.

A request is tried again for a while: a server may be restarted, or ask to be asked later. Where it
cannot be reached at all, it is not asked again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mcfuser.batch.address import public
from mcfuser.batch.entry import Unreachable
from mcfuser.errors import InputError

FIRST, PATIENCE = 5.0, 60.0
"""Seconds for which a server that does not answer is asked again: before it has answered once, and
after that."""
_PAUSE = 0.5  # seconds between two tries
_LATER = {429, 502, 503, 504, 507}
"""Statuses by which a server asks to be asked later."""
_LONGEST = 60.0  # seconds of one pause that a server asks for
_CHUNK = 1 << 20

Pause = Callable[[float], None]
"""Waits for so many seconds; raises an exception where the waiting is to end."""


class ServerRefusal(Exception):
    """A server refuses a request; `status` is HTTP's, and the sentence is the server's."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class ServerClient:
    """A server at an address, whose `version` is known once it was greeted.

    `patience` are the seconds for which it is asked again; once it could not be reached, it is
    `down` for good.
    """

    address: str
    client: httpx.Client
    patience: float
    version: str | None = None
    down: str | None = None

    @property
    def shown(self) -> str:
        """The address without a password."""
        return public(self.address)

    def greet(self) -> None:
        """Learns the server's `version`, which stays None where the server cannot be reached.
        Raises InputError where it is none of mcfuser."""
        try:
            answer = self._asked("GET", "/healthz", time.sleep, good=(200, 503))
            found = _object(answer).get("version")
        except Unreachable:
            return
        except ServerRefusal as refusal:
            raise InputError(f"'{self.shown}' is no server of mcfuser: {refusal}") from None
        if not isinstance(found, str):
            raise InputError(f"'{self.shown}' is no server of mcfuser: its /healthz has no version")
        self.version = found

    def check_key(self) -> None:
        """Raises InputError where the server refuses the key that requests are sent with, or wants
        one, or where the key may not read: a batch reads what it has posted."""
        if self.version is None:
            return
        try:
            self._asked("GET", "/v1/devices", time.sleep)
        except Unreachable:
            return
        except ServerRefusal as refusal:
            if refusal.status in (401, 403):
                what = "requests without a key, which MCFUSER_API_KEY may have"
                if "authorization" in self.client.headers:
                    what = "the key in MCFUSER_API_KEY"
                raise InputError(f"'{self.shown}' refuses {what}: {refusal}") from None

    def post(self, body: Path, options: Sequence[tuple[str, str]], pause: Pause) -> dict[str, Any]:
        """The job of a model: a new one, or that of an equal post before. Raises Unreachable and
        ServerRefusal."""
        return _object(self._asked("POST", "/v1/jobs", pause, (202,), options, body))

    def job(self, name: str, pause: Pause) -> dict[str, Any]:
        """A job, as far as it is. Raises Unreachable and ServerRefusal."""
        return _object(self._asked("GET", f"/v1/jobs/{name}", pause))

    def report(self, name: str, path: Path, pause: Pause) -> None:
        """Writes a job's report. Raises Unreachable and ServerRefusal."""
        answer = self._asked("GET", f"/v1/jobs/{name}/report", pause)
        _object(answer)
        _write(path, answer.content)

    def attestation(self, name: str, path: Path, pause: Pause) -> None:
        """Writes the signed statement of a job's module; without one, removes the file. Raises
        Unreachable and ServerRefusal."""
        try:
            answer = self._asked("GET", f"/v1/jobs/{name}/attestation", pause)
        except ServerRefusal as refusal:
            if refusal.status != 404:
                raise
            path.unlink(missing_ok=True)
            return
        _write(path, answer.content)

    def module(self, name: str, path: Path, digest: str, pause: Pause) -> None:
        """Writes a job's module, whose SHA-256 must be the `digest`. Raises Unreachable and
        ServerRefusal."""
        partial = path.with_name(f"{path.name}.part")
        self._asked("GET", f"/v1/jobs/{name}/module", pause, sink=partial)
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            partial.unlink()
            raise ServerRefusal(502, f"the module's SHA-256 is {found[:16]}, not {digest[:16]}")
        os.replace(partial, path)

    def _asked(
        self,
        method: str,
        path: str,
        pause: Pause,
        good: tuple[int, ...] = (200,),
        options: Sequence[tuple[str, str]] = (),
        body: Path | None = None,
        sink: Path | None = None,
    ) -> httpx.Response:
        """The answer to a request, which is made again while the server does not answer, or asks
        for that. A good answer's body is written to the `sink`, if there is one."""
        end = time.monotonic() + self.patience
        while True:
            if self.down is not None:
                raise Unreachable(self.down)
            try:
                answer = self._once(method, path, options, body, sink)
            except httpx.TransportError as error:
                if time.monotonic() > end:
                    why = str(error) or type(error).__name__
                    self.down = f"'{self.shown}' cannot be reached: {why}"
                    continue
                pause(_PAUSE)
                continue
            self.patience = PATIENCE
            if answer.status_code in good:
                return answer
            if answer.status_code not in _LATER or _for_good(answer):
                raise ServerRefusal(answer.status_code, _detail(answer))
            pause(_asked_pause(answer))
            end = time.monotonic() + self.patience

    def _once(
        self,
        method: str,
        path: str,
        options: Sequence[tuple[str, str]],
        body: Path | None,
        sink: Path | None,
    ) -> httpx.Response:
        url = f"{self.address}{path}"
        if sink is not None:
            return self._received(method, url, sink)
        if body is None:
            return self.client.request(method, url)
        with body.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            parts = iter(lambda: file.read(_CHUNK), b"")
            headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
            params = httpx.QueryParams(list(options))
            return self.client.request(method, url, params=params, content=parts, headers=headers)

    def _received(self, method: str, url: str, sink: Path) -> httpx.Response:
        """The answer, whose body is in the file `sink` where it is good."""
        with self.client.stream(method, url) as answer:
            if answer.status_code != 200:
                answer.read()
                return answer
            with sink.open("wb") as file:
                for part in answer.iter_bytes(_CHUNK):
                    file.write(part)
            return answer


def connected(address: str, key: str | None = None) -> ServerClient:
    """The server at an address, such as `https://host:8642`, greeted; requests are sent with the
    API key. Raises InputError where it is no address, or none of a server of mcfuser that takes the
    key."""
    plain = address.rstrip("/")
    try:
        url = httpx.URL(plain)
        fine = url.scheme in ("http", "https") and bool(url.host)
    except httpx.InvalidURL:
        fine = False
    if not fine or "?" in plain or "#" in plain:
        raise InputError(f"'{public(address)}' is no server's address; write https://host:8642")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InputError("MCFUSER_API_KEY has characters that no key has; copy the key again")
    if key is not None and url.userinfo:
        raise InputError(
            f"the server's address {public(address)} has a user's name in it, and MCFUSER_API_KEY "
            "a key: a request is sent with one of them, so leave the other away"
        )
    waits = httpx.Timeout(60.0, connect=5.0)
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    client = httpx.Client(timeout=waits, follow_redirects=False, headers=headers)
    server = ServerClient(plain, client, FIRST)
    server.greet()
    server.check_key()
    return server


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ServerRefusal(answer.status_code, "the answer is no JSON object")
    return document


def _detail(answer: httpx.Response) -> str:
    """The server's sentence; the status where there is none."""
    try:
        found = answer.json()["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, str) and found else f"HTTP status {answer.status_code}"


def _for_good(answer: httpx.Response) -> bool:
    """Whether there is no room now and no time is named when there will be: the key's jobs take all
    that it may have."""
    return answer.status_code == 507 and "retry-after" not in answer.headers


def _asked_pause(answer: httpx.Response) -> float:
    words = answer.headers.get("retry-after", "")
    given = float(words) if words.isascii() and words.isdigit() else 1.0
    return min(max(given, _PAUSE), _LONGEST)


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole, or not at all."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(data)
    os.replace(partial, path)
