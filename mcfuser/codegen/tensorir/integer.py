"""Whole numbers as text: what is known is computed now, the rest when the kernel runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from mcfuser.lowering.tensorir.micro import NARROWEST


def plus(a: str, b: str) -> str:
    if a == "0" or b == "0":
        return b if a == "0" else a
    return f"{a} + {b}"


def minus(a: str, b: str) -> str:
    x, y = _known(a), _known(b)
    if x is not None and y is not None:
        return str(x - y)
    return a if b == "0" else f"{a} - {_atom(b)}"


def times(a: str, b: str | int) -> str:
    b = str(b)
    x, y = _known(a), _known(b)
    if x is not None and y is not None:
        return str(x * y)
    if a == "0" or b == "0":
        return "0"
    if a == "1" or b == "1":
        return b if a == "1" else a
    return f"{_factor(a)} * {_factor(b)}"


def divided(a: str, unit: int | str) -> str:
    """How many whole units a number holds, rounded towards less."""
    x, y = _known(a), _known(str(unit))
    if x is not None and y is not None:
        return str(x // y)
    return a if y == 1 else f"{_atom(a)} // {_atom(str(unit))}"


def rest(a: str, unit: int | str) -> str:
    x, y = _known(a), _known(str(unit))
    if x is not None and y is not None:
        return str(x % y)
    return "0" if y == 1 else f"{_atom(a)} % {_atom(str(unit))}"


def covered(a: str, unit: int) -> str:
    """How many units cover a number."""
    return divided(plus_known(a, unit - 1), unit)


def smaller(a: str, b: str) -> str:
    x, y = _known(a), _known(b)
    return str(min(x, y)) if x is not None and y is not None else f"T.min({a}, {b})"


def larger(a: str, b: str) -> str:
    x, y = _known(a), _known(b)
    return str(max(x, y)) if x is not None and y is not None else f"T.max({a}, {b})"


def flat(extents: Sequence[int], where: Sequence[str]) -> str:
    """The number of an element of a dense array, given its position along each dimension."""
    total = "0"
    for n, position in zip(extents, where, strict=True):
        total = plus(times(total, n), position)
    return total


def vectors(count: str, width: int, again: bool = False) -> Iterator[tuple[str, str, int]]:
    """How vectors of at most `width` lanes cover a number of positions: the first position, the
    number of vectors and their width, for each width. What is left of a known number takes ever
    narrower ones, or one that begins at positions of the one before, if these may be taken
    `again`."""
    full, left = divided(count, width), rest(count, width)
    if full != "0":
        yield "0", full, width
    base = times(full, width)
    while left.isdigit():
        enough = max(NARROWEST, 1 << (int(left) - 1).bit_length())
        if again and int(left) > 1 and enough <= int(count):
            yield str(int(count) - enough), "1", enough
            return
        if (width := width // 2) < NARROWEST:
            break
        if int(left) >= width:
            yield base, "1", width
            base, left = plus_known(base, width), str(int(left) - width)
    if left != "0":
        yield base, left, 1


def every(conditions: Iterable[str]) -> str:
    """The condition that all of some hold, one at least."""
    return reduce(lambda a, b: f"T.And({a}, {b})", conditions)


def shape(extents: Iterable[str]) -> str:
    """A tuple of extents."""
    texts = tuple(extents)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def plus_known(a: str, b: int) -> str:
    """A sum with a number."""
    x = _known(a)
    return str(x + b) if x is not None else plus(a, str(b))


def _known(a: str) -> int | None:
    return int(a) if re.fullmatch(r"-?\d+", a) else None


def _atom(a: str) -> str:
    return f"({a})" if " " in a else a


def _factor(a: str) -> str:
    return a if re.fullmatch(r"\w+( \* \w+)*", a) else _atom(a)
