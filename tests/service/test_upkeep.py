"""The cache is kept in order over HTTP: kernels are taken, checked and removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import create_engine, text

from mcfuser.chain import from_text
from mcfuser.errors import InputError
from mcfuser.tune.exchange import header
from mcfuser.tune.tried import Tried
from mcfuser_db import Blobs, KeyGrant, Storage
from mcfuser_db.api_keys import make_key
from mcfuser_service import explaining, imports
from mcfuser_service.app import create_app
from mcfuser_service.here_child import answer
from mcfuser_service.importing import Imported, ImportedLine
from mcfuser_service.settings import ServiceSettings
from tests.support.kernels import tuned


class Server:
    """A client of an application whose clock stands still, and what stands behind it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = datetime(2026, 11, 24, tzinfo=UTC)
        self.settings = ServiceSettings(data=folder, **settings)
        self.store = Storage(self.settings.database_url, lambda: self.now)
        self.blobs = Blobs(self.settings.blobs)
        app = create_app(self.settings, self.store, self.blobs, lambda: 1)
        self.client = TestClient(app, base_url="http://localhost")

    def keep(self, *names: str, device: str = "nvidia/h200") -> list[str]:
        """Keeps kernels, each a second after the one before; gives their keys."""
        for name in names:
            self.now += timedelta(seconds=1)
            self.store.put(tuned(name, device=device))
        return [tuned(name).key for name in names]

    def pages(self, method: str, path: str | None) -> Iterator[dict[str, Any]]:
        while path is not None:
            answered = self.client.request(method, path)
            assert answered.status_code == 200, answered.text
            yield (page := answered.json())
            path = page["next"]

    def pruned(self, query: str) -> list[str]:
        return [k for p in self.pages("DELETE", f"/v1/kernels?{query}") for k in p["kernels"]]

    def checked(self, query: str = "") -> dict[str, str]:
        pages = self.pages("GET", f"/v1/kernels/verify?{query}")
        return {one["key"]: one["state"] for page in pages for one in page["items"]}

    def kept(self) -> list[str]:
        return [row.key for row in self.store.kernels()]

    def spoil(self, key: str) -> None:
        engine = create_engine(self.settings.database_url)
        with engine.begin() as connection:
            words = "update kernels set binary = :spoilt where key = :key"
            connection.execute(text(words), {"spoilt": b"half", "key": key})
        engine.dispose()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    asked = lambda module, request, limits: answer(request, print)  # noqa: E731
    monkeypatch.setattr(explaining, "run", asked)
    server = Server(tmp_path)
    with server.client:
        yield server
    server.store.close()


class TestPruning:
    def test_it_removes_what_meets_every_condition_page_by_page(self, server: Server) -> None:
        old = server.keep("1", "2", "3")
        server.now += timedelta(days=10)
        new = server.keep("4", "5")
        other = server.keep("6", device="cpu")
        assert server.pruned("days=5&device=cpu") == []
        assert server.pruned("days=5&dry_run=true&limit=2") == old[::-1]
        assert len(server.kept()) == 6
        assert server.pruned("days=5&limit=2") == old[::-1]
        assert server.kept() == [*other, *new[::-1]]
        assert server.pruned("device=nvidia/h200&limit=1") == new[::-1]
        assert server.pruned("days=0") == other and server.kept() == []

    def test_damaged_ones_alone(self, server: Server) -> None:
        first, second, _ = server.keep("1", "2", "3")
        server.spoil(second)
        assert server.pruned("damaged=true&limit=1") == [second]
        assert first in server.kept() and len(server.kept()) == 2

    def test_those_that_are_made_otherwise_here(self, server: Server) -> None:
        (stale,) = server.keep("1")
        assert server.pruned("stale=true&damaged=true") == []
        assert server.pruned("stale=true&dry_run=true") == [stale]
        assert server.pruned("stale=true") == [stale] and server.kept() == []

    def test_interrupted_searches_go_as_well(self, server: Server) -> None:
        made = tuned().made
        assert made is not None
        one = Tried("a0", {"a0": 1}, None, 1, True, {}, 1e-6, 1e-7)
        server.store.keep_tried(made, from_text("gemm:1,64,64,32,32"), "cpu", [one])
        pages = list(server.pages("DELETE", "/v1/kernels?days=0"))
        assert [page["searches"] for page in pages] == [[made.digest]]
        assert server.store.tried(made.digest) == []

    @pytest.mark.parametrize("query", ["", "dry_run=true", "days=-1", "days=nan", "hours=3"])
    def test_nothing_is_removed_unless_it_is_said_what(self, server: Server, query: str) -> None:
        kept = server.keep("1")
        refused = server.client.delete(f"/v1/kernels?{query}")
        assert refused.status_code == 422 and refused.json()["type"].endswith("bad-option")
        assert server.kept() == kept


