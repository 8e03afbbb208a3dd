"""The candidates that searches have measured, kept in batches as they come in."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from mcfuser_db.models import CandidateBatch

if TYPE_CHECKING:
    from mcfuser.tune.tried import Tried

log = logging.getLogger(__name__)

_MOST_BATCHES = 10_000  # of one key that are read; they are merged whenever a search ends


def add(
    session: Session, key: str, chain_key: str, device: str, tried: Sequence[Tried], now: datetime
) -> None:
    """Adds a batch. A reason's characters that PostgreSQL does not keep are left out."""
    from mcfuser.tune.tried import to_json

    document = to_json(tried)
    for row in document["tried"]:
        row[-1] = row[-1].replace("\0", "") if isinstance(row[-1], str) else row[-1]
    session.add(
        CandidateBatch(
            key=key, chain_key=chain_key, device=device, created=now, count=len(tried),
            document=document,
        )
    )  # fmt: skip


def read(session: Session, key: str) -> list[Tried]:
    """The candidates of a key, each with its last result, without those that cannot be read."""
    from mcfuser.tune.tried import latest

    query = select(CandidateBatch).where(CandidateBatch.key == key)
    ordered = query.order_by(CandidateBatch.id.desc()).limit(_MOST_BATCHES)
    try:
        batches = session.scalars(ordered).all()
    except (ValueError, RecursionError) as error:  # a document is no JSON
        log.warning("the candidates of kernel %s are damaged: %s", key, error)
        return []
    return latest(t for batch in reversed(batches) for t in _tried(batch))


def merge(session: Session, key: str, now: datetime) -> None:
    """Makes one batch of a key's batches, in which each candidate is once."""
    query = select(CandidateBatch.id, CandidateBatch.chain_key, CandidateBatch.device)
    rows = session.execute(query.where(CandidateBatch.key == key).limit(_MOST_BATCHES)).all()
    if len(rows) < 2:
        return
    tried = read(session, key)
    session.execute(delete(CandidateBatch).where(CandidateBatch.id.in_([r.id for r in rows])))
    if tried:
        add(session, key, rows[0].chain_key, rows[0].device, tried, now)


def _tried(batch: CandidateBatch) -> Iterator[Tried]:
    from mcfuser.tune.tried import from_json

    try:
        yield from from_json(batch.document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("candidates of kernel %s cannot be read: %r", batch.key, error)
