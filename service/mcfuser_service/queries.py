"""Checks the query of a request: only known names, and printable text."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import AfterValidator, Field

from mcfuser_service.problems import error

LONGEST = 1000
"""The largest number of characters of a value in a query."""


def printable(words: str) -> str:
    """The words; raises ValueError where they have other characters."""
    if not words.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return words


def _controlled(words: str) -> str:
    if _CONTROLS.search(words):
        raise ValueError("it has control characters")
    return words


_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
Word = Annotated[
    str,
    Field(max_length=LONGEST, json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}),
    AfterValidator(_controlled),
]


def only(*names: str) -> Any:
    """A dependency that refuses all other names in the query."""
    return Depends(_refusing(names))


def _refusing(names: tuple[str, ...]) -> Callable[[Request], Awaitable[None]]:
    async def check(request: Request) -> None:  # a plain function is run in a thread, and waits
        unknown = [n for n in dict.fromkeys(request.query_params.keys()) if n not in names]
        if not unknown:
            return
        told = f"use {', '.join(names)}" if names else "this address takes none"
        found = [{"in": "query", "name": n[:100], "detail": "it is not known"} for n in unknown[:9]]
        raise error("bad-option", f"query '{unknown[0][:100]}' is not known; {told}", errors=found)

    return check
