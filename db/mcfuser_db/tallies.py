"""How much there is, without counting it."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mcfuser_db.models import Tally


def tallies(session: Session) -> dict[str, int]:
    """The number of kernels, and of jobs in each state, by what is counted (Tally)."""
    counted = select(Tally.what, func.sum(Tally.number)).where(~Tally.what.startswith("disk."))
    rows = session.execute(counted.group_by(Tally.what))
    return {what: int(number) for what, number in rows}


def tally(session: Session, what: str) -> int:
    """One of the sums; 0 where nothing was counted."""
    return int(session.scalar(select(func.sum(Tally.number)).where(Tally.what == what)) or 0)
