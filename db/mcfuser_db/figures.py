"""Counters and histograms that all workers add to, wherever they run, and every server shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import select

from mcfuser_db.database import insert
from mcfuser_db.models import FigureRow
from mcfuser_db.store import Storage

BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""The upper bounds of the buckets of seconds; one without bound follows."""
BOUND_NAMES = (*(f"{b:g}" for b in BOUNDS), "+Inf")


@dataclass(frozen=True, slots=True, order=True)
class Figure:
    """That something has happened `count` times, and took `total` seconds in all.

    `name` says what, `label` which kind of it; `bound` is one of BOUND_NAMES in a histogram, and
    empty in a counter.
    """

    name: str
    label: str
    bound: str = ""
    count: int = 1
    total: float = 0.0


def timed(name: str, label: str, seconds: float) -> Figure:
    """One observation of a histogram."""
    bound = next((b for b, most in zip(BOUND_NAMES, BOUNDS, strict=False) if seconds <= most), "")
    return Figure(name, label, bound or BOUND_NAMES[-1], 1, seconds)


def add_figures(store: Storage, some: Iterable[Figure]) -> None:
    """Adds to what is kept, in one transaction."""
    with store.writing() as session:
        new = insert(session, FigureRow)
        added = new.on_conflict_do_update(
            index_elements=[FigureRow.name, FigureRow.label, FigureRow.bound],
            set_={
                "count": FigureRow.count + new.excluded.count,
                "total": FigureRow.total + new.excluded.total,
            },
        )
        for one in sorted(some):  # two transactions lock rows in one order
            session.execute(added, asdict(one))


def figures(store: Storage) -> Sequence[Figure]:
    """All that is kept, by name, label and bound."""
    with store.reading() as session:
        rows = session.scalars(select(FigureRow)).all()
    return sorted(Figure(r.name, r.label, r.bound, r.count, r.total) for r in rows)
