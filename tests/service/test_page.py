"""The files of the page, as they are served and as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mcfuser_service.page import page_files, router
from tests.support.paths import ROOT

FOLDER = ROOT / "service" / "mcfuser_service" / "page"
NAMES = sorted(p.name for p in FOLDER.iterdir())


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(router())
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("name", ["", *(f"page/{name}" for name in NAMES)])
def test_every_file_is_served_under_one_policy(client: TestClient, name: str) -> None:
    answer = client.get(f"/{name}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / (name.removeprefix("page/") or "index.html")).read_bytes()
    policy = dict(p.split(" ", 1) for p in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "script-src" not in policy and "style-src" not in policy
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_kinds(client: TestClient) -> None:
    kinds = {
        name: client.get(f"/page/{name}").headers["content-type"].partition(";")[0]
        for name in ("index.html", "main.js", "style.css", "icon.svg")
    }
    assert kinds == {
        "index.html": "text/html", "main.js": "text/javascript", "style.css": "text/css",
        "icon.svg": "image/svg+xml",
    }  # fmt: skip


def test_a_file_is_sent_once(client: TestClient) -> None:
    first = client.get("/page/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get("/page/main.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag and "content-security-policy" in again.headers
    other = client.get("/page/main.js", headers={"If-None-Match": '"other"'})
    assert other.content == first.content
    head = client.head("/")
    assert (head.status_code, head.content) == (200, b"") and head.headers["etag"] != tag


@pytest.mark.parametrize(
    "path",
    ["page.py", "../page.py", "%2e%2e/page.py", "..%2fpage.py", "%2e%2e%2fpage.py", "/etc/passwd",
     "%2fetc%2fpasswd", "..", ".", "", "%00", "main.js%00.css", "main.js/", "MAIN.JS", "main",
     "a" * 5000, "%c3%a9.js", "..%5cpage.py", "index.html/../main.js"],
)  # fmt: skip
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    answer = client.get(f"/page/{path}")
    known = {"/", *(f"/page/{name}" for name in NAMES)}
    inside = answer.request.url.path in known  # httpx resolves ".."
    assert answer.status_code == (200 if inside else 404)
    if not inside:
        assert b"root:" not in answer.content and b"import" not in answer.content


def test_files_of_other_kinds_are_not_the_page_s() -> None:
    assert set(page_files()) == set(NAMES), "a file of the folder has a kind that is not served"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    words = (FOLDER / name).read_text()
    known = ('xmlns="http://www.w3.org/2000/svg"', '"http://www.w3.org/2000/svg"')
    for one in known:  # the name of a namespace, which nobody asks for
        words = words.replace(one, "")
    assert not re.search(r"(https?|wss?|ftp):", words), f"{name} names another origin"
    assert not re.search(r"""(src|href|url\(|from|import)[=( ]*["']?//""", words)


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith((".js", ".html"))])
def test_no_text_becomes_html_or_code(name: str) -> None:
    words = (FOLDER / name).read_text()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, words)
    if name.endswith(".html"):
        assert "<style" not in words and not re.search(r"\s(on\w+|style)=", words)
        assert not re.search(r"<script[^>]*>[^<]", words)
