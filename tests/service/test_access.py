"""Who is let in: keys, their scopes and limits, and whose a job is."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy.exc import OperationalError

from mcfuser_db import Blobs, Job, KeyGrant, KeyText, Storage
from mcfuser_db.api_keys import api_key, make_key, revoke_key
from mcfuser_service import access
from mcfuser_service.access import SCOPES, needed, wants_keys
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings

NOBODY = "00000000-0000-4000-8000-000000000000"


async def inspect(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every model is fine."""


class Guarded:
    """An application that wants keys, unless the settings say otherwise."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        given = {"require_key": True, "max_model_bytes": 1 << 20} | settings
        self.settings = ServiceSettings(data=folder, **given)
        self.now = datetime.now(UTC)
        folder.mkdir(exist_ok=True)
        self.store = Storage(self.settings.database_url, lambda: self.now)
        self.blobs = Blobs(self.settings.blobs)
        app = create_app(self.settings, self.store, self.blobs, lambda: 1, inspect)
        self.client = TestClient(app, base_url="http://localhost")

    def key(self, *scopes: str, **limits: Any) -> str:
        name = limits.pop("name", " ".join(scopes) or "none")
        return make_key(self.store, KeyGrant(name, scopes, **limits))[1].words

    def ask(self, path: str, key: str | None = None, method: str = "GET", **more: Any) -> Response:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        headers |= more.pop("headers", {})
        return self.client.request(method, path, headers=headers, **more)

    def post(self, key: str | None, model: bytes = b"model", **query: Any) -> Response:
        more = {"headers": query.pop("headers", {})}
        return self.ask("/v1/jobs", key, "POST", content=model, params=query, **more)

    def claim(self) -> Job:
        job = self.store.claim("w", 60)
        assert job is not None
        return job


@contextmanager
def guarded(folder: Path, **settings: Any) -> Iterator[Guarded]:
    service = Guarded(folder, **settings)
    with service.client:
        yield service
    service.store.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as service:
        yield service


def check(response: Response, status: int, kind: str) -> str:
    body = response.json()
    assert response.status_code == status == body["status"], body
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:mcfuser:problem:{kind}" and body["instance"]
    return str(body["detail"])


class TestWhere:
    @pytest.mark.parametrize(
        ("settings", "wanted"),
        [
            ({}, False), ({"require_key": True}, True), ({"host": "localhost"}, False),
            ({"host": "::1"}, False), ({"host": "0.0.0.0"}, True), ({"host": "::"}, True),
            ({"host": "10.0.0.5"}, True), ({"host": "build.example"}, True),
            ({"host": "0.0.0.0", "insecure": True}, False),
        ],
    )  # fmt: skip
    def test_keys_are_wanted(self, settings: Any, wanted: bool, tmp_path: Path) -> None:
        assert wants_keys(ServiceSettings(data=tmp_path, **settings)) is wanted

    def test_on_another_address_nothing_is_told_without_a_key(self, tmp_path: Path) -> None:
        with guarded(tmp_path, require_key=False, host="0.0.0.0") as service:
            check(service.ask("/v1/jobs"), 401, "no-key")
            assert service.ask("/v1/jobs", service.key("read")).status_code == 200

    def test_on_loopback_a_key_is_not_needed_but_must_be_right(self, tmp_path: Path) -> None:
        with guarded(tmp_path, require_key=False) as service:
            assert service.post(None).status_code == 202
            check(service.ask("/v1/jobs", KeyText.new().words), 401, "no-key")
            reader = service.key("read")
            assert service.ask("/v1/jobs", reader).status_code == 200
            check(service.post(reader), 403, "not-allowed")

    def test_keys_are_never_made_without_one(self, tmp_path: Path) -> None:
        for folder, settings in (("a", {}), ("b", {"host": "0.0.0.0", "insecure": True})):
            with guarded(tmp_path / folder, **{"require_key": False, **settings}) as service:
                for method in ("GET", "HEAD", "POST", "DELETE"):
                    answer = service.ask("/v1/keys", method=method, json={"name": "x"})
                    assert answer.status_code == 401

    def test_what_everyone_may_see(self, service: Guarded) -> None:
        for path in ("/", "/page/main.js", "/healthz", "/openapi.json"):
            for key in (None, "wrong", service.key(name=path)):
                assert service.ask(path, key).status_code == 200
        for path in ("/metrics", "/v1/devices", "/v1/jobs", "/v1/kernels", "/nowhere", "/healthz/",
                     "/page"):  # fmt: skip
            check(service.ask(path), 401, "no-key")


class TestKeys:
    def test_a_request_without_a_key_is_told_how_to_send_one(self, service: Guarded) -> None:
        answer = service.ask("/v1/jobs")
        assert "Authorization: Bearer" in check(answer, 401, "no-key")
        assert answer.headers["www-authenticate"] == 'Bearer realm="mcfuser"'

    @pytest.mark.parametrize(
        "header",
        ["Bearer", "Bearer ", "bearer x", "BEARER mcfuser_1", f"Bearer {'a' * 50_000}",
         "Bearer mcfuser_é", "Bearer a b c", "Bearer \xff"],
    )  # fmt: skip
    def test_odd_headers(self, service: Guarded, header: str) -> None:
        sent = {"Authorization": header.encode("latin-1")}
        answer = service.client.get("/v1/jobs", headers=sent)
        check(answer, 401, "no-key")
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]

    def test_other_schemes_are_a_proxys(self, service: Guarded, tmp_path: Path) -> None:
        basic = {"Authorization": "Basic bWU6c2VjcmV0"}
        check(service.client.get("/v1/jobs", headers=basic), 401, "no-key")
        with guarded(tmp_path / "other", require_key=False) as near:
            assert near.client.get("/v1/jobs", headers=basic).status_code == 200

    def test_two_keys_are_none(self, service: Guarded) -> None:
        key = service.key("read")
        twice = [("Authorization", f"Bearer {key}")] * 2
        check(service.client.get("/v1/jobs", headers=twice), 401, "no-key")
        assert service.client.get("/v1/jobs", headers=twice[:1]).status_code == 200

    def test_an_id_without_its_secret_is_nothing(self, service: Guarded) -> None:
        key = KeyText.parsed(service.key("admin"))
        assert key is not None
        other = KeyText.new().words
        head = f"mcfuser_{key.id}{other[20:-8]}"
        forged = KeyText.parsed(f"{head}{zlib.crc32(head.encode()):08x}")
        assert forged is not None and forged.id == key.id
        assert "not known" in check(service.ask("/v1/jobs", forged.words), 401, "no-key")
        assert "not copied whole" in check(service.ask("/v1/jobs", head), 401, "no-key")

    def test_it_ends_when_it_expires_or_is_revoked(
        self, service: Guarded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        brief = service.key("read", name="brief", lifetime=60.0)
        assert service.ask("/v1/jobs", brief).status_code == 200
        service.now += timedelta(seconds=60)
        assert "'brief' expired on" in check(service.ask("/v1/jobs", brief), 401, "no-key")
        kept = service.key("read", name="kept")
        assert service.ask("/v1/jobs", kept).status_code == 200
        revoke_key(service.store, kept[8:20])  # by another process
        assert service.ask("/v1/jobs", kept).status_code == 200, "known for five seconds"
        monkeypatch.setattr(access, "FRESH", 0.0)
        assert "'kept' was revoked on" in check(service.ask("/v1/jobs", kept), 401, "no-key")

    def test_its_use_is_noted(self, service: Guarded) -> None:
        key = service.key("read")
        service.ask("/v1/jobs", key)
        row = api_key(service.store, key[8:20])
        assert row is not None and row.used == service.now

    def test_a_silent_database_is_no_bug(
        self, service: Guarded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = service.key("read")

        def silent(*_: object) -> Any:
            raise OperationalError("SELECT", {}, Exception("gone"))

        with monkeypatch.context() as patched:
            patched.setattr(access, "api_key", silent)
            check(service.ask("/v1/jobs", key), 503, "storage")
        with monkeypatch.context() as patched:
            patched.setattr(access, "note_key_use", silent)
            assert service.ask("/v1/jobs", key).status_code == 200

    def test_the_log_names_the_key_and_never_shows_it(
        self, service: Guarded, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        key = service.key("read", name="ci of team a")
        service.ask("/v1/jobs", key)
        service.ask("/v1/jobs", key[:-1])
        service.post(key)
        assert [r.__dict__.get("key") for r in caplog.records if r.getMessage() == "request"] == [
            "ci of team a", None, None,
        ]  # fmt: skip
        assert not any(key[20:84] in str(vars(r)) for r in caplog.records)


class TestScopes:
    def test_every_route_needs_what_is_written(self, service: Guarded) -> None:
        paths = service.client.get("/openapi.json").json()["paths"]
        needs = {(m, p): needed(m.upper(), p) for p, found in paths.items() for m in found}
        for (method, path), scope in needs.items():
            if path in ("/healthz", "/livez", "/readyz"):
                assert scope is None
            elif path.startswith("/v1/keys"):
                assert scope == "admin", (method, path)
            elif method in ("get", "head"):
                assert scope == "read", (method, path)
            else:
                assert scope == ("submit" if "/jobs" in path else "import"), (method, path)
        assert needed("GET", "/metrics") == "read"
        assert needed("POST", "/v1/kernels/import") == "import"
        assert needed("POST", "/v2/unknown") == needed("PUT", "/v1/devices") == "admin"
        assert needed("GET", "/v1/keysx") == "read" and needed("GET", "/v1/keys/x") == "admin"

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_key_does_what_its_scope_says(self, service: Guarded, scope: str) -> None:
        key = service.key(scope)
        asked = {
            "read": service.ask("/v1/jobs", key),
            "submit": service.post(key),
            "import": service.ask("/v1/kernels/x", key, "POST"),
            "admin": service.ask("/v1/keys", key),
        }
        for name, answer in asked.items():
            if scope in (name, "admin"):
                assert answer.status_code in (200, 202, 404, 405), (name, answer.text)
            else:
                assert f"'{name}'" in check(answer, 403, "not-allowed")
                told = answer.headers["www-authenticate"]
                assert f'error="insufficient_scope", scope="{name}"' in told

    def test_a_key_without_a_scope_does_nothing(self, service: Guarded) -> None:
        check(service.ask("/v1/jobs", service.key()), 403, "not-allowed")

    def test_streams_are_for_readers(self, service: Guarded) -> None:
        both, poster = service.key("submit", "read"), service.key("submit")
        job = service.post(poster).json()["id"]
        service.store.cancel(service.claim().id)
        check(service.ask(f"/v1/jobs/{job}/events", poster), 403, "not-allowed")
        assert "event: state" in service.ask(f"/v1/jobs/{job}/events", both).text


class TestLimits:
    def test_too_many_requests_wait(self, service: Guarded) -> None:
        key, other = service.key("read", requests=3, period=3600.0), service.key("read", name="o")
        assert [service.ask("/v1/jobs", key).status_code for _ in range(3)] == [200] * 3
        answer = service.ask("/v1/jobs", key)
        assert "3 requests in 3600 s" in check(answer, 429, "too-many-requests")
        assert 1190 <= int(answer.headers["retry-after"]) <= 1200
        check(service.post(key), 429, "too-many-requests")
        assert service.ask("/v1/jobs", other).status_code == 200
        assert service.ask("/healthz", key).status_code == 200

    def test_too_many_queued_jobs_wait_and_leave_nothing(self, service: Guarded) -> None:
        key = service.key("submit", "read", queued=1, name="ci")
        assert service.post(key, b"first").status_code == 202
        answer = service.post(key, b"second")
        assert "key 'ci' has 1 queued jobs" in check(answer, 429, "too-many-queued")
        assert int(answer.headers["retry-after"]) > 0
        assert service.post(key, b"first").status_code == 202, "equal work takes no place"
        check(service.post(key, b"first", reuse="never"), 429, "too-many-queued")
        assert len(list(service.blobs.files())) == 1
        job = service.claim()
        assert service.post(key, b"second").status_code == 202
        service.store.fail(job.claim, {"type": "t", "status": 500, "detail": "no"})
        check(service.ask(f"/v1/jobs/{job.id}/retry", key, "POST"), 429, "too-many-queued")

    def test_a_model_that_does_not_fit_is_refused_for_good(self, service: Guarded) -> None:
        key = service.key("submit", disk=10, name="ci")
        assert service.post(key, b"x" * 6).status_code == 202
        answer = service.post(key, b"y" * 6)
        assert "may have 10 bytes" in check(answer, 507, "over-quota")
        assert "retry-after" not in answer.headers
        assert service.post(key, b"z" * 4).status_code == 202
        assert sum(size for _, size, _ in service.blobs.files()) == 10


class TestOwners:
    def test_a_key_cancels_and_retries_its_own_jobs(self, service: Guarded) -> None:
        mine, yours = (service.key("submit", name=n) for n in ("mine", "yours"))
        job = service.post(mine).json()["id"]
        path = f"/v1/jobs/{job}"
        detail = check(service.ask(path, yours, "DELETE"), 403, "not-allowed")
        assert "not posted with key 'yours' first" in detail
        assert service.ask(path, mine, "DELETE").status_code == 204
        assert service.ask(path, mine, "DELETE").status_code == 204
        check(service.ask(f"{path}/retry", yours, "POST"), 403, "not-allowed")
        assert service.ask(f"{path}/retry", mine, "POST").status_code == 202
        check(service.ask(f"/v1/jobs/{NOBODY}", mine, "DELETE"), 404, "no-such-job")

    def test_work_that_two_keys_post_is_ended_by_neither(self, service: Guarded) -> None:
        mine, yours, admin = (service.key(s, name=n) for s, n in (
            ("submit", "mine"), ("submit", "yours"), ("admin", "admin")))  # fmt: skip
        job = service.post(mine).json()["id"]
        assert service.post(yours).json()["id"] == job
        for key in (mine, yours):
            check(service.ask(f"/v1/jobs/{job}", key, "DELETE"), 403, "not-allowed")
        assert service.store.counts()["queued"] == 1
        assert service.ask(f"/v1/jobs/{job}", admin, "DELETE").status_code == 204

    def test_an_admin_sees_who_posted_a_job(self, service: Guarded) -> None:
        reader, admin = service.key("read"), service.key("admin")
        job = service.post(service.key("submit", name="ci")).json()
        assert job["posted_by"] is None
        for path in (f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}?wait=0.1"):
            assert service.ask(path, admin).json()["posted_by"] == "ci"
            assert service.ask(path, reader).json()["posted_by"] is None
        (listed,) = service.ask("/v1/jobs", admin).json()["items"]
        assert listed["posted_by"] == "ci"
        assert service.ask("/v1/jobs", reader).json()["items"][0]["posted_by"] is None

    def test_idempotency_keys_are_each_keys_own(self, service: Guarded) -> None:
        mine, yours = (service.key("submit", name=n) for n in ("mine", "yours"))
        same: dict[str, Any] = {"headers": {"Idempotency-Key": "1"}, "reuse": "never"}
        first = service.post(mine, **same).json()["id"]
        assert service.post(mine, **same).json()["id"] == first
        assert service.post(yours, **same).json()["id"] != first
        assert service.post(yours, b"other", headers={"Idempotency-Key": "2"}).status_code == 202
        assert service.post(mine, b"another", headers={"Idempotency-Key": "2"}).status_code == 202
