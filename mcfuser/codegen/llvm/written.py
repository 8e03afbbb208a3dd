"""Loops that are written as text in the place of TVM's own, for operators of fixed extents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from mcfuser.codegen.tensorir.integer import plus, times, vectors

LANES = 16
"""Elements of the vectors that are copied."""
SMALL = 1 << 14
"""Elements of a result below which one core writes them all: to wake another one costs more."""

NUMBERS = ("float32", "float64", "int32", "int64")
"""Types whose vectors LLVM adds."""
PIECE, PIECES = 256, 8
"""Elements of a line that one core takes at a time, and the pieces that a line should have."""


def piece(line: int) -> int:
    """Into pieces of how many elements a line is divided, for cores to share: into vectors at
    least, and not at all where it is no number of vectors."""
    sizes = [n for n in (PIECE, PIECE // 4) if line % n == 0 and line >= PIECES * n]
    return sizes[0] if sizes else LANES if line % LANES == 0 else line


def outer_loop(elements: int, parts: int = 2) -> str:
    """The loop over so many parts of a result of so many elements: on all cores, unless there is
    one, or elements are few."""
    return "range" if elements < SMALL or parts == 1 else "T.parallel"


def function_text(head: str, flat: Iterable[str], body: Iterable[str]) -> str:
    """The text of a PrimFunc: its name and parameters, its views of them, its statements."""
    lines = (
        "@T.prim_func(s_tir=True, private=True)",
        f"def {head}:",
        *(f"    {line}" for line in flat),
        '    with T.sblock("root"):',
        "        T.reads()",
        "        T.writes()",
        *(f"        {line}" for line in body),
    )
    return "\n".join(lines) + "\n"


def each(count: int, lanes: int, statement: Callable[[str], str]) -> Iterator[str]:
    """A statement for each of so many elements in a row, given its position, in vectors. LLVM would
    make single elements of what fills no loop of several vectors."""
    for first, trips, width in vectors(str(count), lanes):
        at, indent = first, ""
        if trips != "1":
            yield f"for v in range({trips}):"
            at, indent = plus(at, times("v", width)), "    "
        if width > 1:
            yield f"{indent}for j in T.vectorized({width}):"
            at, indent = plus(at, "j"), f"{indent}    "
        yield f"{indent}{statement(at)}"


def indented(count: int, depth: int, statement: str) -> list[str]:
    """The same in vectors of LANES elements, as lines that many blocks deep; the position stands
    for "{0}" in the statement."""
    return [f"{'    ' * depth}{line}" for line in each(count, LANES, statement.format)]


def parameters(given: Sequence[tuple[str, tuple[int, ...], str]]) -> tuple[str, list[str]]:
    """The parameters of a function whose arrays have these names, extents and types, and views of
    them as lines of numbers, called `name_flat`."""
    heads = [f'{name}_arg: T.Buffer({extents}, "{dtype}")' for name, extents, dtype in given]
    views = [
        f'{name}_flat = T.decl_buffer(({math.prod(extents)},), "{dtype}", data={name}_arg.data)'
        for name, extents, dtype in given
    ]
    return ", ".join(heads), views
