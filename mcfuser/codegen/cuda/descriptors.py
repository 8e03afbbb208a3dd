"""Reads from a kernel's instructions whether products read the tiles in shared memory that they
should.

A product of a warp group finds a tile by a descriptor: 64 bits in two uniform registers, the tile's
address in the low word and, in the high word, a constant that says how the tile lies. ptxas 12.8
computes descriptors of one tile once for several products, and sometimes on a path that the others
have not come along, or in a register that holds something else by then. The text that it is given
is right. The kernel is wrong, or it reads where nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from mcfuser.codegen.cuda.kept import LABEL, text_loops

_TEXT_PRODUCT = re.compile(r"\bwgmma\.mma_async")
_TARGET = re.compile(r"\.L_x_\d+")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:(@)!?U?PT?\d?\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
_PREDICATE = re.compile(r"!?U?P(?:T|\d)$")
_UNIFORM = re.compile(r"UR(\d+)$")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")
_PRODUCT = re.compile(r"R\d+, (R\d+[\w.]*, )?gdesc\[UR(\d+)\]")
_FIELD = 14
"""Bits of a tile's address in a descriptor."""


class _Word(Enum):
    """What is known of a register that holds no known number."""

    ADDRESS = auto()
    """A tile's address, and a number more."""
    ANYTHING = auto()
    """The result of an instruction that is not followed."""
    NOTHING = auto()
    """Nobody has written it on some path, or paths disagree."""


_Value = int | _Word
_Registers = Mapping[int, _Value]


class _Instruction(NamedTuple):
    name: str
    operands: tuple[str, ...]
    predicated: bool
    targets: tuple[str, ...]


def at_risk(ptx: str) -> bool:
    """Whether products of the text stand outside loops, or on one of several paths: elsewhere no
    descriptor was ever seen to be wrong."""
    lines = ptx.splitlines()
    looped = {i for body in text_loops(lines) for i in body}
    products = (i for i, line in enumerate(lines) if _TEXT_PRODUCT.search(line) is not None)
    return "brx.idx" in ptx or any(i not in looped for i in products)


def misread(instructions: str) -> bool:
    """Whether a product reads a tile by a descriptor that is none.

    `instructions` are those of a kernel, as `nvdisasm -c` prints them, with the targets of indirect
    branches.
    """
    code, labels = _read(instructions)
    for one, before in zip(code, _states(code, labels), strict=True):
        product = _PRODUCT.match(", ".join(one.operands)) if "GMMA" in one.name else None
        if product is None or before is None:
            continue
        first = int(product[2])
        words = (first + 2,) if product[1] else (first, first + 2)
        if not all(_is_descriptor(before, word) for word in words):
            return True
    return False


def _is_descriptor(registers: _Registers, low: int) -> bool:
    address = registers.get(low, _Word.NOTHING)
    layout = registers.get(low + 1, _Word.NOTHING)
    return address is not _Word.NOTHING and layout not in (_Word.NOTHING, _Word.ADDRESS)


# --- the text


def _read(text: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions, and the number of the first one behind each label."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if (label := LABEL.match(line)) is not None:
            labels[label[1]] = len(code)
        elif (m := _INSTRUCTION.search(line)) is not None:
            operands = tuple(o.strip() for o in m[3].split(","))
            targets = tuple(_TARGET.findall(line)) if m[2].startswith("BR") else ()
            code.append(_Instruction(m[2], operands, m[1] is not None, targets))
    return code, labels


# --- what registers hold


def _states(code: Sequence[_Instruction], labels: Mapping[str, int]) -> Sequence[_Registers | None]:
    """What the uniform registers hold before each instruction, on all paths to it; None where none
    leads there."""
    if not code:
        return []
    before: list[_Registers | None] = [{}, *[None] * (len(code) - 1)]
    waiting = [0]
    while waiting:
        i = waiting.pop()
        state = before[i]
        assert state is not None
        written = _written(code[i], state)
        after = {**state, **written} if written else state
        for following in _following(code[i], i, labels):
            if following >= len(code):
                continue
            known = before[following]
            joined = after if known is None else _joined(known, after)
            if joined != known:
                before[following] = joined
                waiting.append(following)
    return before


def _following(one: _Instruction, i: int, labels: Mapping[str, int]) -> Iterator[int]:
    yield from (labels[t] for t in one.targets if t in labels)
    if one.predicated or not one.name.startswith(("BRA", "BRX", "EXIT", "RET")):
        yield i + 1


def _joined(a: _Registers, b: _Registers) -> _Registers:
    return {r: a[r] if a[r] == b[r] else _Word.NOTHING for r in a.keys() & b.keys()}


def _written(one: _Instruction, state: _Registers) -> _Registers:
    """The uniform registers that an instruction writes. One that may not be executed leaves what
    was there, so the two have to agree."""
    operands = [o for o in one.operands if not _PREDICATE.match(o)]
    target = _UNIFORM.match(operands[0]) if operands else None
    if target is None or not one.name.startswith(("U", "R2UR", "S2UR")):
        return {}
    if one.name.startswith(("UTMA", "UBLK")):  # they read the register that they name first
        return {}
    written = _results(one.name, int(target[1]), operands[1:], state)
    if one.predicated:
        return {r: v if state.get(r) == v else _Word.NOTHING for r, v in written.items()}
    return written


def _results(name: str, target: int, sources: Sequence[str], state: _Registers) -> _Registers:
    if name == "UMOV":
        return {target: _value(sources[0], state)}
    if name.startswith("UIADD3.64"):
        high = (f"UR{int(m[1]) + 1}" if (m := _UNIFORM.match(s)) else "0" for s in sources)
        return {
            target: _sum([_value(s, state) for s in sources]),
            target + 1: _sum([_value(s, state) for s in high]),
        }
    if name.startswith("UIADD3"):
        values = [_value(s, state) for s in sources]
        total = _sum(values)
        upper = name.startswith("UIADD3.X") and any(v for v in values if isinstance(v, int))
        # a descriptor's high word is a constant, and nothing is added to it
        return {target: _Word.NOTHING if upper and total is _Word.ANYTHING else total}
    if name.startswith("USGXT.U32") and _value(sources[1], state) == _FIELD:
        return {target: _Word.ADDRESS}
    wide = 2 if ".64" in name or ".WIDE" in name else 1
    return {target + i: _Word.ANYTHING for i in range(wide)}


def _value(operand: str, state: _Registers) -> _Value:
    if operand == "URZ":
        return 0
    if (m := _UNIFORM.match(operand)) is not None:
        return state.get(int(m[1]), _Word.NOTHING)
    if _NUMBER.match(operand):
        return int(operand, 0) & 0xFFFFFFFF
    return _Word.ANYTHING


def _sum(values: Sequence[_Value]) -> _Value:
    words = [v for v in values if isinstance(v, _Word)]
    if _Word.NOTHING in words or words.count(_Word.ADDRESS) > 1:
        return _Word.NOTHING
    if words:
        return _Word.ANYTHING if _Word.ANYTHING in words else _Word.ADDRESS
    return sum(v for v in values if isinstance(v, int)) & 0xFFFFFFFF
