"""Telling webhooks: a receiver that answers as it likes, and servers that stop and start."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mcfuser_db import Blobs, Storage
from mcfuser_service import delivery
from mcfuser_service.app import create_app
from mcfuser_service.delivery import delivering
from mcfuser_service.settings import ServiceSettings

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


async def inspect(*_: object) -> None: ...


@dataclass
class Receiver:
    """Somebody's server: the answers that it gives in turn, the last one for ever."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [204])
    silent: float = 0.0
    got: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.got.append((handler.path, dict(handler.headers.items()), body))
        time.sleep(self.silent)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        handler.send_response(status)
        if 300 <= status < 400:
            handler.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.answer(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


@dataclass
class Service:
    settings: ServiceSettings
    store: Storage
    client: TestClient
    url: str

    def post(self, **query: Any) -> str:
        query = {"webhook": self.url, **query}
        answer = self.client.post("/v1/jobs", content=b"model", params=query)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def finish(self) -> None:
        job = self.store.claim("w", 60)
        assert job is not None and job.claim is not None
        self.store.finish(job.claim, Blobs(self.settings.blobs).put(b"m"), 1, {"chains": []})

    def log(self, id: str) -> str:
        return self.client.get(f"/v1/jobs/{id}/log").text

    def delivering(self) -> AbstractContextManager[None]:
        return delivering(self.settings, self.store)


@pytest.fixture
def service(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setattr(delivery, "_LOOK", 0.01)
    monkeypatch.setattr(delivery, "WAITS", (0.02, 0.02))
    hosts = f"127.0.0.1:{receiver.port}"
    settings = ServiceSettings(data=tmp_path, webhook_secret=SECRET, webhook_hosts=hosts)
    store = Storage(settings.database_url)
    app = create_app(settings, store, Blobs(settings.blobs), lambda: 1, inspect)
    with TestClient(app, base_url="http://localhost") as client:
        yield Service(settings, store, client, f"http://{hosts}/hook?team=a")
    store.close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_the_end_of_a_job_is_told_and_signed(service: Service, receiver: Receiver) -> None:
    id = service.post(name="nightly")
    with service.delivering():
        time.sleep(0.05)
        assert receiver.got == [], "the job is not over"
        service.finish()
        until(lambda: "delivered" in service.log(id))
    ((path, headers, body),) = receiver.got
    assert path == "/hook?team=a" and headers["Content-Type"] == "application/json"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    told = json.loads(body)
    assert told["type"] == "job.done" and told["data"]["id"] == id
    assert told["data"]["name"] == "nightly" and told["data"]["report"] is None
    assert "team=a" not in service.log(id), "an address may hold a secret"


def test_a_failed_attempt_is_made_again_with_the_same_id(
    service: Service, receiver: Receiver
) -> None:
    receiver.statuses = [500, 302, 204]
    id = service.post()
    service.finish()
    with service.delivering():
        until(lambda: "delivered" in service.log(id))
    assert [path for path, _, _ in receiver.got] == ["/hook?team=a"] * 3, "no redirect is followed"
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    log = service.log(id)
    assert "attempt 1: status 500; tried again in 0.02 s" in log
    assert "attempt 2: status 302; tried again" in log


@pytest.mark.parametrize(("status", "attempts"), [(503, 3), (410, 1)])
def test_who_never_takes_it_is_given_up(
    service: Service, receiver: Receiver, status: int, attempts: int
) -> None:
    receiver.statuses = [status]
    id = service.post()
    service.client.delete(f"/v1/jobs/{id}")
    with service.delivering():
        until(lambda: "given up" in service.log(id))
        time.sleep(0.1)
    assert len(receiver.got) == attempts
    assert json.loads(receiver.got[0][2])["type"] == "job.cancelled"


def test_who_is_silent_is_given_up_in_time_and_others_are_told(
    service: Service, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT", 0.2)
    receiver.silent = 1.0
    id = service.post()
    service.finish()
    with service.delivering():
        until(lambda: "given up" in service.log(id))
    assert "no answer within 0.2 s" in service.log(id)


def test_nobody_listens(service: Service, receiver: Receiver) -> None:
    settings = service.settings.model_copy(update={"webhook_hosts": ("127.0.0.1:9",)})
    app = create_app(settings, service.store, Blobs(settings.blobs), lambda: 1, inspect)
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.post("/v1/jobs?webhook=http://127.0.0.1:9/", content=b"model")
    service.finish()
    with delivering(settings, service.store):
        until(lambda: "given up" in service.log(answer.json()["id"]))


def test_a_restart_loses_none(service: Service, receiver: Receiver) -> None:
    receiver.statuses = [500]
    id = service.post()
    service.finish()
    with service.delivering():
        until(lambda: "attempt 1" in service.log(id))
    receiver.statuses = [204]
    with service.delivering():
        until(lambda: "delivered" in service.log(id))


def test_a_host_that_the_settings_no_longer_name_is_told_nothing(
    service: Service, receiver: Receiver
) -> None:
    id = service.post()
    service.finish()
    settings = service.settings.model_copy(update={"webhook_hosts": ("other.example",)})
    with delivering(settings, service.store):
        until(lambda: "given up" in service.log(id))
    assert receiver.got == [] and "MCFUSER_WEBHOOK_HOSTS does not name" in service.log(id)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://localhost/", "x", "a\tb"])
def test_other_addresses_are_refused_when_they_are_posted(service: Service, url: str) -> None:
    answer = service.client.post("/v1/jobs", params={"webhook": url}, content=b"model")
    assert answer.status_code == 422
    kind = "bad-option" if "\t" in url else "webhook-refused"
    assert answer.json()["type"].endswith(kind) and sum(service.store.counts().values()) == 0


def test_without_a_secret_nothing_runs(service: Service) -> None:
    with delivering(ServiceSettings(data=service.settings.data), service.store):
        assert "webhooks" not in {t.name for t in threading.enumerate()}