def test_each_record_is_read_and_told_of(server: Server) -> None:
    first, second, third = server.keep("1", "2", "3")
    server.spoil(second)
    told = {first: "outdated", second: "damaged", third: "outdated"}
    assert server.checked("limit=1") == server.checked() == told
    assert server.checked("device=cpu") == {}
    items = server.client.get("/v1/kernels/verify").json()["items"]
    assert any("knobs" in why for why in items[0]["reasons"])


class Importing:
    """In place of an import: `lines` are told of, and then the import ends as `ending` does."""

    def __init__(self, lines: list[ImportedLine], ending: Callable[[], None]) -> None:
        self.lines, self.ending = lines, ending
        self.seen: list[tuple[bytes, float, int]] = []

    def __call__(
        self, file: Path, store: str, memory: int, seconds: float, *, tell: Any, check: Any,
        niceness: int,
    ) -> Imported:  # fmt: skip
        self.seen.append((file.read_bytes(), seconds, niceness))
        for line in self.lines:
            check()
            tell(line)
        self.ending()
        return Imported()


LINES = [ImportedLine(2, "kept", ""), ImportedLine(3, "refused", "a reason")]
FILE = f"{header()}\n{{}}\nx\n".encode()


@contextmanager
def importing(
    monkeypatch: pytest.MonkeyPatch, ending: Callable[[], None] = lambda: None
) -> Iterator[Importing]:
    stand_in = Importing(LINES, ending)
    with monkeypatch.context() as patched:
        patched.setattr(imports, "import_kernels", stand_in)
        yield stand_in


def lines_of(answered: Response) -> list[dict[str, Any]]:
    assert answered.status_code == 200 and answered.headers["content-type"].startswith(
        "application/x-ndjson"
    )
    return [json.loads(line) for line in answered.text.splitlines()]


class TestTaking:
    def test_each_line_is_told_of_and_then_the_counts(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with importing(monkeypatch) as stand_in:
            answered = server.client.post("/v1/kernels?timeout=2m", content=FILE)
        assert lines_of(answered) == [
            {"line": 2, "outcome": "kept", "reason": ""},
            {"line": 3, "outcome": "refused", "reason": "a reason"},
            {"kept": 1, "known": 0, "refused": 1, "given_up": None},
        ]
        assert stand_in.seen == [(FILE, 120.0, server.settings.niceness)]
        assert list((server.settings.blobs / "arriving").iterdir()) == []

    def test_an_import_that_is_given_up_says_why_and_leaves_the_turn(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def given_up() -> None:
            raise InputError("20 lines have ended the process")

        def failed() -> None:
            raise RuntimeError("a bug")

        for ending, why in ((given_up, "20 lines have ended"), (failed, "its log says why")):
            with importing(monkeypatch, ending):
                answered = server.client.post("/v1/kernels", content=FILE)
            assert why in lines_of(answered)[-1]["given_up"]
        with importing(monkeypatch):
            assert server.client.post("/v1/kernels", content=FILE).status_code == 200

    @pytest.mark.parametrize(
        ("body", "status", "kind"),
        [
            (b"", 422, "empty-body"),
            (b"garbage\n", 422, "bad-kernels"),
            (b'{"format": "mcfuser-kernels", "version": 0}\n', 422, "bad-kernels"),
            (b"[" * 200_000, 422, "bad-kernels"),
        ],
    )
    def test_what_is_no_file_of_kernels_is_refused(
        self, server: Server, body: bytes, status: int, kind: str
    ) -> None:
        refused = server.client.post("/v1/kernels", content=body)
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (status, kind)
        form = server.client.post("/v1/kernels", files={"file": body})
        assert form.json()["type"].endswith("not-raw")

    def test_a_file_is_of_a_limited_size(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcfuser_service.upkeep.LARGEST", len(FILE) - 1)
        assert server.client.post("/v1/kernels", content=FILE).status_code == 413


def test_a_key_needs_the_scope_import(tmp_path: Path) -> None:
    server = Server(tmp_path, require_key=True)
    server.keep("1")
    texts = {
        scope: make_key(server.store, KeyGrant(scope, (scope,)))[1].words
        for scope in ("submit", "read", "import")
    }

    def asked(scope: str, method: str, path: str) -> int:
        headers = {"Authorization": f"Bearer {texts[scope]}"}
        return server.client.request(method, path, headers=headers).status_code

    for scope in ("submit", "read"):
        assert asked(scope, "DELETE", "/v1/kernels?days=0") == 403
        assert asked(scope, "POST", "/v1/kernels") == 403
    assert asked("import", "GET", "/v1/kernels/verify") == 403
    assert len(server.kept()) == 1 and asked("import", "DELETE", "/v1/kernels?days=0") == 200
    assert server.kept() == []
    assert asked("import", "POST", "/v1/kernels") == 422  # it has no body
    server.store.close()
