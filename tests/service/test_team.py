"""A team's cache: a folder of files, or a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mcfuser.errors import InputError
from mcfuser.tune.exchange import header
from mcfuser.tune.key import CacheKey
from mcfuser.tune.rebuild import record_of
from mcfuser.tune.tuned import MemoryCache
from mcfuser_db import KeyGrant
from mcfuser_db.api_keys import make_key
from mcfuser_service.team import TeamServer, layered, team_cache
from tests.support.records import line, searched, write
from tests.support.served import Served, serving


@pytest.fixture
def key() -> CacheKey:
    made = searched().made
    assert made is not None
    return made


def test_records_of_a_folder_s_files_are_found_by_their_keys(
    tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", "garbage", "[]", '{"made": 3}', line(searched()))
    write(tmp_path / "b.jsonl", first={"format": "others"})
    write(tmp_path / "c.txt", line(searched()))
    os.mkfifo(tmp_path / "d.jsonl")
    offer = team_cache(str(tmp_path))
    assert offer(key) == record_of(searched())
    assert offer(replace(key, sources="others")) is None
    assert "b.jsonl" in caplog.text and "d.jsonl" in caplog.text


def test_a_line_that_is_tampered_with_is_logged_and_left_out(
    tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", line(searched(), expression="import os"))
    offer = team_cache(str(tmp_path))
    assert offer(key) is None and "its expression is not what a kernel has there" in caplog.text
    (tmp_path / "a.jsonl").unlink()
    assert offer(key) is None, "a file that is gone"


def test_what_is_neither_a_folder_nor_a_server_is_refused(tmp_path: Path) -> None:
    for where in (str(tmp_path / "none"), "ftp://host", "file:///etc"):
        with pytest.raises(InputError, match="MCFUSER_TEAM_CACHE is"):
            team_cache(where)
    own = MemoryCache()
    assert layered(own, "") is own


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, None) as server:
        yield server


def test_a_server_is_asked_for_one_kernel(served: Served, key: CacheKey) -> None:
    served.store.put(searched())
    offer = team_cache(f"http://127.0.0.1:{served.port}/")
    assert offer(key) == record_of(searched())
    assert offer(replace(key, sources="others")) is None


def test_a_server_that_wants_a_key_is_sent_it(
    tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, None, require_key=True) as server:
        server.store.put(searched())
        where = f"http://127.0.0.1:{server.port}"
        text = make_key(server.store, KeyGrant("team", ("read",)))[1]
        assert team_cache(where, text.words)(key) == record_of(searched())
        assert team_cache(where)(key) is None
    assert "MCFUSER_TEAM_CACHE_KEY must be a key of its" in caplog.text


def test_a_server_that_does_not_answer_is_asked_once(
    key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        raise httpx.ConnectError("refused")

    offer = TeamServer("http://nowhere", fetch)
    assert offer(key) is None and offer(key) is None
    assert asked == [f"http://nowhere/v1/kernels/export?key={key.digest}"]
    assert "does not answer" in caplog.text


@pytest.mark.parametrize("answer", [b"", b"<html>", b"x\ny", b"\n" * 5])
def test_an_answer_that_is_no_record_is_none(answer: bytes, key: CacheKey) -> None:
    assert TeamServer("http://host", lambda url: answer)(key) is None
    good = f"{header()}\n{line(searched())}\n".encode()
    assert TeamServer("http://host", lambda url: good)(key) == record_of(searched())
