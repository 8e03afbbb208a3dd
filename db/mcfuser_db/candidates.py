"""The candidates that searches have measured, kept in batches as they come in."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from mcfuser_db.models import CandidateBatch, KernelRow

if TYPE_CHECKING:
    from mcfuser.tune.tried import Tried

log = logging.getLogger(__name__)

_MOST_BATCHES = 10_000  # of one key that are read; they are merged whenever a search ends
_MOST_KEYS = 1000  # in one statement


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A search that ended without a kernel: its key, its device, the number of results that it has
    kept, and when it kept the last ones."""

    key: str
    device: str
    results: int
    last: datetime


def add(
    session: Session, key: str, chain_key: str, device: str, tried: Sequence[Tried], now: datetime,
    is_open: bool = True,
) -> None:  # fmt: skip
    """Adds a batch, of a search that is under way unless that is told. A reason's characters that
    PostgreSQL does not keep are left out."""
    from mcfuser.tune.tried import to_json

    document = to_json(tried)
    for row in document["tried"]:
        row[:] = [cell.replace("\0", "") if isinstance(cell, str) else cell for cell in row]
    session.add(
        CandidateBatch(
            key=key, chain_key=chain_key, device=device, created=now, count=len(tried),
            open=is_open, document=document,
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
    """Makes one batch of a key's batches, in which each candidate is once, because the search is
    over."""
    query = select(CandidateBatch.id, CandidateBatch.chain_key, CandidateBatch.device)
    rows = session.execute(query.where(CandidateBatch.key == key).limit(_MOST_BATCHES)).all()
    if len(rows) < 2:
        ended = update(CandidateBatch).where(CandidateBatch.key == key, CandidateBatch.open)
        session.execute(ended.values(open=False).execution_options(synchronize_session=False))
        return
    tried = read(session, key)
    session.execute(delete(CandidateBatch).where(CandidateBatch.id.in_([r.id for r in rows])))
    if tried:
        add(session, key, rows[0].chain_key, rows[0].device, tried, now, is_open=False)


def unfinished(session: Session, device: str | None) -> list[Unfinished]:
    """The searches whose candidates are kept and whose kernel is not, the oldest first."""
    batch = CandidateBatch
    last = func.max(batch.created)
    query = select(batch.key, batch.device, func.sum(batch.count), last).where(batch.open)
    if device is not None:
        query = query.where(batch.device == device)
    rows = session.execute(query.group_by(batch.key, batch.device).order_by(last)).all()
    kept = _kept(session, sorted({row.key for row in rows}))
    return [Unfinished(key, on, int(n), at) for key, on, n, at in rows if key not in kept]


def _kept(session: Session, keys: Sequence[str]) -> set[str]:
    """Those of the keys that kernels have.

    It is a question of its own: a database that takes open batches for many would read all kernels
    to join them.
    """
    kept: set[str] = set()
    for first in range(0, len(keys), _MOST_KEYS):
        some = keys[first : first + _MOST_KEYS]
        kept.update(session.scalars(select(KernelRow.key).where(KernelRow.key.in_(some))))
    return kept


def _tried(batch: CandidateBatch) -> Iterator[Tried]:
    from mcfuser.tune.tried import from_json

    try:
        yield from from_json(batch.document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("candidates of kernel %s cannot be read: %r", batch.key, error)
