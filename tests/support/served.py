"""A server on a port of its own, in a thread, and raw bytes to and from it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from mcfuser_db import Blobs, Storage
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.watch import JobWatch


@dataclass(frozen=True)
class Served:
    """Where the server listens, and what stands behind it."""

    port: int
    settings: ServiceSettings
    store: Storage
    blobs: Blobs

    def talk(self, data: bytes, shut: bool = True) -> bytes:
        """All that is answered to these bytes; `shut` says at once that no more follow."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            parts = []
            try:
                connection.sendall(data)
                if shut:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:  # it was answered and closed before all was sent
                pass
            try:
                while part := connection.recv(1 << 16):
                    parts.append(part)
            except ConnectionResetError:
                pass
            return b"".join(parts)

    def ask(self, target: bytes, method: bytes = b"GET", **headers: bytes) -> bytes:
        """The answer to one request without a body."""
        lines = {b"Host": b"localhost", b"Connection": b"close"}
        lines |= {k.replace("_", "-").encode(): v for k, v in headers.items()}
        head = b"".join(b"%s: %s\r\n" % line for line in lines.items())
        return self.talk(b"%s %s HTTP/1.1\r\n%s\r\n" % (method, target, head), shut=False)


@contextmanager
def serving(folder: Path, inspect: Any, **settings: Any) -> Iterator[Served]:
    """The application over a store with no worker, until the block ends."""
    given = ServiceSettings(data=folder, **{"max_model_bytes": 1 << 20} | settings)
    store, blobs = Storage(given.database_url), Blobs(given.blobs)
    watch = JobWatch(store)
    app = create_app(given, store, blobs, lambda: 1, inspect, watch)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(listener.getsockname()[1], given, store, blobs)
        finally:
            watch.close()  # ends streams of events, which the server waits for
            server.should_exit = True
            thread.join()
            store.close()


def parted(answer: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """An answer's status, headers in small letters, and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return int(first.split()[1]), headers, body
