"""A real server, and the command, and what hostile models do to them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.command import mcfuser
from tests.support.paths import PYTHONPATH

GROWTH = 300 << 20
"""Bytes that the web process may grow by."""
_PATIENCE = 120.0  # s; the server itself gives up long before


@dataclass(frozen=True, slots=True)
class Answered:
    name: str
    status: int
    body: str
    seconds: float


@dataclass(frozen=True)
class Server:
    """A web server in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    resident: int

    def growth(self) -> int:
        """The most memory that the web process has had, less what it had at its start."""
        return _resident(self.process.pid, "VmHWM") - self.resident

    def posted(
        self, models: Sequence[tuple[str, bytes]], shape: str | None = None, at_once: int = 3
    ) -> list[Answered]:
        """What is answered to each model, a few posted at a time."""
        query = {"trials": "1", **({"shape": shape} if shape else {})}

        def post(given: tuple[str, bytes]) -> Answered:
            name, model = given
            begun = time.monotonic()
            response = httpx.post(
                f"{self.url}/v1/jobs", params=query, content=model, timeout=_PATIENCE
            )
            seconds = time.monotonic() - begun
            return Answered(name, response.status_code, response.text, seconds)

        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(post, models))

    def failed(self) -> list[str]:
        """What the jobs say that failed for no fault of the model's or of time, once none is left
        to be done."""
        found = []
        while True:
            jobs = httpx.get(f"{self.url}/v1/jobs?limit=500", timeout=_PATIENCE).json()["items"]
            if all(j["state"] not in ("queued", "running") for j in jobs):
                break
            time.sleep(1)
        for job in jobs:
            if job["problem"] is not None and job["problem"]["status"] in (500, 503):
                found.append(f"job {job['id']}: {job['problem']['detail']}")
        return found


@contextmanager
def serving(folder: Path, workers: int = 0) -> Iterator[Server]:
    """A server on a free port, over a folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcfuser.cli", "serve", "--port", str(port),
             "--data", str(folder / "data")],
            stdout=file, stderr=file, cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "MCFUSER_WORKERS": str(workers),
                 "MCFUSER_INSPECT_WAIT": "100"},
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield Server(url, process, log, _resident(process.pid, "VmRSS"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def complaints(server: Server, answers: Sequence[Answered]) -> list[str]:
    """What is wrong with the answers and the server after them."""
    found = []
    for a in answers:
        if not (a.status == 202 or 400 <= a.status < 500):
            found.append(f"{a.name}: {a.status} {a.body[:300]}")
        elif a.status != 202 and not re.fullmatch(r"[^\n]+", json.loads(a.body)["detail"]):
            found.append(f"{a.name}: {a.body[:300]} is no sentence")
    if server.growth() > GROWTH:
        found.append(f"the web process grew by {server.growth() >> 20} MB")
    if "Traceback" in (log := server.log.read_text()):
        found.append(f"the log has a traceback: {log[log.index('Traceback') :][:2000]}")
    if httpx.get(f"{server.url}/v1/devices", timeout=_PATIENCE).status_code != 200:
        found.append("the server does not answer any more")
    return found


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            httpx.get(f"{url}/v1/devices", timeout=_PATIENCE)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def _resident(pid: int, field: str) -> int:
    """Bytes from a line of the process's status, which is in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) << 10


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    errors: str


def command(folder: Path, model: bytes, *options: str) -> Ended:
    """`mcfuser compile` of the model in a folder."""
    path = folder / "model.onnx"
    path.write_bytes(model)
    words = ("compile", str(path), "-o", str(folder / "out"), "--trials", "1", "--no-cache")
    done = mcfuser(*words, *options, data=folder, folder=folder)
    return Ended(done.returncode, done.stderr)
