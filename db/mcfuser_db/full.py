"""Tells errors that mean a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT})
_SQLITE_FULL = 13
_POSTGRESQL_FULL = "53100"
_WORDS = (*map(os.strerror, sorted(_NUMBERS)), "database or disk is full")


def is_full(error: BaseException) -> bool:
    """Whether an error, or one that caused it, means that a disk is full.

    It may be the file system's, a quota's, SQLite's, PostgreSQL's, or that of a process that ended.
    """
    return any(_full(e) for e in _chain(error))


def _full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return True
    if getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL:
        return True
    if getattr(error, "sqlstate", None) == _POSTGRESQL_FULL:
        return True
    # of a process that ended (mcfuser.process.confined.Stopped)
    told = str(getattr(error, "words", ""))
    return any(words in told for words in _WORDS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__, getattr(one, "orig", None)]
