"""Whatever is sent over HTTP: no 5xx, no traceback, nothing left behind; errors are problems."""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mcfuser.errors import ModelError
from tests.support.served import Served, parted, serving

JOB = b"/v1/jobs/00000000-0000-4000-8000-000000000000"


async def inspect(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if not model.read_bytes().startswith(b"good"):
        raise ModelError("the model is not ONNX")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), inspect) as served:
        yield served


@pytest.fixture(autouse=True)
def no_traceback(server: Served, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    assert [r.getMessage() for r in caplog.records if r.exc_info] == []
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


def checked(answer: bytes, *allowed: int) -> str:
    """The detail of an answer, which is a problem with one of these statuses; uvicorn refuses what
    is no HTTP by itself, in plain words and with 400."""
    status, headers, body = parted(answer)
    assert status in allowed, answer[:500]
    if headers["content-type"].startswith("text/plain"):
        assert (status, body) == (400, b"Invalid HTTP request received.")
        return ""
    assert headers["content-type"] == "application/problem+json"
    found = json.loads(body)
    assert found["status"] == status and {"type", "title", "detail", "instance"} <= set(found)
    return str(found["detail"])


def post(server: Served, query: bytes, more: bytes = b"") -> bytes:
    """The answer to a model of four bytes, and what else is sent after it."""
    head = b"POST /v1/jobs?%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n" % query
    return server.talk(head + b"Connection: close\r\n\r\ngood" + more, shut=False)


HOSTS = (
    b"[", b"]", b"[::1", b"::1]", b"[::1]x", b"[]", b"[zz]", b"a:b:c", b"localhost:99999999",
    b"localhost:x", b"[::1]:", b"user@localhost", b"localhost/", b"localhost?", b"loc alhost",
    b"\xff\xfe", b"%00", b"localhost\\", b"a" * 5000, b"127.0.0.1.evil.example", b"", b"evil",
    b"http://localhost", b"localhost,evil", b"0x7f.1", b"[fe80::1%25eth0]", b"[::ffff:8.8.8.8]",
)  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_odd_hosts(server: Served, host: bytes) -> None:
    for target in (b"/v1/jobs", b"/", b"/nowhere", b"/v1/jobs/"):
        answer = server.ask(target, Host=host)
        if host == b"[::1]:":
            assert parted(answer)[0] in (200, 404)
        else:
            checked(answer, 400, 421)


def test_hosts_that_are_this_machine(server: Served) -> None:
    for host in (b"localhost", b"LOCALHOST:1", b"localhost.", b"127.0.0.1:8642", b"[::1]:80",
                 b"127.8.8.8"):  # fmt: skip
        assert parted(server.ask(b"/v1/jobs", Host=host))[0] == 200


@pytest.mark.parametrize(
    "origin", [b"[", b"http://[", b"null", b"", b"http://", b"\xff", b"//localhost"]
)
def test_odd_origins(server: Served, origin: bytes) -> None:
    answer = server.ask(b"/v1/jobs", Origin=origin)
    if origin != b"//localhost":
        checked(answer, 403, 400)


def test_no_host_at_all(server: Served) -> None:
    checked(server.talk(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), 400)
    checked(server.talk(b"GET / HTTP/1.0\r\n\r\n"), 421)
    checked(server.talk(b"GET / HTTP/1.0\r\nOrigin: null\r\n\r\n"), 421)


TARGETS = (
    b"http://localhost/v1/jobs", b"http://evil.example/", b"*", b"//", b"///", b"/%", b"/%zz",
    b"/%00", b"/%ff%fe", b"/v1/jobs/%00", b"/v1/jobs/%ff", b"/v1/jobs/%2e%2e%2fetc", b"/v1/jobs/",
    b"/v1/jobs/../../etc/passwd", b"/v1/jobs/" + b"a" * 30000, b"/v1/kernels/" + b"g" * 64,
    b"/v1/kernels/%0a", b"/v1/jobs/{00000000-0000-4000-8000-000000000000}", JOB + b"/",
    b"/v1/jobs/urn:uuid:00000000-0000-4000-8000-000000000000", JOB + b"/report/x", JOB.upper(),
    b"/v1/jobs/00000000000040008000000000000000", b"/v1/jobs/\xd9\xa0", b"/\x80", b"/;x", b"/#x",
    b"/v1/devices/", b"/openapi.json/", b"/v1/jobs/-1", b"/v1/jobs/" + b"9" * 500,
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_odd_targets(server: Served, target: bytes) -> None:
    for method in (b"GET", b"DELETE", b"OPTIONS", b"PROPFIND"):
        checked(server.ask(target, method), 400, 404, 405, 422)
    status, _, body = parted(server.ask(target, b"HEAD"))
    assert status in (400, 404, 405, 422)
    assert body in (b"", b"Invalid HTTP request received.")  # of uvicorn, which read no method


QUERIES = (
    b"device=%00", b"chain=%00", b"chain=a%00b", b"device=%0a", b"device=%ff", b"chain=%ED%A0%80",
    b"after=%00", b"after=" + b"a" * 63, b"after=x", b"limit=0", b"limit=501", b"limit=-1",
    b"limit=" + b"9" * 4000, b"limit=1e2", b"limit=%d9%a1", b"limit=", b"limit=1.5", b"limit=true",
    b"chain=" + b"a" * 2000, b"unknown=1", b"Limit=1", b"limit[]=1", b"%00=1", b"=1", b"%ff=%ff",
    b"device=a&unknown=1&other=2", b"after=" + b"0" * 64 + b"%0a",
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_odd_queries_of_kernels(server: Served, query: bytes) -> None:
    answer = server.ask(b"/v1/kernels?" + query)
    if query in (b"device=%ff", b"chain=%ED%A0%80"):  # a character in the place of what is none
        assert parted(answer)[0] == 200
    else:
        checked(answer, 422)


@pytest.mark.parametrize(
    "query",
    [b"state=%00", b"state=Queued", b"state=", b"after=%00", b"after=1", b"after=%7b%7d",
     b"limit=" + b"9" * 4000, b"seed=1", b"state=queued&x=1"],
)  # fmt: skip
def test_odd_queries_of_jobs(server: Served, query: bytes) -> None:
    checked(server.ask(b"/v1/jobs?" + query), 422)


@pytest.mark.parametrize(
    "target",
    [b"/", b"/healthz", b"/metrics", b"/v1/devices", JOB, JOB + b"/report", JOB + b"/module",
     JOB + b"/events",
     b"/v1/kernels/" + b"0" * 64],
)  # fmt: skip
def test_an_unknown_name_is_refused_everywhere(server: Served, target: bytes) -> None:
    assert "query 'x' is not known" in checked(server.ask(target + b"?x=1"), 422)


@pytest.mark.parametrize(
    "query",
    [b"seed=" + b"9" * 5000, b"seed=-1", b"seed=4294967296", b"trials=0", b"trials=1e3",
     b"timeout=9999999", b"timeout=inf", b"timeout=nan", b"timeout=1e3", b"timeout=25h",
     b"timeout=", b"timeout=%00", b"timeout=-5m", b"shape=%00", b"shape=x=00",
     b"shape=x=" + b"9" * 5000, b"shape=" + b"x" * 9000 + b"=a", b"shape=x=1&shape=x=2",
     b"device=%00", b"device=" + b"c" * 5000,
     b"device=%ff", b"x=1", b"%00", b"shape=" + b"x=1x" * 2000],
)  # fmt: skip
def test_odd_options(server: Served, query: bytes) -> None:
    detail = checked(post(server, query), 422)
    assert len(detail) < 4000


def test_times_mean_what_the_command_means_by_them(server: Served) -> None:
    for word, expected in ((b"5m", 300.0), (b"90s", 90.0), (b"90", 90.0), (b"1h", 3600.0),
                           (b"500ms", 0.5)):  # fmt: skip
        status, _, body = parted(post(server, b"timeout=" + word))
        assert status == 202 and json.loads(body)["options"]["timeout"] == expected


@pytest.mark.parametrize(
    "words",
    [b"Bearer", b"Bearer \xff", b"Bearer " + b"a" * 5000, b"bearer mcfuser_", b"Bearer \x00",
     b"Bearer mcfuser_" + b"0" * 12 + b"_" + b"0" * 72],
)  # fmt: skip
def test_odd_keys(server: Served, words: bytes) -> None:
    for target in (b"/v1/jobs", b"/v1/keys", JOB):
        checked(server.ask(target, Authorization=words), 400, 401)
    checked(server.ask(b"/v1/jobs", b"POST", Authorization=words), 400, 401)


def test_huge_headers(server: Served) -> None:
    checked(server.ask(b"/", Cookie=b"a" * 200_000), 400, 431)
    many = b"".join(b"X-%d: y\r\n" % i for i in range(20_000))
    checked(server.talk(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n"), 400, 431)


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: \xb2",
     b"Content-Length: 4, 5", b"Content-Length: 4\r\nContent-Length: 5",
     b"Content-Length: " + b"9" * 19,
     b"Content-Length: " + b"9" * 5000, b"Transfer-Encoding: gzip",
     b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Content-Type: multipart/form-data"],
)  # fmt: skip
def test_odd_bodies(server: Served, head: bytes) -> None:
    answer = server.talk(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\ngood" % head)
    assert answer == b"" or checked(answer, 400, 413, 415, 422, 501) is not None


def test_a_body_longer_than_it_says(server: Served) -> None:
    assert parted(post(server, b"seed=3", b"\0" * 1000))[0] == 202


@pytest.mark.parametrize("kind", ["length", "chunked", "reset"])
def test_dropped_uploads_leave_a_line_each_and_nothing_else(
    server: Served, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    count = 30
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
            if kind == "chunked":
                connection.sendall(
                    head + b"Transfer-Encoding: chunked\r\n\r\n5\r\ngood!\r\nff\r\nx"
                )
            else:
                connection.sendall(head + b"Content-Length: 1000\r\n\r\ngood")
            if kind == "reset":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def lines() -> list[logging.LogRecord]:
        return [r for r in caplog.records if getattr(r, "path", "") == "/v1/jobs"]

    deadline = time.monotonic() + 60
    while len(lines()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [getattr(r, "status", 0) for r in lines()] == [499] * count
    assert all(r.levelno == logging.INFO for r in lines())
    assert list((server.settings.blobs / "arriving").iterdir()) == []


def test_ranges_and_tags_of_a_module(server: Served) -> None:
    id = json.loads(parted(post(server, b"seed=77"))[2])["id"]
    while (job := server.store.claim("w", 60)) is not None and job.claim is not None:
        server.store.finish(job.claim, server.blobs.put(b"0123456789"), 10, {})
    target = f"/v1/jobs/{id}/module".encode()
    assert parted(server.ask(target))[2] == b"0123456789"
    status, headers, body = parted(server.ask(target, Range=b"bytes=2-4"))
    assert (status, body, headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    for word in (b"bytes=99-", b"bytes=5-2", b"bytes", b"bytes=a-b", b"bytes=-", b"\xff",
                 b"bytes=,", b"bytes=0-1," * 200, b"lines=1-2",
                 b"bytes=" + b"9" * 5000 + b"-"):  # fmt: skip
        status, headers, body = parted(server.ask(target, Range=word))
        if status not in (200, 206):
            assert status in (400, 416) and headers["content-type"] == "application/problem+json"
            assert json.loads(body)["status"] == status
    tag = headers_of(server.ask(target))["etag"].encode()
    for word, expected in ((tag, 304), (b"W/" + tag, 304), (b"*", 304), (b'"x"', 200), (b"", 200),
                           (b'"', 200), (b"\xff", 200), (b",,,", 200), (b'"a", ' + tag, 304),
                           (tag[:-1], 200)):  # fmt: skip
        assert parted(server.ask(target, If_None_Match=word))[0] == expected, word


def headers_of(answer: bytes) -> Mapping[str, str]:
    return parted(answer)[1]


def test_head_wherever_get_is(server: Served) -> None:
    for target in (b"/", b"/healthz", b"/metrics", b"/v1/devices", b"/v1/jobs", b"/v1/kernels",
                   b"/openapi.json", JOB, JOB + b"/module", JOB + b"/report", JOB + b"/events",
                   JOB + b"/log", b"/v1/kernels/" + b"0" * 64):  # fmt: skip
        get, head = parted(server.ask(target)), parted(server.ask(target, b"HEAD"))
        assert head[0] == get[0] and head[2] == b"", target
        assert head[1]["content-type"] == get[1]["content-type"]


def test_what_an_address_allows_is_told(server: Served) -> None:
    known = {b"/v1/jobs": "GET, HEAD, POST", JOB: "DELETE, GET, HEAD",
             JOB + b"/module": "GET, HEAD", JOB + b"/retry": "POST",
             b"/metrics": "GET, HEAD"}  # fmt: skip
    for target, allowed in known.items():
        answer = server.ask(target, b"PUT")
        checked(answer, 405)
        assert headers_of(answer)["allow"] == allowed


def test_methods_of_any_name_are_one_in_the_metrics(server: Served) -> None:
    for name in (b"AAA", b"BBB", b"CCC"):
        server.ask(b"/", name)
    text = parted(server.ask(b"/metrics"))[2].decode()
    assert 'method="other"' in text and "AAA" not in text


def test_noise(server: Served) -> None:
    """Requests of which bytes were changed at random."""
    rng = random.Random(13)
    base = (
        b"POST /v1/jobs?device=cpu&shape=x=1x2&timeout=5m HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 4\r\nOrigin: http://localhost\r\nIf-None-Match: \"x\"\r\n"
        b"Connection: close\r\n\r\ngood"
    )  # fmt: skip
    for _ in range(600):
        data = bytearray(base)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        answer = server.talk(bytes(data))
        status = parted(answer)[0] if answer else 0
        assert status < 500 or status == 501, bytes(data)


# --- other addresses than loopback


def test_an_open_server_answers_to_the_names_it_is_given(tmp_path: Path) -> None:
    names = "a.example, B.Example"
    with serving(tmp_path, inspect, host="0.0.0.0", insecure=True, allowed_hosts=names) as s:
        for host, status in ((b"a.example", 200), (b"B.example:8642", 200), (b"evil.example", 421),
                             (b"localhost", 421), (b"[", 400)):  # fmt: skip
            assert parted(s.ask(b"/v1/jobs", Host=host))[0] == status


def test_an_open_server_without_names_answers_to_any(tmp_path: Path) -> None:
    with serving(tmp_path, inspect, host="0.0.0.0", insecure=True) as s:
        assert parted(s.ask(b"/v1/jobs", Host=b"any.example"))[0] == 200
        checked(s.ask(b"/v1/jobs", Host=b"["), 400)
        checked(s.ask(b"/v1/jobs", Host=b"a.example", Origin=b"http://b.example"), 403)


def test_a_server_behind_a_proxy_answers_to_its_name_too(tmp_path: Path) -> None:
    with serving(tmp_path, inspect, allowed_hosts="mcfuser.example") as s:
        for host, status in ((b"mcfuser.example", 200), (b"localhost", 200), (b"evil", 421)):
            assert parted(s.ask(b"/v1/jobs", Host=host))[0] == status


def test_an_upload_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path, inspect, upload_stall=0.3) as served:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ngood"
        answer = served.talk(head, shut=False)
        assert "no byte of the model came for 0.3 s" in checked(answer, 408)
        assert list((served.settings.blobs / "arriving").iterdir()) == []
        assert checked(served.ask(JOB), 404)
