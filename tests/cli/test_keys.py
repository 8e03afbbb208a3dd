"""`mcfuser keys`: a server's keys, made where its database is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcfuser_db import KeyText, Storage
from mcfuser_db.api_keys import api_keys
from tests.support.command import mcfuser


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    limits = ("--rate", "60/m", "--queued", "20", "--disk", "10GB", "--expires", "90d")
    scopes = ("--scopes", "submit, read")
    made = mcfuser("keys", "create", "ci of team a", *scopes, *limits, data=tmp_path)
    assert made.returncode == 0, made.stderr
    text = KeyText.parsed(made.stdout.removesuffix("\n"))
    assert text is not None and "'ci of team a' may submit, read" in made.stderr
    assert text.words not in made.stderr
    store = Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")
    (row,) = api_keys(store)
    store.close()
    assert text.matches(row.hash) and (row.requests, row.queued, row.disk) == (60, 20, 10**10)

    listed = mcfuser("keys", "list", data=tmp_path).stdout.splitlines()
    assert listed[0].split() == ["id", "state", "scopes", "rate", "queued", "disk", "used", "name"]
    assert listed[1].startswith(f"{text.id}  valid to ")
    assert listed[1].endswith("submit,read  60/m  20      10000000000  never  ci of team a")
    (told,) = json.loads(mcfuser("keys", "list", "--json", data=tmp_path).stdout)
    assert told["name"] == "ci of team a" and "key" not in told and text.words not in str(told)

    again = mcfuser("keys", "create", "ci of team a", data=tmp_path)
    assert again.returncode == 2 and "already; revoke it" in again.stderr and not again.stdout
    gone = mcfuser("keys", "revoke", "ci of team a", data=tmp_path)
    assert gone.returncode == 0 and text.id in gone.stdout
    assert "revoked 2" in mcfuser("keys", "list", data=tmp_path).stdout
    twice = mcfuser("keys", "revoke", text.id, data=tmp_path)
    assert twice.returncode == 2 and len(twice.stderr.splitlines()) == 1


def test_a_folder_is_named_as_for_serve(tmp_path: Path) -> None:
    other = tmp_path / "other"
    made = mcfuser("keys", "create", "x", "--data", str(other), "--json", data=tmp_path / "mine")
    body = json.loads(made.stdout)
    assert KeyText.parsed(body["key"]) is not None and body["scopes"] == ["submit", "read"]
    assert (other / "mcfuser.db").exists() and not (tmp_path / "mine").exists()
    assert "there is no key" in mcfuser("keys", "list", data=tmp_path / "mine").stdout
    assert mcfuser("keys", "revoke", body["id"], "--data", str(other), data=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--scopes", "all"], "scopes 'all'"), (["--scopes", ","], "scopes"),
        (["--rate", "fast"], "rate 'fast'"), (["--disk", "10 giga"], "disk '10 giga'"),
        (["--expires", "never"], "expires 'never'"), (["--queued", "0"], "queued '0'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words: list[str], found: str, tmp_path: Path) -> None:
    ended = mcfuser("keys", "create", "x", *words, data=tmp_path)
    assert ended.returncode == 2 and found in ended.stderr and not ended.stdout
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
