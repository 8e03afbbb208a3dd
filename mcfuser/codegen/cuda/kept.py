"""Reads from a kernel's PTX and its instructions whether registers that a loop keeps survive it.

A product of a warp group may read its first operand from registers. Where that operand is the same
in every iteration (the queries of attention), its registers must keep it. ptxas 12.8 and 12.9
sometimes give them to the operand of another product of the loop (the probabilities), and the next
iteration multiplies by that: every result is wrong, each time alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_TEXT_LABEL = re.compile(r"^(\$\w+):")
_TEXT_BRANCH = re.compile(r"\bbra(?:\.\w+)*\s+(\$\w+)")
_TEXT_PRODUCT = re.compile(r"\bwgmma\.mma_async\S*\s+\{[^}]*\}, \{([^}]*)\}")
_TEXT_WRITES = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+(?:\|%\w+)?)")
_REGISTER = re.compile(r"%\w+")

LABEL = re.compile(r"^(\.L_x_\d+):")
"""A label among instructions, as nvdisasm prints it."""
_BRANCH = re.compile(r"\bBRA(?:\.\w+)* `\((\.L_x_\d+)\)")
_EXIT = re.compile(r"/\*[0-9a-f]+\*/\s+EXIT\b")
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
    return any(any(loop.inside) for loop in _kept(ptx.splitlines()))


def text_loops(lines: Sequence[str]) -> Iterator[range]:
    """The lines of each loop of a PTX text, from its label to a branch back to it."""
    return _bodies(lines, _TEXT_LABEL, _TEXT_BRANCH)


def lost(ptx: str, instructions: str) -> bool:
    """Whether a loop writes over an operand that it has to keep, for its products or for those that
    follow it.

    `instructions` are those of the text's binary, as nvdisasm prints them. A loop is found again by
    the number of its products.
    """
    lines = _without_waits(instructions.splitlines())
    loops = _with_products(lines, LABEL, _BRANCH, _PRODUCT)
    for kept in sorted(_kept(ptx.splitlines()), key=lambda loop: len(loop.inside)):
        count = len(kept.inside)
        at = next((i for i, loop in enumerate(loops) if len(loop.inside) % count == 0), None)
        if at is None:
            continue
        loop = loops.pop(at)  # two loops may have as many products
        body = lines[loop.body.start : loop.body.stop]
        for i, place in enumerate(loop.inside):
            here = place - loop.body.start
            if kept.inside[i % count] and _computed_over(lines[place], body[here:] + body[:here]):
                return True
        for keeps, place in zip(kept.after, loop.after, strict=False):
            if keeps and _computed_over(lines[place], body + lines[loop.body.stop : place]):
                return True
    return False


def _without_waits(lines: list[str]) -> list[str]:
    """The instructions without those behind the kernel's end, where waits for a barrier go on: they
    branch back, and are no loops around what they wait for."""
    ends = [i for i, line in enumerate(lines) if _EXIT.search(line) is not None]
    return lines[: ends[-1]] if ends else lines


class _Kept(NamedTuple):
    """Of the products of a loop, and of those that follow it, whether the loop keeps the operand of
    each in registers."""

    inside: Sequence[bool]
    after: Sequence[bool]


class _Loop(NamedTuple):
    """The lines of a loop, those of its products that read registers, and those of the products
    between it and the next such loop."""

    body: range
    inside: Sequence[int]
    after: Sequence[int]


def _kept(lines: Sequence[str]) -> Iterator[_Kept]:
    """For every loop of the text with products that read registers."""

    def operands(places: Sequence[int]) -> list[frozenset[str]]:
        found = (_TEXT_PRODUCT.search(lines[i]) for i in places)
        return [frozenset(_REGISTER.findall(m[1])) for m in found if m is not None]

    def written(first: int, end: int) -> set[str]:
        found = (_TEXT_WRITES.match(line) for line in lines[first:end])
        return {name for m in found if m is not None for name in _REGISTER.findall(m[1])}

    for loop in _with_products(lines, _TEXT_LABEL, _TEXT_BRANCH, _TEXT_PRODUCT):
        changed, inside = written(loop.body.start, loop.body.stop), operands(loop.inside)
        last = loop.after[-1] if loop.after else loop.body.stop
        later = changed | written(loop.body.stop, last)
        yield _Kept(
            [changed.isdisjoint(o) for o in inside],
            [o in inside and later.isdisjoint(o) for o in operands(loop.after)],
        )


def _with_products(
    lines: Sequence[str], label: re.Pattern[str], branch: re.Pattern[str], product: re.Pattern[str]
) -> list[_Loop]:
    """The loops that have products, between a label and a branch back to it; short ones first."""
    products = [i for i, line in enumerate(lines) if product.search(line) is not None]
    bodies = sorted(_bodies(lines, label, branch), key=len)
    inside = {body: [i for i in products if i in body] for body in bodies}
    loops = [body for body in bodies if inside[body]]

    def after(body: range) -> list[int]:
        ends = [other.start for other in loops if other.start >= body.stop]
        return [i for i in products if body.stop <= i < min(ends, default=len(lines))]

    return [_Loop(body, inside[body], after(body)) for body in loops]


def _bodies(
    lines: Sequence[str], label: re.Pattern[str], branch: re.Pattern[str]
) -> Iterator[range]:
    """The lines between every label and a branch back to it."""
    labels: dict[str, int] = {}
    for i, line in enumerate(lines):
        if (m := label.match(line)) is not None:
            labels[m[1]] = i
        elif (m := branch.search(line)) is not None and m[1] in labels:
            yield range(labels[m[1]], i + 1)


def _computed_over(product: str, before: Sequence[str]) -> bool:
    """Whether what a product reads was computed in the lines that ran before it: the last one that
    writes one of its registers does not bring a value back."""
    m = _PRODUCT.search(product)
    assert m is not None
    first = int(m[2])
    wanted = set(range(first, first + _OPERAND))
    for line in reversed(before):
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
