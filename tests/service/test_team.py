"""A team's cache: a folder of files, or a server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from mcfuser.errors import InputError, RegistryError
from mcfuser.tune.exchange import header
from mcfuser.tune.key import CacheKey
from mcfuser.tune.rebuild import record_of
from mcfuser.tune.tuned import MemoryCache
from mcfuser_db import KeyGrant
from mcfuser_db.api_keys import make_key
from mcfuser_service.oci.reference import Reference, read_reference
from mcfuser_service.oci.transfer import Login, Pulled
from mcfuser_service.settings import Team
from mcfuser_service.team import FRESH, TeamArtefact, TeamServer, layered, team_cache
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
    offer = team_cache(Team(str(tmp_path)))
    assert offer(key) == record_of(searched())
    assert offer(replace(key, sources="others")) is None
    assert "b.jsonl" in caplog.text and "d.jsonl" in caplog.text


def test_a_line_that_is_tampered_with_is_logged_and_left_out(
    tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", line(searched(), expression="import os"))
    offer = team_cache(Team(str(tmp_path)))
    assert offer(key) is None and "its expression is not what a kernel has there" in caplog.text
    (tmp_path / "a.jsonl").unlink()
    assert offer(key) is None, "a file that is gone"


def test_what_is_neither_a_folder_nor_a_server_is_refused(tmp_path: Path) -> None:
    for where in (str(tmp_path / "none"), "ftp://host", "file:///etc"):
        with pytest.raises(InputError, match="MCFUSER_TEAM_CACHE is"):
            team_cache(Team(where))
    own = MemoryCache()
    assert layered(own, Team()) is own


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, None) as server:
        yield server


def test_a_server_is_asked_for_one_kernel(served: Served, key: CacheKey) -> None:
    served.store.put(searched())
    offer = team_cache(Team(f"http://127.0.0.1:{served.port}/"))
    assert offer(key) == record_of(searched())
    assert offer(replace(key, sources="others")) is None


def test_a_server_that_wants_a_key_is_sent_it(
    tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, None, require_key=True) as server:
        server.store.put(searched())
        where = f"http://127.0.0.1:{server.port}"
        text = make_key(server.store, KeyGrant("team", ("read",)))[1]
        assert team_cache(Team(where, text.words))(key) == record_of(searched())
        assert team_cache(Team(where))(key) is None
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


@dataclass
class PulledRegistry:
    """A registry whose tag is at some lines; None where it does not answer."""

    lines: bytes | None
    asked: list[str | None] = field(default_factory=list)

    def pull(self, file: Path, where: Reference, access: Login, known: str | None) -> Pulled:
        self.asked.append(known)
        if self.lines is None:
            raise RegistryError("registry ci.example cannot be used: connection refused")
        layer = f"sha256:{hashlib.sha256(self.lines).hexdigest()}"
        if layer != known:
            file.write_bytes(self.lines)
        return Pulled("sha256:0", layer, {})


def _lines(*lines: str) -> bytes:
    return "\n".join([header(), *lines, ""]).encode()


class TestArtefacts:
    TAG = read_reference("oci://ci.example/kernels:main")

    def offer(self, folder: Path, there: PulledRegistry, clock: list[float]) -> TeamArtefact:
        return TeamArtefact(self.TAG, folder, there.pull, lambda: clock[0])

    def test_an_artefact_is_pulled_once_and_again_where_its_tag_has_moved(
        self, tmp_path: Path, key: CacheKey
    ) -> None:
        there, clock = PulledRegistry(_lines()), [0.0]
        offer = self.offer(tmp_path, there, clock)
        assert offer(key) is None
        there.lines = _lines(line(searched()))
        assert offer(key) is None and there.asked == [None], "it was asked a moment ago"
        clock[0] += FRESH
        assert offer(key) == record_of(searched()) and len(there.asked) == 2
        first = f"sha256:{hashlib.sha256(_lines()).hexdigest()}"
        assert there.asked == [None, first]
        assert len(list(tmp_path.glob("*/*"))) == 1, "the file before is gone"
        again = self.offer(tmp_path, there, clock)
        last = f"sha256:{hashlib.sha256(there.lines).hexdigest()}"
        assert again(key) == record_of(searched()) and there.asked[-1] == last

    def test_what_was_pulled_serves_where_the_registry_fails(
        self, tmp_path: Path, key: CacheKey, caplog: pytest.LogCaptureFixture
    ) -> None:
        down = PulledRegistry(None)
        assert self.offer(tmp_path, down, [0.0])(key) is None
        assert "connection refused" in caplog.text and "serves" not in caplog.text
        self.offer(tmp_path, PulledRegistry(_lines(line(searched()))), [0.0])(key)
        assert self.offer(tmp_path, down, [0.0])(key) == record_of(searched())
        assert "what was pulled before serves" in caplog.text

    def test_a_kept_file_that_was_changed_is_pulled_again(
        self, tmp_path: Path, key: CacheKey
    ) -> None:
        there = PulledRegistry(_lines(line(searched())))
        self.offer(tmp_path, there, [0.0])(key)
        (kept,) = tmp_path.glob("*/*.jsonl")
        kept.write_bytes(_lines())
        assert self.offer(tmp_path, there, [0.0])(key) == record_of(searched())
        assert there.asked == [None, None]

    def test_what_a_digest_names_is_asked_for_once(self, tmp_path: Path, key: CacheKey) -> None:
        pinned = read_reference(f"oci://ci.example/kernels@sha256:{'0' * 64}")
        there = PulledRegistry(_lines(line(searched())))
        for _ in range(2):
            offer = TeamArtefact(pinned, tmp_path, there.pull, lambda: 0.0)
            assert offer(key) == record_of(searched())
        assert there.asked == [None]

    def test_a_team_s_reference_makes_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcfuser_service.oci.transfer.check_installed", lambda: None)
        made = team_cache(Team(str(self.TAG), None, tmp_path))
        assert isinstance(made, TeamArtefact) and made.reference == self.TAG
        with pytest.raises(InputError, match="names no artefact"):
            team_cache(Team("oci://ci.example/"))
