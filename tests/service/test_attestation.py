"""Modules of jobs are signed when they are done, and whoever fetches them can check that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from mcfuser.errors import InputError
from mcfuser.signing.folder import ENVELOPE, verify
from mcfuser.signing.key import read_verifying_key
from mcfuser_db import Blobs, Order, Storage
from mcfuser_db.retention import Keep, sweep
from mcfuser_service import worker
from mcfuser_service.app import create_app
from mcfuser_service.attestation import signing_key
from mcfuser_service.schemas import JobOptions
from mcfuser_service.serve import serve
from mcfuser_service.settings import ServiceSettings
from tests.support.signatures import MODULE, REPORT, private_key, write_keys
from tests.support.slow_compiler import Made

KEY = private_key()
FLOATS = {
    "seconds": {"tuning": 0.1 + 0.2, "building": 1e-9},
    "sure": float("inf"),
    "name": "µ ∞",
}
"""Fields of a report whose text a database or a server could change."""


class SigningService:
    """A store, its files, and an application with or without a key."""

    def __init__(self, folder: Path, key: Path | None) -> None:
        self.settings = ServiceSettings(data=folder, signing_key=key)
        self.store = Storage(self.settings.database_url)
        self.blobs = Blobs(self.settings.blobs)
        app = create_app(self.settings, self.store, self.blobs, lambda: 1)
        self.client = TestClient(app, base_url="http://localhost")

    def submit(self, work: str = "a") -> UUID:
        options = JobOptions().model_dump(mode="json")
        order = Order(work * 64, self.blobs.put(b"model"), 5, "cpu", options)
        return self.store.submit(order)[0].id

    def work(self) -> None:
        """Does the oldest job, with a compiler that is none."""
        job = self.store.claim("w", 3600)
        assert job is not None
        made = Made(MODULE, {**REPORT, **FLOATS})
        worker.perform(
            self.settings, self.store, self.blobs, lambda *_: made, job, threading.Event(),
            lambda: None, signing_key(self.settings),
        )  # fmt: skip

    def get(self, job: UUID, what: str) -> Response:
        return self.client.get(f"/v1/jobs/{job}/{what}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SigningService]:
    private, _ = write_keys(tmp_path, KEY)
    service = SigningService(tmp_path, private)
    with service.client:
        yield service
    service.store.close()


@pytest.fixture
def unsigned(tmp_path: Path) -> Iterator[SigningService]:
    service = SigningService(tmp_path, None)
    with service.client:
        yield service
    service.store.close()


def kind(response: Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


def test_what_is_fetched_is_verified_as_a_folder(service: SigningService, tmp_path: Path) -> None:
    job = service.submit()
    service.work()
    out = tmp_path / "out"
    out.mkdir()
    for what, name in (("module", "module.so"), ("report", "report.json"),
                       ("attestation", ENVELOPE)):  # fmt: skip
        answer = service.get(job, what)
        assert answer.status_code == 200, answer.text
        (out / name).write_bytes(answer.content)
    assert answer.headers["content-type"] == "application/vnd.dsse.envelope.v1+json"
    public = tmp_path / "server.pub"
    public.write_bytes(service.client.get("/v1/signing-key").content)
    found = verify(out, read_verifying_key(public))
    assert found.wrong == () and found.keyid == KEY.public.keyid
    assert service.client.head(f"/v1/jobs/{job}/attestation").status_code == 200
    told = service.client.get(f"/v1/jobs/{job}").json()
    assert told["attestation"] == {"href": f"/v1/jobs/{job}/attestation"}


def test_without_a_key_nothing_is_signed(unsigned: SigningService) -> None:
    job = unsigned.submit()
    assert kind(unsigned.get(job, "attestation")) == (409, "not-ready")
    unsigned.work()
    assert kind(unsigned.get(job, "attestation")) == (404, "not-signed")
    assert unsigned.client.get(f"/v1/jobs/{job}").json()["attestation"] is None
    assert "retune=true" in unsigned.get(job, "attestation").json()["detail"]
    assert kind(unsigned.client.get("/v1/signing-key")) == (404, "not-signed")
    assert unsigned.get(job, "module").content == MODULE


def test_there_is_none_of_a_job_that_has_no_module(service: SigningService) -> None:
    job = service.submit()
    assert kind(service.get(job, "attestation")) == (409, "not-ready")
    service.store.cancel(job)
    assert kind(service.get(job, "attestation")) == (410, "cancelled")
    assert kind(service.get(UUID(int=0), "attestation")) == (404, "no-such-job")


def test_it_goes_with_the_module(service: SigningService) -> None:
    """Where the job is done again, and where its results are removed."""
    job = service.submit()
    service.work()
    assert service.store.requeue(job)
    assert service.store.attestation(job) is None
    service.work()
    assert service.get(job, "attestation").status_code == 200
    sweep(service.store, service.blobs, Keep(age=0.0))
    assert service.store.attestation(job) is None
    assert kind(service.get(job, "attestation")) == (410, "lost")
    assert service.client.get(f"/v1/jobs/{job}").json()["attestation"] is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"signing_key": "none"}, "'.*none' cannot be read: No such file"),
        ({"signing_key": "release.pub"}, "is a public key"),
        ({"signing_key": "hidden/release.key"}, "is encrypted; give a file"),
        ({"signing_key": "hidden/release.key", "signing_passphrase_file": "none"}, "passphrase"),
    ],
)
def test_a_key_that_cannot_be_read_is_told_at_the_start(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    (tmp_path / "hidden").mkdir()
    write_keys(tmp_path / "hidden", KEY, b"open sesame")
    write_keys(tmp_path, KEY)
    paths = {name: tmp_path / path for name, path in given.items()}
    settings = ServiceSettings(data=tmp_path / "data", **paths)
    for start in (signing_key, serve):
        with pytest.raises(InputError, match=words):
            start(settings)
    assert not (tmp_path / "data").exists()


def test_an_encrypted_key_is_read_with_its_passphrase(tmp_path: Path) -> None:
    private, _ = write_keys(tmp_path, KEY, b"open sesame")
    (tmp_path / "words").write_text("open sesame\n")
    settings = ServiceSettings(
        data=tmp_path, signing_key=private, signing_passphrase_file=tmp_path / "words"
    )
    found = signing_key(settings)
    assert found is not None and found.public.keyid == KEY.public.keyid
    told = worker.Assignment(settings, "mcfuser_service.worker:load_compiler", "here:0")
    assert worker.Assignment.from_json(told.to_json()) == told
