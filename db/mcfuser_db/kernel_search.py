"""Lists of kernels in any order, and those whose names have some words: a bounded part at a time.

Every order is that of an index that also has the labels, so that a search reads no rows but those
that it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, or_, select, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from mcfuser_db.models import KernelRow

KernelOrder = Literal["created", "chain", "device", "dtype", "time"]
WINDOW = 15_000
"""Kernels that one search looks at. A page that ends before it is full goes on after them."""
_CHAIN = 190  # characters of a chain's name that are searched
_BETWEEN = "\x1f"
_MOST_WORDS = 8
UNREAD = (defer(KernelRow.document, raiseload=True), defer(KernelRow.binary, raiseload=True))
"""What lists of kernels do not read."""

_Columns = tuple[InstrumentedAttribute[Any], ...]
_ORDERS: dict[KernelOrder, _Columns] = {
    "created": (KernelRow.created, KernelRow.key),
    "chain": (KernelRow.label, KernelRow.key),
    "device": (KernelRow.device, KernelRow.label, KernelRow.key),
    "dtype": (KernelRow.dtype, KernelRow.label, KernelRow.key),
    "time": (KernelRow.seconds, KernelRow.key),
}


def label(chain: str, device: str, dtype: str) -> str:
    """What is searched of a kernel, in small letters: the beginning of its chain's name, its
    device, and its type."""
    return f"{chain[:_CHAIN]}{_BETWEEN}{device}{_BETWEEN}{dtype}".lower()


@dataclass(frozen=True, slots=True)
class KernelQuery:
    """Which kernels, and in which order. Each of the `words`, which spaces divide, is a part of the
    chain's name, of the device or of the type, or the beginning of the key."""

    words: str = ""
    device: str | None = None
    order: KernelOrder = "created"
    descending: bool = True


@dataclass(frozen=True, slots=True)
class FoundKernels:
    """Some kernels, without documents and binaries, and the key after which the next ones follow;
    None where there are no more."""

    rows: Sequence[KernelRow]
    last: str | None


def find(session: Session, asked: KernelQuery, limit: int, after: str | None) -> FoundKernels:
    """The kernels that follow the one with the key `after`, at most `limit`, and fewer where the
    search has looked at WINDOW kernels."""
    columns = _ORDERS[asked.order]
    ahead: list[ColumnElement[bool]] = []
    if after is not None:
        place = session.execute(select(*columns).where(KernelRow.key == after)).one_or_none()
        if place is None:
            return FoundKernels((), None)
        ahead = [_beyond(columns, tuple(place), asked.descending)]
    every = _ordered(select(*columns).where(*ahead), columns, asked.descending)
    query, is_filtered = _filtered(asked, columns, ahead)
    found = session.scalars(query.limit(limit + 1)).all()
    rows = rows_of(session, found[:limit])
    if len(found) > limit:
        return FoundKernels(rows, found[limit - 1])
    end = None
    if is_filtered:
        end = session.execute(every.offset(WINDOW - 1).limit(1)).one_or_none()
    return FoundKernels(rows, str(end[-1]) if end is not None else None)


def _filtered(
    asked: KernelQuery, columns: _Columns, ahead: Sequence[ColumnElement[bool]]
) -> tuple[Select[str], bool]:
    """The keys that are asked for of the next WINDOW kernels, and whether these are not all.

    The window is a query in the query: it ends there, whatever a database takes for likely.
    """
    if not asked.words.split() and asked.device is None:
        keys = select(KernelRow.key).where(*ahead)
        return _ordered(keys, columns, asked.descending), False
    searched = dict.fromkeys((*columns, KernelRow.label))
    window = _ordered(select(*searched).where(*ahead), columns, asked.descending)
    part = window.limit(WINDOW).subquery()
    keys = select(part.c.key).where(*_conditions(asked, part.c.label, part.c.key))
    return _ordered(keys, [part.c[c.key] for c in columns], asked.descending), True


def _ordered(
    query: Select[Any], columns: Sequence[ColumnElement[Any]] | _Columns, descending: bool
) -> Select[Any]:
    return query.order_by(*(c.desc() if descending else c.asc() for c in columns))


def _beyond(columns: _Columns, place: tuple[Any, ...], descending: bool) -> ColumnElement[bool]:
    values = tuple_(*place, types=[c.type for c in columns])
    return tuple_(*columns) < values if descending else tuple_(*columns) > values


def _conditions(
    asked: KernelQuery, label: ColumnElement[str], key: ColumnElement[str]
) -> list[ColumnElement[bool]]:
    found = [
        or_(label.contains(word, autoescape=True), key.startswith(word, autoescape=True))
        for word in asked.words.lower().split()[:_MOST_WORDS]
    ]
    if asked.device is not None:  # in the label, so that no row is read
        whole = f"{_BETWEEN}{asked.device.lower()}{_BETWEEN}"
        found.append(label.contains(whole, autoescape=True))
    return found


def rows_of(session: Session, keys: Sequence[str]) -> Sequence[KernelRow]:
    """The kernels with these keys, in their order, without documents and binaries."""
    query = select(KernelRow).options(*UNREAD).where(KernelRow.key.in_(keys))
    rows = {row.key: row for row in session.scalars(query)}
    return [rows[key] for key in keys if key in rows]


def chain_of(session: Session, key: str) -> dict[str, Any] | None:
    """The document of a kernel's chain; None if there is none or it is damaged."""
    query = select(KernelRow.document["chain"]).where(KernelRow.key == key)
    try:
        found = session.scalar(query)
    except (DBAPIError, ValueError):  # the document is no JSON
        return None
    return found if isinstance(found, dict) else None
