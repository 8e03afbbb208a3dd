"""What the jobs of an API key may take: places in the queue, and bytes of models and modules.

A job counts for the key that posted it first. Files are counted once, however many jobs of the key
have them, and as long as one of these is kept.
"""

from __future__ import annotations

from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mcfuser_db.models import ApiKey, Job, KeyFile
from mcfuser_db.tallies import tally


class OverQuota(ValueError):
    """A key's jobs would take more than they may; `what` names the limit."""

    def __init__(self, what: Literal["queued", "disk"], sentence: str) -> None:
        super().__init__(sentence)
        self.what = what


def check_queue(session: Session, key: str | None) -> None:
    """Raises OverQuota where one more of a key's jobs may not wait.

    The key's row stays locked until the transaction ends: of two posts at once, the second sees the
    job of the first.
    """
    row = _locked(session, key)
    if row is None or row.queued is None:
        return
    queued = select(Job.id).where(Job.api_key == row.id, Job.state == "queued")
    as_many = select(func.count()).select_from(queued.limit(row.queued).subquery())
    if (session.scalar(as_many) or 0) >= row.queued:
        raise OverQuota(
            "queued",
            f"key '{row.name}' has {row.queued} queued jobs, as many as it may have at once; post "
            "again when one of them runs",
        )


def check_disk(session: Session, key: str | None, model: str, size: int) -> None:
    """Raises OverQuota where a model of `size` bytes, with that digest, does not fit beside what a
    key's jobs keep."""
    row = _locked(session, key)
    if row is None or row.disk is None:
        return
    used = tally(session, f"disk.{row.id}")
    if session.get(KeyFile, (row.id, model)) is None:
        used += size
    if used > row.disk:
        raise OverQuota(
            "disk",
            f"models and modules of key '{row.name}' may have {row.disk} bytes, and with this "
            f"model they have {used}: wait until old results are removed (MCFUSER_KEEP_AGE, "
            "MCFUSER_KEEP_BYTES), or ask for a key with more",
        )


def _locked(session: Session, key: str | None) -> ApiKey | None:
    return session.get(ApiKey, key, with_for_update=True) if key is not None else None
