"""Reads from a kernel's PTX and its instructions whether registers that a loop keeps survive it.

A product of a warp group may read its first operand from registers. Where that operand is the same
in every iteration (the queries of attention), its registers must keep it. ptxas 12.8 and 12.9
sometimes give them to the operand of another product of the loop (the probabilities), and the next
iteration multiplies by that: every result is wrong, each time alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

_TEXT_LABEL = re.compile(r"^(\$\w+):")
_TEXT_BRANCH = re.compile(r"\bbra(?:\.\w+)*\s+(\$\w+)")
_TEXT_PRODUCT = re.compile(r"\bwgmma\.mma_async\S*\s+\{[^}]*\}, \{([^}]*)\}")
_TEXT_WRITES = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+(?:\|%\w+)?)")
_REGISTER = re.compile(r"%\w+")

_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA(?:\.\w+)* `\((\.L_x_\d+)\)")
_PRODUCT = re.compile(r"\b[A-Z]GMMA\S* R(\d+), R(\d+)(?:\.reuse)?, gdesc")
_SIZE = re.compile(r"\b[A-Z]GMMA\.\d+x(\d+)x")
_WRITES = re.compile(
    r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s+(?:!?U?PT?\d?,\s*)*R(\d+)\b"
)
_RESTORES = ("LD", "MOV", "IMAD.MOV")
_OPERAND = 4
"""Registers of a thread that hold a product's first operand."""


class _Write(NamedTuple):
    """The registers that an instruction writes, and whether it only brings a value back."""

    registers: range
    restores: bool


def keeps_operands(ptx: str) -> bool:
    """Whether a loop of the text has a product whose first operand it keeps in registers."""
    return any(any(kept) for kept in _kept(ptx))


def lost(ptx: str, instructions: str) -> bool:
    """Whether a loop writes over an operand that it has to keep.

    `instructions` are those of the text's binary, as nvdisasm prints them. A loop is found again by
    the number of its products.
    """
    loops = [
        (body, found)
        for body in sorted(_loops(instructions.splitlines(), _LABEL, _BRANCH), key=len)
        if (found := [i for i, line in enumerate(body) if _PRODUCT.search(line)])
    ]
    for kept in sorted(_kept(ptx), key=len):
        at = next((i for i, (_, found) in enumerate(loops) if len(found) % len(kept) == 0), None)
        if at is None:
            continue
        body, found = loops.pop(at)  # two loops may have as many products
        places = (place for i, place in enumerate(found) if kept[i % len(kept)])
        if any(_computed_over(body, place) for place in places):
            return True
    return False


def _kept(ptx: str) -> Iterator[Sequence[bool]]:
    """For every loop of the text, whether it keeps the operand of each of its products that read
    registers."""
    for body in _loops(ptx.splitlines(), _TEXT_LABEL, _TEXT_BRANCH):
        operands = [m[1] for line in body if (m := _TEXT_PRODUCT.search(line)) is not None]
        written = {
            name
            for line in body
            if (m := _TEXT_WRITES.match(line)) is not None
            for name in _REGISTER.findall(m[1])
        }
        if operands:
            yield [written.isdisjoint(_REGISTER.findall(operand)) for operand in operands]


def _loops(
    lines: Sequence[str], label: re.Pattern[str], branch: re.Pattern[str]
) -> Iterator[Sequence[str]]:
    """The lines between every label and a branch back to it."""
    labels: dict[str, int] = {}
    for i, line in enumerate(lines):
        if (m := label.match(line)) is not None:
            labels[m[1]] = i
        elif (m := branch.search(line)) is not None and m[1] in labels:
            yield lines[labels[m[1]] : i + 1]


def _computed_over(body: Sequence[str], place: int) -> bool:
    """Whether what a product reads was computed in the loop: the last instruction before it that
    writes one of its registers, in this iteration or the one before, does not bring a value back.
    """
    m = _PRODUCT.search(body[place])
    assert m is not None
    first = int(m[2])
    wanted = set(range(first, first + _OPERAND))
    for line in chain(reversed(body[:place]), reversed(body[place:])):
        if (write := _written(line)) is None:
            continue
        hit = wanted.intersection(write.registers)
        if hit and not write.restores:
            return True
        wanted -= hit
    return False


def _written(line: str) -> _Write | None:
    """What an instruction writes: a product a tile, wide ones two or four registers."""
    if (m := _WRITES.search(line)) is None:
        return None
    name, first = m[1], int(m[2])
    if (size := _SIZE.search(line)) is not None:
        return _Write(range(first, first + int(size[1]) // 2), restores=False)
    four, two = (".128", "M88.4"), (".64", "M88.2", ".WIDE")
    count = 4 if any(x in name for x in four) else 2 if any(x in name for x in two) else 1
    return _Write(range(first, first + count), name.startswith(_RESTORES))
