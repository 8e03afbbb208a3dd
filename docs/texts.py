"""Texts of docs/architecture.md: what is printed, rows of cells, lists."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from mcfuser.space.plan import Floats

WIDE, CELL = 100, 28
"""Columns of what is printed, and of a cell."""


@dataclass(frozen=True)
class Shown:
    """The text of a block, and the language in which it is to be coloured."""

    text: str
    language: str = "text"

    def __str__(self) -> str:
        return f"```{self.language}\n{self.text.rstrip()}\n```"


def printed(show: Callable[[Console], None]) -> str:
    """What is printed on a console of fixed width, without colours."""
    out = io.StringIO()
    show(Console(file=out, width=WIDE, color_system=None, force_terminal=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def row(name: str, cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"{name:<17}" + "".join(f"{cell:<{CELL}}" for cell in cells)


def micro(found: Floats) -> list[str]:
    """Seconds in microseconds."""
    return [f"{x * 1e6:.2f} us" for x in found]


def pairs(found: Mapping[str, object]) -> str:
    """Names with their values."""
    return " ".join(f"{n}={x:,}" if isinstance(x, int) else f"{n}={x}" for n, x in found.items())


def wrapped(names: Sequence[str]) -> str:
    """A list, broken where a line would be too wide."""
    lines, line = list[str](), ""
    for name in names:
        if len(line) + len(name) > WIDE - 20:
            lines, line = [*lines, line.rstrip()], ""
        line += f"{name}, "
    return f"\n{' ' * 15}".join([*lines, line.rstrip(", ")])
