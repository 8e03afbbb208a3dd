"""API keys: who may use the service, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError

from mcfuser_db.key_text import KeyText
from mcfuser_db.models import ApiKey
from mcfuser_db.store import Storage


class NameTaken(ValueError):
    """Another key, which is not revoked, has the name."""


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a new key may do: its scopes, and limits, of which None is none.

    It may make `requests` in `period` seconds, have `queued` jobs in the queue at once, and keep
    models and modules of `disk` bytes. It expires after `lifetime` seconds.
    """

    name: str
    scopes: tuple[str, ...]
    requests: int | None = None
    period: float | None = None
    queued: int | None = None
    disk: int | None = None
    lifetime: float | None = None


def make_key(store: Storage, grant: KeyGrant) -> tuple[ApiKey, KeyText]:
    """A new key, and its text, which is kept nowhere. Raises NameTaken."""
    text, now = KeyText.new(), store.now()
    row = ApiKey(
        id=text.id, name=grant.name, hash=text.hash, scopes=list(grant.scopes),
        requests=grant.requests, period=grant.period, queued=grant.queued, disk=grant.disk,
        created=now,
        expires=now + timedelta(seconds=grant.lifetime) if grant.lifetime is not None else None,
    )  # fmt: skip
    try:
        with store.writing() as session:
            session.add(row)
    except IntegrityError:
        raise NameTaken(f"there is a key '{grant.name}' already") from None
    return row, text


def api_keys(store: Storage) -> Sequence[ApiKey]:
    """All keys, the newest first; those that were revoked are kept, for what they have done."""
    with store.reading() as session:
        return session.scalars(select(ApiKey).order_by(ApiKey.created.desc(), ApiKey.id)).all()


def api_key(store: Storage, id: str) -> ApiKey | None:
    """The key with an id."""
    with store.reading() as session:
        return session.get(ApiKey, id)


def key_names(store: Storage, ids: Sequence[str]) -> dict[str, str]:
    """The names of keys, by their ids."""
    if not ids:
        return {}
    with store.reading() as session:
        rows = session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(set(ids))))
        return {row.id: row.name for row in rows}


def revoke_key(store: Storage, id: str) -> bool:
    """Revokes a key, for ever; whether it was there and not revoked yet."""
    live = update(ApiKey).where(ApiKey.id == id, ApiKey.revoked.is_(None))
    done = live.values(revoked=store.now()).returning(ApiKey.id)
    with store.writing() as session:
        plain = done.execution_options(synchronize_session=False)
        return session.scalar(plain) is not None


def note_key_use(store: Storage, id: str, every: float) -> None:
    """Keeps that a key was used now, unless it was noted less than `every` seconds ago."""
    before = store.now() - timedelta(seconds=every)
    old = or_(ApiKey.used.is_(None), ApiKey.used < before)
    with store.writing() as session:
        noted = update(ApiKey).where(ApiKey.id == id, old).values(used=store.now())
        session.execute(noted.execution_options(synchronize_session=False))
