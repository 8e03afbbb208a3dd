"""A Prometheus of the tests' own, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

VARIABLE = "MCFUSER_TEST_PROMETHEUS"  # the folder of prometheus and promtool, if not in the path
_READY = 120.0


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test where it is not installed."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get(VARIABLE, ""), os.defpath]))
    if found is None:
        pytest.skip(f"{name} is not installed: Debian's package is prometheus")
    return found


class Prometheus:
    """A server that can be asked."""

    def __init__(self, port: int) -> None:
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def query(self, words: str) -> list[float]:
        """The values of an expression now."""
        answer = self.client.get("/api/v1/query", params={"query": words})
        assert answer.status_code == 200, f"{words}: {answer.text}"
        return [float(one["value"][1]) for one in answer.json()["data"]["result"]]


@contextmanager
def prometheus(config: dict[str, Any], folder: Path) -> Iterator[Prometheus]:
    """A server with that configuration, until the block ends."""
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        asked = Prometheus(port)
        end = time.monotonic() + _READY
        while not _ready(asked.client):
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield asked
    finally:
        process.terminate()
        process.wait()


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
