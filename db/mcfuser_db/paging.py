"""Pages of lists that have the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute


def before(
    created: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None],
    moment: datetime,
    id: InstrumentedAttribute[Any],
    name: object,
) -> ColumnElement[bool]:
    """The rows that come after one in a list with the newest first.

    Rows are compared as pairs: a database then finds the first of them in an index of both columns,
    where it would read all that come before with the same condition in two parts.
    """
    return tuple_(created, id) < tuple_(literal(moment, created.type), literal(name, id.type))
