"""Clients of a server, as cheap as they can be, for benchmarks/service_load.py.

Reads a JSON object from standard input (`Given`), runs that many clients in one thread until the
time is over, and prints a JSON object: the seconds that requests of each kind took, what went
wrong, and the seconds by which the clients themselves were late.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

WAIT = 20
"""Seconds that a long poll asks for."""
LISTENING = 10.0
"""Seconds after which a listener breaks off, and comes again with the last id it has seen."""
ARRIVING = 5.0
"""Seconds within which all clients arrive."""
PATIENCE = 60.0
"""Seconds after which a request has failed."""


@dataclass(frozen=True)
class Given:
    """What the clients do: how many there are `of_kind`, the `jobs` and `kernels` they ask for, the
    seconds between an answer and the next request, and how long it all takes."""

    port: int
    of_kind: dict[str, int]
    jobs: Sequence[str]
    kernels: Sequence[str]
    chains: Sequence[str]
    pause: float
    seconds: float
    key: str | None = None


@dataclass
class Found:
    """`times` has the seconds of each answer by kind; of a long poll those beyond what it waits
    for, of a stream those until its first event."""

    times: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    events: int = 0
    late: list[float] = field(default_factory=list)


class Connection:
    """A connection that is kept open between requests."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, more: str = "") -> tuple[int, dict[bytes, bytes]]:
        """Sends a request; gives the status and the headers of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._given.port)
        key = f"Authorization: Bearer {self._given.key}\r\n" if self._given.key else ""
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}{more}\r\n"
        reader, writer = self._streams
        writer.write(head.encode())
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines if line)
        return int(first.split()[1]), headers

    async def body(self, headers: dict[bytes, bytes]) -> bytes:
        assert self._streams is not None
        return await self._streams[0].readexactly(int(headers.get(b"content-length", b"0")))

    async def chunk(self) -> bytes:
        """The next part of a stream; empty at its end."""
        assert self._streams is not None
        reader = self._streams[0]
        size = int(await reader.readuntil(b"\r\n"), 16)
        return (await reader.readexactly(size + 2))[:-2]

    @property
    def is_open(self) -> bool:
        return self._streams is not None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


class Clients:
    """All clients of this process."""

    def __init__(self, given: Given) -> None:
        self.given, self.found = given, Found()
        self.end = time.monotonic() + given.seconds

    async def run(self) -> Found:
        doing: dict[str, Callable[[int], Awaitable[None]]] = {
            "poll": self._repeat("poll", lambda i: f"/v1/jobs/{self._job(i)}"),
            "list": self._repeat("list", lambda i: f"/v1/kernels?limit=50&chain={self._chain(i)}"),
            "kernel": self._repeat("kernel", lambda i: f"/v1/kernels/{self._kernel(i)}"),
            "health": self._repeat("health", lambda i: "/healthz"),
            "metrics": self._repeat("metrics", lambda i: "/metrics"),
            "wait": self._waiting,
            "events": self._listening,
        }
        every = [doing[kind](i) for kind, n in self.given.of_kind.items() for i in range(n)]
        await asyncio.gather(self._clock(), *every)
        return self.found

    def _job(self, i: int) -> str:
        return self.given.jobs[i % len(self.given.jobs)]

    def _chain(self, i: int) -> str:
        return self.given.chains[i % len(self.given.chains)]

    def _kernel(self, i: int) -> str:
        return random.choice(self.given.kernels)

    def _note(self, kind: str, seconds: float) -> None:
        self.found.times.setdefault(kind, []).append(seconds)

    def _left(self) -> float:
        return self.end - time.monotonic()

    async def _clock(self) -> None:
        """How late this process is, by no fault of the server's."""
        while self._left() > 0:
            begun = time.monotonic()
            await asyncio.sleep(0.05)
            self.found.late.append(time.monotonic() - begun - 0.05)

    async def _apart(self) -> None:
        """Clients do not begin together."""
        await asyncio.sleep(random.uniform(0, ARRIVING))

    def _repeat(self, kind: str, path: Callable[[int], str]) -> Callable[[int], Awaitable[None]]:
        async def client(i: int) -> None:
            await self._apart()
            connection = Connection(self.given)
            while self._left() > 0:
                begun = time.monotonic()
                with self._guarded(kind, connection):
                    async with asyncio.timeout(PATIENCE):
                        status, headers = await connection.send(path(i))
                        await connection.body(headers)
                    self._note(kind, time.monotonic() - begun)
                    if status != 200:
                        self.found.errors[f"{kind}: {status}"] += 1
                await asyncio.sleep(self.given.pause)
            connection.close()

        return client

    async def _waiting(self, i: int) -> None:
        await self._apart()
        connection = Connection(self.given)
        while self._left() > 0:
            seconds = min(WAIT, max(1, int(self._left())))  # the last ones end together
            begun = time.monotonic()
            with self._guarded("wait", connection):
                async with asyncio.timeout(seconds + PATIENCE):
                    status, headers = await connection.send(
                        f"/v1/jobs/{self._job(i)}?wait={seconds}"
                    )
                    await connection.body(headers)
                took = time.monotonic() - begun
                if took >= seconds:  # else the state has changed, and nobody knows when
                    self._note("wait", took - seconds)
                if status != 200:
                    self.found.errors[f"wait: {status}"] += 1
            if not connection.is_open:
                await asyncio.sleep(self.given.pause)
        connection.close()

    async def _listening(self, i: int) -> None:
        await self._apart()
        seen = ""
        while self._left() > 0:
            connection = Connection(self.given)
            begun = time.monotonic()
            with self._guarded("events", connection):
                async with asyncio.timeout(PATIENCE):
                    status, _ = await connection.send(f"/v1/jobs/{self._job(i)}/events", seen)
                    first = await connection.chunk() if status == 200 else b""
                self._note("events", time.monotonic() - begun)
                if status not in (200, 204):
                    self.found.errors[f"events: {status}"] += 1
                if status != 200:
                    await asyncio.sleep(self.given.pause)
                    continue
                seen = self._heard(first, seen)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(LISTENING, max(0.0, self._left()))):
                        while part := await connection.chunk():
                            seen = self._heard(part, seen)
            connection.close()
            await asyncio.sleep(self.given.pause)

    def _heard(self, part: bytes, seen: str) -> str:
        """The header that names the last event, after a part of a stream."""
        for line in part.splitlines():
            if line.startswith(b"id: "):
                self.found.events += 1
                seen = f"Last-Event-ID: {line[4:].decode()}\r\n"
        return seen

    def _guarded(self, kind: str, connection: Connection) -> _Guard:
        return _Guard(self, kind, connection)


@dataclass
class _Guard:
    """Counts what goes wrong with a request, and begins anew."""

    clients: Clients
    kind: str
    connection: Connection

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        if kind is None or not issubclass(kind, (OSError, EOFError, TimeoutError, ValueError)):
            return False
        self.clients.found.errors[f"{self.kind}: {kind.__name__}"] += 1
        self.connection.close()
        return True


def main() -> None:
    given = Given(**json.load(sys.stdin))
    found = asyncio.run(Clients(given).run())
    json.dump(
        {
            "times": found.times,
            "errors": found.errors,
            "events": found.events,
            "late": found.late,
            "processor": time.process_time(),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
