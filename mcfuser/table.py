"""Tables of plain text, in which no name is broken across lines.

Where a table is wider than the terminal, its sentences are wrapped at spaces; where that leaves
them no room, they are put beneath their rows; then long names are replaced by numbers, which a
legend below explains; and where even that is too wide, each row becomes lines of its own, one for
each column. Without a width, as in a pipe, every row is one line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich.cells import cell_len

Kind = Literal["figure", "name", "words"]
"""What the cells of a column are: short texts that stay as they are; names, which a number may
stand for; or sentences, which may be wrapped at spaces."""

T = TypeVar("T")
GAP = _INDENT = "  "
_LEAST_WORDS = 24  # columns of the terminal for sentences
_LEAST_NAME = 8  # for names, below which all are replaced


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its title, and what its cells are."""

    title: str
    kind: Kind = "figure"


Row = Sequence[str]


def printable(words: str) -> str:
    """A text of one line in which control characters (line ends, terminal escapes) are escaped."""
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def lines(columns: Sequence[TableColumn], rows: Sequence[Row], width: int | None) -> list[str]:
    """The lines of a table: the titles first, or an empty line where each row became lines of its
    own.

    A cell may have several lines. `width` is that of the terminal, None where there is no limit.
    """
    cells = [[_split(cell) for cell in row] for row in rows]
    natural = _widths(columns, cells)
    if width is None or _total(natural) <= width:
        return _grid(columns, cells, natural)
    wrapped = _wrapped(columns, cells, natural, width)
    if wrapped is not None:
        return _grid(columns, wrapped, _widths(columns, wrapped))
    if _total(_upright(columns, natural)) <= width:
        return _beneath(columns, cells, natural, width)
    numbered, legend = _numbered(columns, cells, natural, width)
    widths = _widths(columns, numbered)
    if _total(_upright(columns, widths)) <= width:
        return [*_beneath(columns, numbered, widths, width), "", *legend]
    return _records(columns, cells, width)


Cells = list[list[list[str]]]  # the lines of each cell of each row


def _split(cell: str) -> list[str]:
    return [printable(line) for line in cell.split("\n")]


def _widths(columns: Sequence[TableColumn], cells: Cells) -> list[int]:
    found = [cell_len(column.title) for column in columns]
    for row in cells:
        for at, cell in enumerate(row):
            found[at] = max(found[at], *map(cell_len, cell))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _wrapped(
    columns: Sequence[TableColumn], cells: Cells, widths: Sequence[int], width: int
) -> Cells | None:
    """The cells with their sentences wrapped so that the table fits; None where it does not."""
    wide = [at for at, column in enumerate(columns) if column.kind == "words"]
    left = width - _total([0 if at in wide else w for at, w in enumerate(widths)])
    rooms = dict.fromkeys(wide, 0)
    for place, at in enumerate(sorted(wide, key=lambda at: widths[at])):  # short ones need less
        rooms[at] = min(widths[at], left // (len(wide) - place))
        left -= rooms[at]
    if left < 0 or any(rooms[at] < min(widths[at], _LEAST_WORDS) for at in wide):
        return None
    made = [
        [_wrap(cell, rooms[at]) if at in rooms else cell for at, cell in enumerate(row)]
        for row in cells
    ]
    return made if _total(_widths(columns, made)) <= width else None


def _wrap(cell: Sequence[str], room: int, indent: str = "") -> list[str]:
    """The lines of a cell, indented, and wrapped at spaces; a word that is longer than the room is
    left whole."""
    found: list[str] = []
    for line in cell:
        found += textwrap.wrap(
            line, room, initial_indent=indent, subsequent_indent=indent * 2,
            break_long_words=False, break_on_hyphens=False,
        ) or [""]  # fmt: skip
    return found


def _numbered(
    columns: Sequence[TableColumn], cells: Cells, widths: Sequence[int], width: int
) -> tuple[Cells, list[str]]:
    """The cells with numbers for the names that do not fit, and the legend of the numbers."""
    named = [at for at, column in enumerate(columns) if column.kind == "name"]
    kept = _upright(columns, [0 if at in named else w for at, w in enumerate(widths)])
    room = max(_LEAST_NAME, (width - _total(kept)) // max(1, len(named)))
    numbers: dict[str, int] = {}

    def short(name: str, row: int) -> str:
        """The name, or a number for it: that of its first row, where rows have one name each."""
        if cell_len(name) <= room:
            return name
        return f"[{numbers.setdefault(name, row if len(named) == 1 else len(numbers) + 1)}]"

    made = [
        [
            [short(line, number) for line in cell] if at in named else cell
            for at, cell in enumerate(row)
        ]
        for number, row in enumerate(cells, 1)
    ]
    return made, [f"[{number}] {name}" for name, number in numbers.items()]


def _upright(columns: Sequence[TableColumn], row: Sequence[T]) -> list[T]:
    """What a row has in the columns that are no sentences."""
    return [one for one, column in zip(row, columns, strict=True) if column.kind != "words"]


def _beneath(
    columns: Sequence[TableColumn], cells: Cells, widths: Sequence[int], width: int
) -> list[str]:
    """The table without its sentences, which follow the rows, indented."""
    shown, places = _upright(columns, columns), _upright(columns, widths)
    found = _grid(shown, [], places)
    for row in cells:
        found += _grid(shown, [_upright(columns, row)], places)[1:]
        for column, cell in zip(columns, row, strict=True):
            if column.kind == "words" and any(cell):
                title = f"{column.title}: " if column.title else ""
                found += _wrap([title + "; ".join(cell)], width, _INDENT)
    return found


def _grid(columns: Sequence[TableColumn], cells: Cells, widths: Sequence[int]) -> list[str]:
    found = [_line([column.title for column in columns], widths)]
    for row in cells:
        for at in range(max(map(len, row))):
            found.append(_line([cell[at] if at < len(cell) else "" for cell in row], widths))
    return found


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (c + " " * (w - cell_len(c)) for c, w in zip(cells, widths, strict=True))
    return GAP.join(padded).rstrip()


def _records(columns: Sequence[TableColumn], cells: Cells, width: int) -> list[str]:
    """Each row as lines, one for each cell that is not empty: its column's title and its text."""
    titles = max(cell_len(column.title) for column in columns)
    room = max(1, width - titles - len(GAP))
    found: list[str] = []
    for row in cells:
        found.append("")
        for column, cell in zip(columns, row, strict=True):
            shown = _wrap(cell, room) if column.kind == "words" else cell
            if any(shown):
                found += [
                    _line([column.title if not at else "", line], [titles, 0])
                    for at, line in enumerate(shown)
                ]
    return found
