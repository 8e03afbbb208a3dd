"""Loops that are written as text in the place of TVM's own, for operators of fixed extents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mcfuser.codegen.tensorir.integer import plus, times, vectors

LANES = 16
"""Elements of the vectors that are copied."""
SMALL = 1 << 14
"""Elements of a result below which one core writes them all: to wake another one costs more."""


def outer_loop(elements: int) -> str:
    """The loop over parts of a result of so many elements: on all cores, unless they are few."""
    return "range" if elements < SMALL else "T.parallel"


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
