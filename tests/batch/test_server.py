"""A server as a batch asks it: again after a while, not for ever, and in sentences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from mcfuser.batch import server
from mcfuser.batch.address import JOB, public
from mcfuser.batch.entry import Unreachable
from mcfuser.batch.server import ServerClient, ServerRefusal, connected
from mcfuser.batch.state import ENVELOPE
from mcfuser.errors import InputError

JOB_NAME = "04b9f73c-a4b6-46e5-add7-4601fb1225bf"
Answer = httpx.Response | httpx.TransportError


def answering(*answers: Answer) -> tuple[ServerClient, list[httpx.Request]]:
    """A client of a server that gives these answers, the last one for ever; and the requests."""
    left: Iterator[Answer] = iter(answers)
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        request.read()
        asked.append(request)
        answer = next(left, answers[-1])
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    client = httpx.Client(transport=httpx.MockTransport(handle))
    return ServerClient("http://user:secret@host:1", client, patience=0.0), asked


def pauses() -> tuple[list[float], Callable[[float], None]]:
    waited: list[float] = []
    return waited, waited.append


def ok(**document: object) -> httpx.Response:
    return httpx.Response(200, json=document)


REFUSED = httpx.ConnectError("Connection refused")


def test_a_model_is_posted_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"model")
    there, asked = answering(httpx.Response(202, json={"id": JOB_NAME}))
    options = [("device", "cpu"), ("shape", "x=1x2"), ("shape", "y=3")]
    assert there.post(tmp_path / "m.onnx", options, pauses()[1]) == {"id": JOB_NAME}
    (request,) = asked
    assert request.method == "POST" and request.content == b"model"
    assert request.url.params.multi_items() == options
    assert request.headers["content-length"] == "5"


def test_a_server_that_is_busy_or_restarted_is_asked_again() -> None:
    busy = httpx.Response(429, headers={"Retry-After": "7"})
    there, asked = answering(busy, httpx.Response(503), REFUSED, ok(id=1))
    there.patience = 60.0
    waited, pause = pauses()
    assert there.job(JOB_NAME, pause) == {"id": 1}
    assert waited == [7.0, 1.0, server._PAUSE] and len(asked) == 4


def test_a_server_that_is_away_is_given_up_for_good() -> None:
    there, asked = answering(REFUSED)
    for _ in range(2):
        with pytest.raises(Unreachable, match="'http://host:1' cannot be reached: Connection ref"):
            there.job(JOB_NAME, pauses()[1])
    assert len(asked) == 1


def test_the_waiting_ends_where_the_batch_does() -> None:
    there, _ = answering(httpx.Response(429))

    class Over(Exception): ...

    def pause(seconds: float) -> None:
        raise Over

    with pytest.raises(Over):
        there.job(JOB_NAME, pause)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(422, json={"detail": "the model is not ONNX"}), "the model is not ONNX"),
        (httpx.Response(404, text="<h1>gone</h1>"), "HTTP status 404"),
        (httpx.Response(302, headers={"Location": "/x"}), "HTTP status 302"),
        (httpx.Response(200, text="[]"), "the answer is no JSON object"),
        (httpx.Response(200, text="[" * 100_000), "the answer is no JSON object"),
    ],
)
def test_a_refusal_is_the_servers_sentence(answer: httpx.Response, words: str) -> None:
    with pytest.raises(ServerRefusal, match=words):
        answering(answer)[0].job(JOB_NAME, pauses()[1])


def test_a_module_is_kept_only_with_its_hash(tmp_path: Path) -> None:
    there, _ = answering(httpx.Response(200, content=b"module"))
    path, right = tmp_path / "module.so", hashlib.sha256(b"module").hexdigest()
    with pytest.raises(ServerRefusal, match="SHA-256"):
        there.module(JOB_NAME, path, "0" * 64, pauses()[1])
    assert not list(tmp_path.iterdir())
    there.module(JOB_NAME, path, right, pauses()[1])
    assert path.read_bytes() == b"module" and list(tmp_path.iterdir()) == [path]


def test_a_report_is_written_as_it_came(tmp_path: Path) -> None:
    there, asked = answering(ok(chains=[]))
    there.report(JOB_NAME, tmp_path / "report.json", pauses()[1])
    assert json.loads((tmp_path / "report.json").read_text()) == {"chains": []}
    assert asked[0].url.path == f"/v1/jobs/{JOB_NAME}/report"


def test_a_signature_is_written_where_there_is_one(tmp_path: Path) -> None:
    there, asked = answering(httpx.Response(200, content=b"signed\n"), httpx.Response(404),
                             httpx.Response(410))  # fmt: skip
    path = tmp_path / ENVELOPE
    there.attestation(JOB_NAME, path, pauses()[1])
    assert path.read_bytes() == b"signed\n"
    assert asked[0].url.path == f"/v1/jobs/{JOB_NAME}/attestation"
    there.attestation(JOB_NAME, path, pauses()[1])
    assert not path.exists(), "it was that of an earlier module"
    with pytest.raises(ServerRefusal):
        there.attestation(JOB_NAME, path, pauses()[1])


def test_a_greeting_tells_the_version_or_that_nobody_is_there() -> None:
    there, _ = answering(httpx.Response(503, json={"version": "1+a"}))
    there.greet()
    assert there.version == "1+a"
    away, _ = answering(REFUSED)
    away.greet()
    assert away.version is None and away.down is not None
    for answer in (ok(status="fine"), httpx.Response(404), httpx.Response(200, text="hello")):
        with pytest.raises(InputError, match="'http://host:1' is no server of mcfuser"):
            answering(answer)[0].greet()


@pytest.mark.parametrize("words", ["host:8642", "ftp://host", "http://", "http://h?x=1", "x y"])
def test_what_is_no_address_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="is no server's address"):
        connected(words)


def test_a_key_is_checked_before_anything_is_posted() -> None:
    for status in (401, 403):
        refused = httpx.Response(status, json={"detail": "the key is not known here"})
        there, asked = answering(ok(version="1"), refused)
        there.greet()
        with pytest.raises(InputError, match=r"'http://host:1' refuses requests without a key"):
            there.check_key()
        there.client.headers["Authorization"] = "Bearer x"
        with pytest.raises(InputError, match=r"refuses the key in MCFUSER_API_KEY: the key is"):
            there.check_key()
        assert [r.url.path for r in asked] == ["/healthz"] + ["/v1/devices"] * 2
    for answer in (ok(), REFUSED):
        answering(answer)[0].check_key()  # it was not reached before: that is told later


def test_requests_are_sent_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("authorization"))
        return ok(version="1")

    real = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **more: real(transport=httpx.MockTransport(handle), **more)
    )
    connected("http://host:1/", "mcfuser_1_2")
    connected("http://host:1")
    connected("http://me:secret@host:1")
    assert sent == ["Bearer mcfuser_1_2"] * 2 + [None] * 2 + ["Basic bWU6c2VjcmV0"] * 2
    with pytest.raises(InputError, match="leave the other away") as both:
        connected("http://me:secret@host:1", "mcfuser_1_2")
    assert "secret" not in str(both.value)
    for odd in ("a\nb", "schlüssel"):
        with pytest.raises(InputError, match="MCFUSER_API_KEY has characters") as refused:
            connected("http://host:1", odd)
        assert odd not in str(refused.value)


def test_a_quota_that_is_spent_is_a_refusal_and_a_full_disk_is_not(tmp_path: Path) -> None:
    spent = httpx.Response(507, json={"detail": "models of key 'ci' may have 10 bytes"})
    with pytest.raises(ServerRefusal, match="may have 10 bytes"):
        answering(spent)[0].job(JOB_NAME, pauses()[1])
    full = httpx.Response(507, headers={"Retry-After": "60"})
    waited, pause = pauses()
    assert answering(full, ok(id=1))[0].job(JOB_NAME, pause) == {"id": 1} and waited == [60.0]


def test_addresses_of_jobs() -> None:
    match = JOB.fullmatch(f"https://me:secret@host:8/base/v1/jobs/{JOB_NAME}")
    assert match is not None
    assert match.groupdict() == {"server": "https://me:secret@host:8/base", "job": JOB_NAME}
    assert public(match["server"]) == "https://host:8/base"
    for words in (JOB_NAME, f"host/v1/jobs/{JOB_NAME}", "https://host/v1/jobs/x"):
        assert JOB.fullmatch(words) is None
