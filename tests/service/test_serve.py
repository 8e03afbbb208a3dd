"""The whole service as a process: killed in mid-job, started again, stopped."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from mcfuser.errors import InputError
from mcfuser_db import Storage
from mcfuser_service.serve import _listening, serve
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.supervisor import Supervisor
from tests.support.forked_birth import ForkedPopen
from tests.support.models import model
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.streams import StreamedEvent, read_stream

SERVER = "tests.support.serve_slowly"


class Server:
    """One server after another on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float, errors: Path | None = None, **more: str) -> None:
        with (errors or Path(os.devnull)).open("w") as log:
            self.process = ForkedPopen(
                [sys.executable, "-m", SERVER, str(self.folder), str(self.port), str(seconds)],
                start_new_session=True, cwd=ROOT, stderr=log if errors else None,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **more},
            )  # fmt: skip
        self.wait(lambda: self.client.get("/healthz").status_code == 200)

    def wait(self, done: Any, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if done():
                    return
            except httpx.TransportError:
                ended = None if self.process is None else self.process.poll()
                assert ended is None, f"the server ended with exit code {ended}"
            time.sleep(0.05)
        pytest.fail("waited in vain")

    def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        os.killpg(self.process.pid, number)
        return self.process.wait(300)

    def post(self, name: str, **query: Any) -> str:
        response = self.client.post("/v1/jobs", content=named(name), params=query)
        assert response.status_code == 202, response.text
        return str(response.headers["location"])

    def job(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(path).json()
        return found

    def started(self) -> list[int]:
        """The processes of every compile that was begun: the worker's, its child's, and so on."""
        path = self.folder / "starts"
        return [int(p) for p in path.read_text().split()] if path.exists() else []


def named(name: str) -> bytes:
    """A model with a name at the end of its bytes."""
    import onnx

    proto = onnx.load_model_from_string(model())
    proto.metadata_props.add(key="name", value=name)
    return bytes(proto.SerializeToString())


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return "Z" in Path(f"/proc/{process}/stat").read_text().split(")")[1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.client.close()
    if server.process is not None and server.process.poll() is None:
        server.stop(signal.SIGKILL)


@pytest.mark.thorough
def test_a_killed_server_s_job_is_done_by_the_next(server: Server) -> None:
    server.start(seconds=3600)
    first, second = server.post("first"), server.post("second")
    server.wait(lambda: server.job(first)["candidates"]["done"] > 0)
    server.stop(signal.SIGKILL)
    server.wait(lambda: all(map(gone, server.started())))  # orphans end themselves

    server.start(seconds=0.2)
    server.wait(lambda: server.job(second)["state"] == "done")
    jobs = [server.job(first), server.job(second)]
    assert [(j["state"], j["attempts"]) for j in jobs] == [("done", 1), ("done", 1)]
    module = server.client.get(f"{first}/module")
    assert module.content == b"module of " + named("first")[-8:]

    begun = server.started()
    assert server.post("first") == first
    assert server.job(first)["state"] == "done" and server.started() == begun
    assert server.stop(signal.SIGINT) == 0


def test_a_stopped_server_gives_its_job_back_and_leaves_nothing(server: Server) -> None:
    server.start(seconds=3600)
    job = server.post("first")
    server.wait(lambda: server.job(job)["state"] == "running")
    server.wait(lambda: len(server.started()) == 2)
    assert server.stop(signal.SIGTERM) == 0
    assert all(map(gone, server.started()))
    server.start(seconds=0.2)
    server.wait(lambda: server.job(job)["state"] == "done")
    assert server.job(job)["attempts"] == 1


def test_what_killed_processes_have_left_goes_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may still hold its folder when its worker, which was killed, is replaced."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = ServiceSettings(data=tmp_path / "data", workers=0)
    with closing(Storage("sqlite://")) as store, Supervisor(settings, "a:b", store, "name"):
        (tmp_path / "mcfuser-left").mkdir()
        (tmp_path / "mcfuser-left" / "owner").touch()
    assert not (tmp_path / "mcfuser-left").exists()


@pytest.mark.thorough
def test_who_follows_a_job_goes_on_after_a_restart(server: Server) -> None:
    """Waits and streams end when the server stops; it does not wait for them."""
    server.start(seconds=3600)
    path = server.post("first")
    server.wait(lambda: server.job(path)["candidates"]["done"] > 0)
    with ThreadPoolExecutor(2) as pool, httpx.Client(timeout=300) as client:
        base = f"http://127.0.0.1:{server.port}{path}"
        stream = pool.submit(client.get, f"{base}/events")
        wait = pool.submit(client.get, base, params={"wait": 60})
        time.sleep(0.7)
        begun = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert wait.result().json()["state"] == "running"
        last = [line for line in stream.result().text.splitlines() if line.startswith("id: ")][-1]
        assert time.monotonic() - begun < 60, "its grace is 120 s"

    server.start(seconds=0.2)
    seen = {"Last-Event-ID": last.removeprefix("id: ")}
    told = server.client.get(f"{path}/events", headers=seen, timeout=300).text.splitlines()
    events = list(read_stream(iter(told)))
    first = int(seen["Last-Event-ID"]) + 1
    assert [e.id for e in events] == list(range(first, first + len(events)))
    states = [e.data["state"] for e in events if e.kind == "state"]
    assert states[-2:] == ["running", "done"], "it was given back, and is done after that"
    log = server.client.get(f"{path}/log").text
    assert log.index("given back") < log.index("done: a module of")


@pytest.mark.thorough
def test_who_listens_misses_nothing_when_workers_and_servers_are_killed(server: Server) -> None:
    server.start(seconds=3600)
    path = server.post("first")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(listened, server.port, path)
        server.wait(lambda: server.job(path)["candidates"]["done"] > 0)
        os.kill(server.started()[-2], signal.SIGKILL)  # the worker
        server.wait(lambda: len(server.started()) == 4)
        server.wait(lambda: server.job(path)["candidates"]["done"] > 0)
        server.stop(signal.SIGKILL)
        server.start(seconds=1.5)
        events = told.result(300)
    assert [e.id for e in events] == list(range(1, len(events) + 1)), "in order, once each"
    states = [e.data["state"] for e in events if e.kind == "state"]
    assert states == ["queued", "running", "queued", "running", "queued", "running", "done"]


def listened(port: int, path: str) -> list[StreamedEvent]:
    """The events of a job from its first to its last, as a client that connects again has them."""
    found: list[StreamedEvent] = []
    address = f"http://127.0.0.1:{port}{path}/events?after=0"
    while True:
        seen = {"Last-Event-ID": str(found[-1].id)} if found else {}
        try:
            with httpx.stream("GET", address, headers=seen, timeout=60) as stream:
                if stream.status_code == 204:
                    return found
                if stream.status_code == 200:
                    for event in read_stream(stream.iter_lines()):
                        found.append(event)
        except httpx.TransportError:
            pass
        time.sleep(0.1)


def test_the_log_says_that_a_worker_died(server: Server) -> None:
    server.start(seconds=3600)
    path = server.post("first")
    server.wait(lambda: len(server.started()) == 2)
    os.kill(server.started()[0], signal.SIGKILL)
    server.wait(lambda: len(server.started()) == 4)
    log = server.client.get(f"{path}/log").text
    assert "was killed" in log and log.count("attempt 1 of 3 begins") == 2


@pytest.mark.thorough
def test_workers_that_are_killed_cost_their_job_no_attempt(server: Server) -> None:
    """More often than it has attempts."""
    server.start(seconds=3600)
    path = server.post("first")
    for times in range(1, 5):
        begun = 2 * times
        server.wait(lambda begun=begun: len(server.started()) == begun)
        os.kill(server.started()[-2], signal.SIGKILL)
    server.wait(lambda: len(server.started()) == 10)
    assert (server.job(path)["state"], server.job(path)["attempts"]) == ("running", 1)


def test_what_killed_processes_have_left_is_removed(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    (place / "mcfuser-left").mkdir(parents=True)
    (place / "mcfuser-left" / "owner").touch()
    server.start(seconds=0.2, TMPDIR=str(place))
    server.wait(lambda: not (place / "mcfuser-left").exists())


@pytest.mark.thorough
def test_a_job_that_kills_its_worker_is_given_up_and_the_next_is_done(server: Server) -> None:
    server.start(seconds=0.2)
    bad, good = server.post("crash"), server.post("good")
    server.wait(lambda: server.job(bad)["state"] == "failed")
    problem = server.job(bad)["problem"]
    assert problem["status"] == 422 and "3 times" in problem["detail"]
    server.wait(lambda: server.job(good)["state"] == "done")
    assert len(server.started()) == 8
    server.wait(lambda: all(map(gone, server.started()[:6])))


def test_a_cancelled_job_makes_room(server: Server) -> None:
    server.start(seconds=3600)
    first, second = server.post("first"), server.post("second")
    server.wait(lambda: server.job(first)["state"] == "running")
    assert server.client.delete(first).status_code == 204
    server.wait(lambda: server.job(second)["state"] == "running")
    assert server.job(first)["state"] == "cancelled"


def test_no_answer_waits_for_an_acknowledgement(tmp_path: Path) -> None:
    with (
        _listening(ServiceSettings(data=tmp_path, port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_busy_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port}: Address already in use"):
            serve(ServiceSettings(data=tmp_path, port=port))


def test_it_asks_either_everyone_for_a_key_or_nobody(tmp_path: Path) -> None:
    both = {"insecure": True, "require_key": True}
    with pytest.raises(InputError, match=r"MCFUSER_INSECURE .* MCFUSER_REQUIRE_KEY") as refused:
        serve(ServiceSettings(data=tmp_path, port=0, **both))
    assert "\n" not in str(refused.value)


def test_a_name_of_loopback_that_leads_elsewhere_needs_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [away])
    with pytest.raises(InputError, match=r"8\.8\.8\.8 is reached from other machines"):
        serve(ServiceSettings(data=tmp_path, port=0, host="localhost"))


def test_on_another_address_it_asks_for_a_key_and_says_that_there_is_none(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start(0.1, MCFUSER_HOST="0.0.0.0", errors=tmp_path / "log")
    try:
        refused = server.client.get("/v1/jobs")
        assert refused.status_code == 401
        command = [sys.executable, "-m", "mcfuser.cli", "keys", "create", "ci"]
        made = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, check=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "MCFUSER_DATA": str(tmp_path)},
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert server.client.get("/v1/jobs", headers=headers).status_code == 200
        assert server.stop(signal.SIGINT) == 0
    finally:
        server.client.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("mcfuser keys create NAME" in line for line in lines) == 1
    assert not any("it asks nobody" in line for line in lines)
    assert made.stdout.strip() not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("host", ["", "no host", "a" * 300, "x..y", "256.256.256.256"])
def test_a_host_that_is_none_is_one_sentence(host: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot listen on"):
        serve(ServiceSettings(data=tmp_path, port=0, host=host))


def test_with_the_word_it_serves_and_warns(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start(0.1, MCFUSER_HOST="0.0.0.0", MCFUSER_INSECURE="1", errors=tmp_path / "log")
    try:
        assert server.stop(signal.SIGINT) == 0
    finally:
        server.client.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("it asks nobody for a key" in line for line in lines) == 1


def test_what_is_kept_is_its_owner_s_alone(server: Server) -> None:
    before = os.umask(0o022)
    try:
        server.folder = server.folder / "data"
        server.start(seconds=0.1)
    finally:
        os.umask(before)
    job = server.post("first")
    server.wait(lambda: server.job(job)["state"] == "done")
    for path in (server.folder, *server.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_an_unwritable_folder_is_one_sentence() -> None:
    with pytest.raises(InputError, match="/proc/mcfuser cannot be written"):
        serve(ServiceSettings(data=Path("/proc/mcfuser"), port=0))


def test_a_folder_has_one_server(server: Server) -> None:
    server.start(seconds=1)
    with pytest.raises(InputError, match="served by another"):
        serve(ServiceSettings(data=server.folder, port=0))


def test_a_sender_that_never_ends_keeps_no_server_from_stopping(server: Server) -> None:
    server.start(seconds=1)
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
        arriving = server.folder / "blobs" / "arriving"
        server.wait(lambda: len(list(arriving.iterdir())) == 1)
        assert server.stop(signal.SIGTERM) == 0
    assert list(arriving.iterdir()) == []
