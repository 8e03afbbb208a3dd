"""Non-maximum suppression: of boxes that overlap, the one of the highest score is chosen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

_SYMBOL = "mcfuser.suppression"


@dataclass(frozen=True, slots=True)
class Suppression:
    """For each class of each picture, boxes are chosen from the highest score down, at most `most`
    (no more than there are); of equal ones the first.

    A box whose intersection with a chosen one is more than the part `overlap` of their union is
    suppressed, and so is a score that is not above `least` (None for minus infinity). Boxes are two
    opposite corners [y, x, y, x], or where they are `centered` a centre and extents [x, y, width,
    height].
    """

    most: int
    overlap: float
    least: float | None
    centered: bool


def suppression_symbol(suppression: Suppression) -> str:
    """The name of what a module calls for a suppression until it has code for it, which says what
    it is.

    It takes boxes [pictures, n, 4] and scores [pictures, classes, n] of float32, and gives rows
    [pictures * classes * most, 3] of int64: a picture, a class and a box, those of a class by
    falling scores; and -1 behind them.
    """
    return f"{_SYMBOL}:{json.dumps(asdict(suppression))}"


def is_suppression(symbol: str) -> bool:
    """Whether a name is that of a suppression."""
    return symbol.startswith(f"{_SYMBOL}:")


def suppression_of(symbol: str) -> Suppression:
    """The suppression that has a name."""
    return Suppression(**json.loads(symbol.removeprefix(f"{_SYMBOL}:")))
