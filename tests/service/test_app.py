"""The HTTP interface, over a store with no worker: the tests do the work."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from mcfuser.errors import ModelError, SpaceError
from mcfuser.tune.exchange import lines_of
from mcfuser.tune.progress import Progress
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned
from mcfuser_db import Blobs, Job, Storage
from mcfuser_db.blobs import Incoming
from mcfuser_service import explaining
from mcfuser_service.app import create_app
from mcfuser_service.here_child import answer
from mcfuser_service.problems import KINDS
from mcfuser_service.settings import ServiceSettings
from tests.support.full import sqlite_full
from tests.support.kernels import tuned

MODULE = b"\x7fELF module"
ZIP = b"PK\x03\x04"
REPORT = {"chains": [{"expression": "mhnk"}]}


async def inspect(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if model.read_bytes() == b"full":
        raise SpaceError("the disk has no space for the unpacked archive")
    if model.read_bytes().startswith(b"bad"):
        raise ModelError("the model is not ONNX: it begins with b'bad'; give an ONNX file")


LOOKUP = {
    "answer": "miss", "asked": {}, "candidates": 0, "nearest": [], "sentences": [],
}  # fmt: skip


async def explain(chain: str, device: str | None, dtype: str) -> dict[str, Any]:
    return LOOKUP | {"kernel": f"{chain} {device} {dtype}"}


class Service:
    """A client, and what stands behind the application."""

    def __init__(self, folder: Path) -> None:
        self.settings = ServiceSettings(data=folder, max_model_bytes=1000, max_archive_bytes=3000)
        self.store = Storage(self.settings.database_url)
        self.blobs = Blobs(self.settings.blobs)
        self.alive = 1
        app = create_app(
            self.settings, self.store, self.blobs, lambda: self.alive, inspect, explain=explain
        )
        self.client = TestClient(app, base_url="http://localhost")

    def post(self, model: bytes = b"model", key: str | None = None, **query: Any) -> Response:
        headers = {"Idempotency-Key": key} if key is not None else {}
        return self.client.post("/v1/jobs", content=model, params=query, headers=headers)

    def claim(self) -> Job:
        job = self.store.claim("w", 60)
        assert job is not None and job.claim is not None
        return job

    def fail(self) -> None:
        """Fails the oldest job."""
        self.store.fail(self.claim().claim, {"type": "t", "status": 500, "detail": "no"})

    def work(self) -> None:
        """Does the oldest job."""
        job = self.claim()
        assert self.blobs.read(job.model)
        self.store.finish(job.claim, self.blobs.put(MODULE), len(MODULE), REPORT)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    with service.client:
        yield service
    service.store.close()


def check_problem(response: Response, status: int, kind: str) -> str:
    """The detail of a response that is a problem."""
    body = response.json()
    assert response.status_code == status == body["status"], body
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:mcfuser:problem:{kind}"
    assert body["title"] and body["instance"] == response.request.url.path
    return str(body["detail"])


class TestPost:
    def test_a_model_becomes_a_job(self, service: Service) -> None:
        response = service.post(shape=["b=1", "a=1x2"], device="h100", seed=3, timeout="9s")
        body = response.json()
        assert response.status_code == 202
        assert response.headers["location"] == f"/v1/jobs/{body['id']}"
        assert int(response.headers["retry-after"]) > 0
        assert (body["state"], body["cached"]) == ("queued", False)
        assert body["options"] == {"device": "nvidia/h100", "shape": ["a=1x2", "b=1"], "seed": 3,
                                   "trials": None, "timeout": 9.0, "retune": False,
                                   "precision": None, "buckets": 4, "in_place": []}  # fmt: skip
        sha256 = hashlib.sha256(b"model").hexdigest()
        assert body["model"] == {"sha256": sha256, "bytes": 5}
        assert service.blobs.read(sha256) == b"model"

    def test_the_same_again_shares_the_job_then_answers_from_the_cache(
        self, service: Service
    ) -> None:
        with ThreadPoolExecutor(4) as pool:
            first = {r.json()["id"] for r in pool.map(lambda _: service.post(), range(8))}
        assert len(first) == 1
        service.work()
        again = service.post().json()
        assert {again["id"]} == first
        assert (again["state"], again["cached"], again["report"]) == ("done", True, REPORT)
        assert service.store.counts()["done"] == 1
        assert service.post(seed=1).json()["cached"] is False
        assert service.post(b"other").json()["cached"] is False

    def test_what_is_to_be_tuned_again_is_a_job_of_its_own(self, service: Service) -> None:
        first = service.post().json()["id"]
        service.work()
        again = service.post(retune="true").json()
        assert again["id"] != first and (again["state"], again["cached"]) == ("queued", False)
        service.work()
        assert service.post(retune="true").json()["id"] not in (first, again["id"])
        assert service.post(retune="false").json()["id"] == first
        check_problem(service.post(retune="perhaps"), 422, "bad-option")

    def test_a_lost_module_is_made_again(self, service: Service) -> None:
        job = service.post().json()["id"]
        service.work()
        service.blobs.path(hashlib.sha256(MODULE).hexdigest()).unlink()
        check_problem(service.client.get(f"/v1/jobs/{job}/module"), 410, "lost")
        again = service.post().json()
        assert (again["id"], again["state"], again["cached"]) == (job, "queued", False)
        service.work()
        assert service.client.get(f"/v1/jobs/{job}/module").content == MODULE

    @pytest.mark.parametrize("damage", [MODULE[:-1], b"", b"\x7fELF modulf", MODULE + b"x"])
    def test_a_damaged_module_is_not_served_and_is_made_again(
        self, service: Service, damage: bytes
    ) -> None:
        job = service.post().json()["id"]
        service.work()
        path, tag = f"/v1/jobs/{job}/module", hashlib.sha256(MODULE).hexdigest()
        assert service.client.get(path).content == MODULE
        service.blobs.path(tag).write_bytes(damage)
        for headers in ({}, {"If-None-Match": f'"{tag}"'}, {"Range": "bytes=0-1"}):
            check_problem(service.client.get(path, headers=headers), 410, "lost")
        assert service.client.head(path).status_code == 410
        again = service.post().json()
        assert (again["id"], again["state"], again["cached"]) == (job, "queued", False)
        service.work()
        assert service.client.get(path).content == MODULE

    def test_a_damaged_model_heals_when_it_is_posted_again(self, service: Service) -> None:
        path = service.blobs.path(hashlib.sha256(b"model").hexdigest())
        service.post()
        for _ in range(2):  # while its job is queued, and when it is done
            path.write_bytes(b"mod")
            service.post()
            assert path.read_bytes() == b"model"
            if service.store.counts()["queued"]:
                service.work()

    @pytest.mark.parametrize("where", ["write", "keep", "database"])
    def test_a_full_disk_is_507_and_leaves_nothing(
        self, service: Service, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            if where == "database":
                patched.setattr(Storage, "submit", lambda store, *_: sqlite_full(store))
            else:
                patched.setattr(Incoming, where, full)
            response = service.post()
        assert "disk is full" in check_problem(response, 507, "disk-full")
        assert int(response.headers["retry-after"]) > 0
        assert list((service.settings.blobs / "arriving").iterdir()) == []
        assert sum(service.store.counts().values()) == 0
        assert service.post().status_code == 202

    def test_a_folder_that_cannot_be_used_is_503(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> Any:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Incoming, "keep", broken)
        check_problem(service.post(), 503, "storage")

    def test_the_results_of_a_job_that_was_given_up_blame_no_server(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcfuser_db.again.FIRST", 0.0)
        id = service.post().json()["id"]
        while service.client.get(f"/v1/jobs/{id}").json()["state"] != "failed":
            assert service.store.retry(service.claim().claim)
        paths = service.client.get("/openapi.json").json()["paths"]
        for what in ("module", "report", "attestation"):
            answer = service.client.get(f"/v1/jobs/{id}/{what}")
            check_problem(answer, 422, "gave-up")
            told = paths[f"/v1/jobs/{{id}}/{what}"]["get"]["responses"]
            assert "`gave-up`" in told["422"]["description"]
            assert "`gave-up`" not in told["500"]["description"]
            assert answer.json()["title"] == KINDS["gave-up"][1]

    def test_a_failed_job_is_tried_anew(self, service: Service) -> None:
        first = service.post().json()["id"]
        job = service.store.claim("w", 60)
        assert job is not None and job.claim is not None
        service.store.fail(job.claim, {"type": "t", "status": 500, "detail": "no"})
        assert service.post().json()["id"] != first

    @pytest.mark.parametrize(
        ("model", "query", "status", "kind", "words"),
        [
            (b"", {}, 422, "empty-body", "--data-binary"),
            (b"bad", {}, 422, "bad-model", "not ONNX"),
            (b"m", {"device": "tpu"}, 422, "bad-option", "'tpu' is not known; use one of cpu"),
            (b"m", {"shape": "x=ax2"}, 422, "bad-option", "input=1x128"),
            (b"m", {"seed": "many"}, 422, "bad-option", "seed"),
            (b"m", {"tiemout": 3}, 422, "bad-option", "tiemout"),
            (b"m" * 1001, {}, 413, "too-large", "1000 bytes, .* MCFUSER_MAX_MODEL_BYTES"),
            (b"m" * 3001, {}, 413, "too-large", "3000 bytes, .* MCFUSER_MAX_ARCHIVE_BYTES"),
            (ZIP * 3001, {}, 413, "too-large", "3000 bytes, .* MCFUSER_MAX_ARCHIVE_BYTES"),
            (b"full", {}, 507, "disk-full", "no space"),
        ],
    )
    def test_bad_requests_are_problems_and_leave_nothing(
        self, service: Service, model: bytes, query: dict[str, Any], status: int, kind: str,
        words: str,
    ) -> None:  # fmt: skip
        detail = check_problem(service.post(model, **query), status, kind)
        assert re.search(words, detail)
        assert sum(service.store.counts().values()) == 0
        assert [p for p in service.settings.blobs.rglob("*") if p.is_file()] == []

    def test_a_long_body_of_unknown_length_is_cut_off(self, service: Service) -> None:
        sent = 0

        def parts() -> Iterator[bytes]:
            nonlocal sent
            for _ in range(100):
                sent += 100
                yield b"x" * 100

        response = service.client.post("/v1/jobs", content=parts())
        check_problem(response, 413, "too-large")

    @pytest.mark.parametrize("head", [ZIP, b"\x1f\x8b", bytes(257) + b"ustar"])
    def test_an_archive_may_be_larger_than_a_model(self, service: Service, head: bytes) -> None:
        body = head + bytes(2000)
        for content in (body, (body[i : i + 100] for i in range(0, len(body), 100))):
            response = service.client.post("/v1/jobs", content=content)
            assert response.status_code == 202, response.text
        assert service.store.counts()["queued"] == 1

    def test_a_form_is_not_a_model(self, service: Service) -> None:
        response = service.client.post("/v1/jobs", files={"model": b"model"})
        check_problem(response, 415, "not-raw")


class TestReuse:
    def test_only_gives_the_job_that_is_there(self, service: Service) -> None:
        detail = check_problem(service.post(reuse="only"), 404, "nothing-to-reuse")
        assert hashlib.sha256(b"model").hexdigest() in detail
        assert sum(service.store.counts().values()) == 0
        id = service.post().json()["id"]
        for state in ("queued", "done"):
            found = service.post(reuse="only")
            assert found.status_code == 202 and found.json()["id"] == id
            assert (found.json()["state"], found.json()["cached"]) == (state, state == "done")
            if state == "queued":
                service.work()
        check_problem(service.post(reuse="only", seed=1), 404, "nothing-to-reuse")
        service.blobs.path(hashlib.sha256(MODULE).hexdigest()).unlink()
        check_problem(service.post(reuse="only"), 404, "nothing-to-reuse")
        assert service.store.counts()["done"] == 1

    def test_never_makes_a_job_of_its_own(self, service: Service) -> None:
        shared = service.post().json()["id"]
        alone = [service.post(reuse="never").json()["id"] for _ in range(2)]
        assert len({shared, *alone}) == 3
        for _ in range(3):
            service.work()
        assert service.post().json()["id"] == shared
        assert service.post(reuse="never").json()["state"] == "queued"

    def test_a_job_that_is_tuned_again_is_never_another_one(self, service: Service) -> None:
        detail = check_problem(service.post(reuse="only", retune=True), 422, "bad-option")
        assert "leave 'only' away" in detail
        assert service.post(reuse="never", retune=True).status_code == 202
        check_problem(service.post(reuse="always"), 422, "bad-option")


class TestName:
    def test_a_job_has_a_name_that_others_see(self, service: Service) -> None:
        id = service.post(name="ResNet-50, nightly").json()["id"]
        (listed,) = service.client.get("/v1/jobs").json()["items"]
        assert listed["name"] == "ResNet-50, nightly" and listed["id"] == id
        assert service.post(name="other").json()["name"] == "ResNet-50, nightly"
        unnamed = service.post(b"second").json()
        assert unnamed["name"] is None
        assert service.post(b"second", name="später").json()["name"] == "später"
        for bad in ("", "x" * 201, "a\nb", "a\x1b[2J"):
            check_problem(service.post(name=bad), 422, "bad-option")

    def test_the_highest_priority_is_done_first_and_then_the_oldest(self, service: Service) -> None:
        ids = [
            service.post(b"%d" % n, priority=p).json()["id"] for n, p in enumerate((0, 5, -3, 5))
        ]
        raised = service.post(b"2", priority=7).json()
        assert (raised["id"], raised["priority"]) == (ids[2], 7)
        assert service.post(b"2", priority=1).json()["priority"] == 7, "it is never lowered"
        order = [str(service.claim().id) for _ in ids]
        assert order == [ids[2], ids[1], ids[3], ids[0]]
        for bad in (101, -101, "high", 0.5):
            check_problem(service.post(priority=bad), 422, "bad-option")


class TestRetry:
    def retry(self, service: Service, id: str) -> Response:
        return service.client.post(f"/v1/jobs/{id}/retry")

    def test_a_failed_and_a_cancelled_job_are_put_back(self, service: Service) -> None:
        id = service.post().json()["id"]
        for end in (service.fail, lambda: service.client.delete(f"/v1/jobs/{id}")):
            end()
            back = self.retry(service, id)
            assert back.status_code == 202 and back.headers["location"] == f"/v1/jobs/{id}"
            found = back.json()
            assert (found["state"], found["attempts"], found["problem"]) == ("queued", 0, None)
        service.work()
        assert service.client.get(f"/v1/jobs/{id}/module").content == MODULE

    def test_what_is_not_over_or_has_succeeded_stays(self, service: Service) -> None:
        id = service.post().json()["id"]
        assert "queued" in check_problem(self.retry(service, id), 409, "not-over")
        service.work()
        assert "retune=true" in check_problem(self.retry(service, id), 409, "over")
        unknown = "00000000-0000-4000-8000-000000000000"
        check_problem(self.retry(service, unknown), 404, "no-such-job")

    def test_a_job_whose_model_is_gone_cannot_be_tried(self, service: Service) -> None:
        id = service.post().json()["id"]
        service.fail()
        service.blobs.path(hashlib.sha256(b"model").hexdigest()).unlink()
        check_problem(self.retry(service, id), 410, "lost")
        assert service.client.get(f"/v1/jobs/{id}").json()["state"] == "failed"

    def test_the_job_of_a_later_post_is_the_answer(self, service: Service) -> None:
        first = service.post().json()["id"]
        service.fail()
        second = service.post().json()["id"]
        assert self.retry(service, first).json()["id"] == second != first
        assert service.client.get(f"/v1/jobs/{first}").json()["state"] == "failed"
        service.work()
        done = self.retry(service, first).json()
        assert (done["id"], done["state"], done["cached"]) == (second, "done", True)

    def test_of_many_at_once_one_puts_it_back(self, service: Service) -> None:
        id = service.post().json()["id"]
        service.fail()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: self.retry(service, id), range(8)))
        assert sorted(a.status_code for a in answers) == [202] + [409] * 7


class TestIdempotency:
    def test_a_key_gives_the_same_job_whatever_became_of_it(self, service: Service) -> None:
        first = service.post(key="k1", reuse="never").json()
        for end in (service.fail, None):
            again = service.post(key='"k1"', reuse="never")  # in quotes, as the draft has it
            assert again.status_code == 202 and again.json()["id"] == first["id"]
            if end is not None:
                end()
        assert again.json()["state"] == "failed"
        done = service.post(key="k2").json()["id"]
        service.work()
        found = service.post(key="k2").json()
        assert (found["id"], found["cached"]) == (done, True)
        service.blobs.path(hashlib.sha256(MODULE).hexdigest()).unlink()
        assert service.post(key="k2").json()["state"] == "done", "nothing is done again"

    def test_it_stands_for_one_request(self, service: Service) -> None:
        id = service.post(key="k", seed=1).json()["id"]
        for model, query in ((b"other", {"seed": 1}), (b"model", {}), (b"model", {"seed": 2}),
                             (b"model", {"seed": 1, "name": "n"})):  # fmt: skip
            detail = check_problem(service.post(model, "k", **query), 422, "key-reused")
            assert id in detail
        assert sum(service.store.counts().values()) == 1
        assert service.post(seed=1).json()["id"] == id, "without a key as ever"

    def test_a_wrong_request_leaves_no_key(self, service: Service) -> None:
        check_problem(service.post(b"bad", "k"), 422, "bad-model")
        check_problem(service.post(key="k", reuse="only"), 404, "nothing-to-reuse")
        assert service.post(key="k").status_code == 202

    def test_many_at_once_with_a_key_are_one_job(self, service: Service) -> None:
        with ThreadPoolExecutor(8) as pool:
            posts = list(pool.map(lambda _: service.post(key="k", reuse="never"), range(16)))
        assert {p.status_code for p in posts} == {202}
        assert len({p.json()["id"] for p in posts}) == 1
        assert service.store.counts()["queued"] == 1

    @pytest.mark.parametrize("key", ["", '""', "x" * 256, "caf\u00e9", "a\tb"])
    def test_a_malformed_one_is_refused(self, service: Service, key: str) -> None:
        headers = {b"Idempotency-Key": key.encode("latin-1")}
        answer = service.client.post("/v1/jobs", content=b"model", headers=headers)
        assert "idempotency-key" in check_problem(answer, 422, "bad-option")


class TestLog:
    def test_it_is_plain_text_with_a_line_for_what_was_done(self, service: Service) -> None:
        id = service.post().json()["id"]
        service.fail()
        answer = service.client.get(f"/v1/jobs/{id}/log")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        lines = answer.text.splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == [
            f"posted for cpu: model {hashlib.sha256(b'model').hexdigest()}",
            "attempt 1 of 3 begins; worker 'w'",
            "failed: no",
        ]
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)

    def test_a_long_one_says_what_is_missing(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcfuser_db.joblog.MOST_LINES", 2)
        id = service.post().json()["id"]
        service.work()
        first, *rest = service.client.get(f"/v1/jobs/{id}/log").text.splitlines()
        assert first == "(1 earlier lines are no longer kept)" and len(rest) == 2
        unknown = service.client.get("/v1/jobs/00000000-0000-4000-8000-000000000000/log")
        check_problem(unknown, 404, "no-such-job")


class TestJob:
    def test_it_is_watched(self, service: Service) -> None:
        id = service.post().json()["id"]
        job = service.store.claim("w", 60)
        assert job is not None and job.claim is not None
        service.store.renew(job.claim, 60, Progress("measuring attention", 3, 8))
        response = service.client.get(f"/v1/jobs/{id}")
        body = response.json()
        assert (body["state"], body["stage"]) == ("running", "measuring attention")
        assert body["candidates"] == {"done": 3, "total": 8}
        assert body["started"].endswith("Z") and "retry-after" in response.headers
        late = service.client.get(f"/v1/jobs/{id}/module")
        assert "measuring attention" in check_problem(late, 409, "not-ready")
        assert "retry-after" in late.headers

    def test_its_module_is_fetched_once(self, service: Service) -> None:
        id = service.post().json()["id"]
        service.work()
        body = service.client.get(f"/v1/jobs/{id}").json()
        response = service.client.get(body["module"]["href"])
        digest = hashlib.sha256(MODULE).digest()
        assert response.content == MODULE
        assert response.headers["etag"] == f'"{digest.hex()}"' == f'"{body["module"]["sha256"]}"'
        assert response.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest).decode()}:"
        for tags in (f'"{digest.hex()}"', f'"x", W/"{digest.hex()}"', "*"):
            again = service.client.get(body["module"]["href"], headers={"If-None-Match": tags})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == response.headers["etag"]
        other = service.client.get(body["module"]["href"], headers={"If-None-Match": '"x"'})
        assert other.status_code == 200
        assert service.client.get(f"/v1/jobs/{id}/report").json() == REPORT

    def test_a_failed_one_answers_with_its_problem(self, service: Service) -> None:
        id = service.post().json()["id"]
        job = service.store.claim("w", 60)
        assert job is not None and job.claim is not None
        found = {"type": "urn:mcfuser:problem:bad-model", "title": "t", "status": 422,
                 "detail": "operator 'Det' is not known"}  # fmt: skip
        service.store.fail(job.claim, found)
        assert service.client.get(f"/v1/jobs/{id}").json()["problem"] == found
        for part in ("module", "report"):
            response = service.client.get(f"/v1/jobs/{id}/{part}")
            assert "Det" in check_problem(response, 422, "bad-model")

    def test_it_is_cancelled(self, service: Service) -> None:
        id = service.post().json()["id"]
        for _ in range(2):
            assert service.client.delete(f"/v1/jobs/{id}").status_code == 204
        assert service.client.get(f"/v1/jobs/{id}").json()["state"] == "cancelled"
        check_problem(service.client.get(f"/v1/jobs/{id}/module"), 410, "cancelled")
        done = service.post().json()["id"]
        service.work()
        check_problem(service.client.delete(f"/v1/jobs/{done}"), 409, "over")

    def test_unknown_ones(self, service: Service) -> None:
        unknown = "/v1/jobs/00000000-0000-4000-8000-000000000000"
        for method, path in (("GET", ""), ("GET", "/module"), ("GET", "/report"), ("DELETE", "")):
            check_problem(service.client.request(method, unknown + path), 404, "no-such-job")
        check_problem(service.client.get("/v1/jobs/etc"), 422, "bad-option")
        assert service.client.get("/v1/jobs/..%2f..%2fetc").status_code in (404, 422)

    def test_lists_by_pages(self, service: Service) -> None:
        ids = [service.post(f"model {n}".encode()).json()["id"] for n in range(5)]
        path, found = "/v1/jobs?limit=2&state=queued", []
        while path:
            page = service.client.get(path).json()
            found += [job["id"] for job in page["items"]]
            path = page["next"]
        assert found == ids[::-1]
        check_problem(service.client.get("/v1/jobs?limit=0"), 422, "bad-option")


class TestKernels:
    def test_they_are_listed_by_pages_and_fetched_whole(self, service: Service) -> None:
        made = [tuned(str(n), device=device) for n, device in enumerate(("cpu", "nvidia/l4") * 2)]
        for kernel in made:
            service.store.put(kernel)
        path, found = "/v1/kernels?device=nvidia/l4&chain=gemm:1,64,64,32,32&limit=1", []
        while path:
            page = service.client.get(path).json()
            found += page["items"]
            path = page["next"]
        assert [k["key"] for k in found] == [made[3].key, made[1].key]
        assert "source" not in found[0] and found[0]["measured"] == made[3].measured
        whole = service.client.get(f"/v1/kernels/{made[0].key}").json()
        assert whole.pop("occupancy") is None  # which is not kept
        assert Tuned.from_json(whole) == made[0]

    def test_unknown_ones(self, service: Service) -> None:
        check_problem(service.client.get(f"/v1/kernels/{'0' * 64}"), 404, "no-such-kernel")
        check_problem(service.client.get("/v1/kernels/x"), 422, "bad-option")
        there = f"/v1/kernels/{'0' * 64}/candidates"
        check_problem(service.client.get(there), 404, "no-such-kernel")

    def test_candidates_are_listed_by_pages(self, service: Service) -> None:
        one = replace(tuned(), made=None)
        made = tuned().made
        assert made is not None
        tried = [Tried("a1a2", {"a1": n}, None, 1, True, {}, 1e-6 * n, 1e-7) for n in range(1, 6)]
        service.store.keep_tried(made, one.chain, "cpu", tried)

        def listed() -> list[dict[str, Any]]:
            path, found = f"/v1/kernels/{made.digest}/candidates?limit=2", []
            while path:
                page = service.client.get(path).json()
                found += page["items"]
                path = page["next"]
            return found

        assert [c["tiles"] for c in listed()] == [{"a1": n} for n in range(1, 6)]
        service.store.put(replace(one, key=made.digest))
        assert [c["tiles"] for c in listed()] == [{"m": n} for n in range(1, 6)]
        assert listed()[0]["expression"] == "mn" and listed()[0]["failed"] is None

    def test_they_are_searched_and_ordered(self, service: Service) -> None:
        for n in range(5):
            service.store.put(
                replace(tuned(str(n), device=("cpu", "nvidia/l4")[n % 2]), measured=(9 - n) * 1e-6)
            )
        path, found = "/v1/kernels?q=GEMM%20cpu&sort=time&order=asc&limit=2", []
        while path:
            page = service.client.get(path).json()
            found += [k["key"][-1] for k in page["items"]]
            path = page["next"]
        assert found == ["4", "2", "0"]
        first = service.client.get("/v1/kernels?sort=device&device=nvidia/l4").json()
        assert [k["key"][-1] for k in first["items"]] == ["3", "1"] and first["next"] is None
        assert first["items"][0]["dtype"] == "float32"
        for query in ("sort=size", "order=up", "chain=x&q=y", "chain=x&sort=time", "q=%00"):
            check_problem(service.client.get(f"/v1/kernels?{query}"), 422, "bad-option")

    def test_ages_and_the_roofline(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            explaining, "run", lambda module, request, limits: answer(request, print)
        )
        service.store.put(replace(tuned("1"), device="nvidia/h200"))
        key = tuned("1").key
        ages = service.client.get(f"/v1/kernels/ages?key={key}&key={'f' * 64}&key={key}").json()
        assert [(a["key"], a["age"]) for a in ages["items"]] == [(key, "outdated")]
        many = "&".join(f"key={n:064x}" for n in range(101))
        for query in ("", "key=x", many):
            check_problem(service.client.get(f"/v1/kernels/ages?{query}"), 422, "bad-option")
        found = service.client.get(f"/v1/kernels/{key}/roofline").json()
        assert [k["key"] for k in found["kernels"]] == [key] and found["bandwidth"] > 1e12
        check_problem(service.client.get(f"/v1/kernels/{'0' * 64}/roofline"), 404, "no-such-kernel")

    def test_kernels_are_exported_as_lines(self, service: Service) -> None:
        for key, device in (("1", "cpu"), ("2", "nvidia/l4")):
            service.store.put(tuned(key, device=device))
        answer = service.client.get("/v1/kernels/export")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert len(list(lines_of(io.BytesIO(answer.content)))) == 2
        for query in ("device=cpu", f"key={tuned('2').key}"):
            some = service.client.get(f"/v1/kernels/export?{query}").text
            assert len(some.splitlines()) == 2, query

    def test_a_miss_is_explained(self, service: Service) -> None:
        asked = service.client.get("/v1/kernels/explain?chain=gemm:1,64,64,32,32&dtype=float16")
        assert asked.json() == LOOKUP | {"kernel": "gemm:1,64,64,32,32 None float16"}
        check_problem(service.client.get("/v1/kernels/explain"), 422, "bad-option")


class TestRest:
    def test_health_tells_when_no_worker_lives(self, service: Service) -> None:
        assert service.client.get("/healthz").json()["status"] == "ok"
        service.alive = 0
        response = service.client.get("/healthz")
        assert (response.status_code, response.json()["status"]) == (503, "degraded")

    def test_metrics_count(self, service: Service) -> None:
        service.post()
        service.post()
        service.client.get("/v1/jobs/00000000-0000-4000-8000-000000000000")
        text = service.client.get("/metrics").text
        for line in (
            'mcfuser_jobs{state="queued"} 1.0', "mcfuser_workers 1.0", "mcfuser_kernels 0.0",
            'mcfuser_submissions_total{answer="new"} 1.0',
            'mcfuser_submissions_total{answer="shared"} 1.0',
            'mcfuser_http_requests_total{method="GET",route="/v1/jobs/{id}",status="404"} 1.0',
        ):  # fmt: skip
            assert line in text.splitlines()

    def test_devices(self, service: Service) -> None:
        devices = {d["name"]: d for d in service.client.get("/v1/devices").json()}
        assert devices["cpu"]["kind"] == "cpu"
        assert devices["nvidia/h200"]["arch"] == "sm_90"

    def test_other_sites_are_kept_out(self, service: Service) -> None:
        get, post = service.client.get, service.client.post
        response = get("/v1/jobs", headers={"Host": "evil.example"})
        check_problem(response, 421, "wrong-host")
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            response = post("/v1/jobs", content=b"model", headers={"Origin": origin})
            check_problem(response, 403, "cross-origin")
        own = {"Origin": "http://localhost"}
        assert post("/v1/jobs", content=b"model", headers=own).status_code == 202
        for host in ("127.0.0.1:8642", "[::1]:8642", "localhost:1"):
            assert get("/v1/jobs", headers={"Host": host}).status_code == 200

    def test_every_error_is_a_problem(self, service: Service) -> None:
        for response in (service.client.get("/nowhere"), service.client.put("/v1/jobs")):
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["status"] == response.status_code

    def test_a_broken_database_is_a_problem(self, service: Service) -> None:
        with service.store._engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE jobs")
        response = service.client.get("/v1/jobs")
        check_problem(response, 503, "storage")
        assert "jobs" not in response.json()["detail"]
