"""Registries: Debian's docker-registry on a port of its own, and one that does as it is told."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcfuser_service.oci.artefact import EMPTY, LINES, NOTHING, manifest
from tests.support.processes import eventually

PROGRAM = shutil.which("docker-registry")
USER, PASSWORD = "ci", "secret"
_HASH = "$2b$04$LZ43EHKwYTDSgtb.RJMEL.K7/nqhS91jzlJEWdnu0dEuczxgaHg/e"
"""The password, hashed by bcrypt, as htpasswd -B does."""

needs_oras = pytest.mark.skipif(
    importlib.util.find_spec("oras") is None,
    reason="oras is not installed (mcfuser[oci])",
)
needs_registry = pytest.mark.skipif(
    PROGRAM is None, reason="docker-registry is not installed (Debian's package of that name)"
)


@contextmanager
def real_registry(
    folder: Path, password: bool = False, certificate: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """The host and port of a docker-registry that keeps everything in a folder; with a `password`
    it lets USER in alone, with a `certificate` (and its key) it speaks TLS."""
    assert PROGRAM is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    http: dict[str, Any] = {"addr": f"127.0.0.1:{port}"}
    if certificate is not None:
        http["tls"] = {"certificate": str(certificate[0]), "key": str(certificate[1])}
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": http,
    }
    if password:
        (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen(
        [PROGRAM, "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, "docker-registry does not start"
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def kernels_manifest(lines: bytes, **layer: Any) -> bytes:
    """The manifest of these lines; fields of its layer are changed."""
    descriptor = {"mediaType": LINES, "digest": digest(lines), "size": len(lines), **layer}
    empty = {"mediaType": EMPTY, "digest": digest(NOTHING), "size": len(NOTHING)}
    return json.dumps(manifest(empty, descriptor, {})).encode()


Answer = tuple[int, dict[str, str], bytes]


@dataclass
class ToldRegistry:
    """A registry that gives the answers it was told to, by the ends of paths; else 404. `hang` is
    the end of a path at which it says nothing more until it is stopped."""

    answers: dict[str, Answer]
    hang: str | None = None
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Methods, paths, and what was said under Authorization."""
    over: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> Answer:
        for end, answer in self.answers.items():
            if path.partition("?")[0].endswith(end):
                return answer
        return 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}'


@contextmanager
def told_registry(
    answers: dict[str, Answer], hang: str | None = None
) -> Iterator[tuple[str, ToldRegistry]]:
    """Its host and port, and what it was asked."""
    told = ToldRegistry({"/v2/": (200, {}, b"{}"), **answers}, hang)

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            told.asked.append((self.command, self.path, self.headers.get("Authorization")))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if told.hang is not None and self.path.endswith(told.hang):
                told.over.wait()
                return
            status, headers, body = told.answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = serve

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", told
    finally:
        told.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
