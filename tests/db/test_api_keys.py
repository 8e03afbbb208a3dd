"""API keys in every database: made, found, revoked; no text of one is kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from mcfuser_db import KeyGrant, NameTaken, Storage
from mcfuser_db.api_keys import (
    api_key,
    api_keys,
    key_names,
    make_key,
    note_key_use,
    revoke_key,
)
from tests.support.clock import Clock


def test_a_key_is_kept_without_its_text(store: Storage, clock: Clock) -> None:
    grant = KeyGrant("ci", ("submit", "read"), 60, 60.0, 20, 10**13, 3600.0)
    row, made = make_key(store, grant)
    found = api_key(store, row.id)
    assert found is not None and made.id == row.id and made.matches(found.hash)
    assert (found.name, found.scopes) == ("ci", ["submit", "read"])
    assert (found.requests, found.period, found.queued, found.disk) == (60, 60.0, 20, 10**13)
    assert found.expires == clock.now + timedelta(hours=1) and found.used is None
    with store.reading() as session:
        kept = str(session.execute(text("SELECT * FROM api_keys")).all())
    assert made.words not in kept and made.words[21:85] not in kept
    assert api_key(store, "0" * 12) is None


def test_a_name_is_one_key_s_until_it_is_revoked(store: Storage, clock: Clock) -> None:
    first, _ = make_key(store, KeyGrant("ci", ("read",)))
    with pytest.raises(NameTaken, match="'ci' already"):
        make_key(store, KeyGrant("ci", ("admin",)))
    clock.now += timedelta(seconds=1)
    assert revoke_key(store, first.id) and not revoke_key(store, first.id)
    second, _ = make_key(store, KeyGrant("ci", ("read",)))
    assert not revoke_key(store, "0" * 12)
    assert [(k.id, k.revoked is None) for k in api_keys(store)] == [
        (second.id, True), (first.id, False),
    ]  # fmt: skip
    assert key_names(store, [first.id, second.id, first.id]) == {first.id: "ci", second.id: "ci"}
    assert key_names(store, []) == {}


def test_of_many_at_once_one_has_the_name(store: Storage) -> None:
    def make(_: int) -> bool:
        try:
            make_key(store, KeyGrant("ci", ("read",)))
        except NameTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(make, range(8))) == 1


def test_its_use_is_noted_now_and_then(store: Storage, clock: Clock) -> None:
    row, _ = make_key(store, KeyGrant("ci", ("read",)))
    moments = []
    for _ in range(4):
        note_key_use(store, row.id, 60.0)
        found = api_key(store, row.id)
        assert found is not None
        moments.append(found.used)
        clock.now += timedelta(seconds=40)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    later = first + timedelta(seconds=80)
    assert moments == [first, first, later, later]
