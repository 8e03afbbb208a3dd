"""Idempotency keys: which job a post with a key was answered with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from mcfuser_db.models import IdempotencyKey, Job

_MOST = 100  # keys that one post forgets


class KeyReused(ValueError):
    """An idempotency key stands for another request."""


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A client's key and what it stands for: the SHA-256 of the key, and of the posted model with
    its options. The key is kept for `keep` seconds."""

    key: str
    request: str
    keep: float


def job_of_key(session: Session, keyed: KeyedRequest, now: datetime) -> Job | None:
    """The job that an earlier post with the same key and request was answered with; None if there
    was none, or it was too long ago.

    Raises KeyReused where that post was another request.
    """
    row = session.get(IdempotencyKey, keyed.key)
    if row is None or row.created <= now - timedelta(seconds=keyed.keep):
        return None
    if row.request != keyed.request:
        raise KeyReused(f"the key stands for the request that made job {row.job}")
    return session.get(Job, row.job)


def keep_key(session: Session, keyed: KeyedRequest, job: UUID, now: datetime) -> None:
    """Keeps a key for a job, and forgets some of the keys that were kept for long enough: not so
    many that the post would take long."""
    old = IdempotencyKey.created <= now - timedelta(seconds=keyed.keep)
    oldest = select(IdempotencyKey.key).where(old).order_by(IdempotencyKey.created).limit(_MOST)
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.key.in_(oldest), old))
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.key == keyed.key, old))
    session.add(IdempotencyKey(key=keyed.key, request=keyed.request, job=job, created=now))
