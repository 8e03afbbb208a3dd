"""Pointers to the elements of tiles: addresses, and masks where they need some, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcfuser.chain import Tensor, last_along
from mcfuser.codegen.triton.frame import Frame
from mcfuser.codegen.triton.tile import (
    ATOM,
    COMPARE,
    SUM,
    TileValue,
    aligned,
    both,
    literal,
    shape_text,
)
from mcfuser.expr import Affine
from mcfuser.lowering.triton.address import Moves, Step, address, position_along
from mcfuser.lowering.triton.matrix import MatrixAxes, divisor, padded_axes
from mcfuser.lowering.triton.rows import TileRow
from mcfuser.space.statement import Load


def access(
    frame: Frame, tensor: Tensor, indices: Sequence[Affine], space: tuple[str, ...],
    lines: list[str], part: str | None = None,
) -> list[str]:  # fmt: skip
    """The pointers of a tile, of a part's own tensor if one is given, and the mask where it needs
    one; positions that are written in digits get `lines` of their own."""
    first = [part_offset(tensor, part)] if part is not None else []
    where = _sum(frame, address(frame.schedule.chain, tensor, indices), space, tensor.name, lines)
    pointer = _added([frame.pointer(tensor.name), *first, *where.numbers, *where.vectors])
    inside = _inside(frame, tensor, indices, space, lines)
    return [pointer, *mask_of(frame, space, [*frame.masks(space), *inside])]


def as_matrix(frame: Frame, s: Load, groups: MatrixAxes, lines: list[str]) -> list[str]:
    """The pointers of a tile that is loaded as a matrix, and the mask where it needs one: these are
    given the dimensions of the matrix, not what is loaded."""
    chain, dimensions = frame.schedule.chain, tuple(map("_".join, groups))
    tensor = chain.tensor(s.read.tensor)
    moves, start = address(chain, tensor, s.read.indices)
    rest = {a: steps for a, steps in moves.items() if not any(a in g for g in groups)}
    terms = [*_sum(frame, (rest, start), (), tensor.name, lines).numbers]
    padded = padded_axes(chain, s)
    last = next((g for g in groups if padded & {*g}), groups[0])
    masks = list[TileValue]()
    for d, g in zip(dimensions, groups, strict=True):
        own = {a: moves[a] for a in g if a in moves}
        if own and len(g) == 1:
            terms.append(_along(frame, g[0], own[g[0]], dimensions, tensor.name, lines))
        elif own:
            at = TileValue(_vector_of(frame, s, g, own, lines), (d,), "int32")
            terms.append(aligned(frame.dialect, at, dimensions).text)
        outside = _inside(frame, tensor, s.read.indices, g, lines) if g == last else []
        inside = both(frame.dialect, [*frame.masks(g), *outside], g)
        if inside is not None and inside.space and len(g) > 1:
            named = frame.part(f"{tensor.name}_{d}_in", _flat(frame, inside, g), lines)
            inside = TileValue(named, (d,), "bool")
        masks += [inside] if inside is not None else []
    return [_added([frame.pointer(tensor.name), *terms]), *mask_of(frame, dimensions, masks)]


def _vector_of(
    frame: Frame, s: Load, group: tuple[str, ...], moves: Moves, lines: list[str]
) -> str:
    """The name of what several axes move by, along one dimension of a matrix."""
    name, known = s.read.tensor, divisor(frame.schedule.chain, s, group)
    moved = _added(_sum(frame, (moves, ()), tuple(moves), name, lines).vectors)
    at = TileValue(moved, tuple(moves), "int32", SUM)
    words = _flat(frame, at, group, whole=len(moves) == len(group))
    words = f"{frame.dialect.word('multiple_of')}({words}, {known})"
    return frame.part(f"{name}_at_{'_'.join(group)}", words, lines)


def _flat(frame: Frame, v: TileValue, group: tuple[str, ...], whole: bool = False) -> str:
    """The text of a value along some axes as a vector; `whole` where it has the width of each."""
    sizes, to = [frame.layout.width(a) for a in group], frame.dialect
    words = aligned(to, v, group).text
    if not whole:
        words = f"{to.moving('broadcast_to')}({words}, {shape_text(sizes)})"
    return f"{to.moving('reshape')}({words}, {shape_text([math.prod(sizes)])})"


def as_row(
    frame: Frame, tensor: Tensor, indices: Sequence[Affine], space: tuple[str, ...], row: TileRow,
    lines: list[str],
) -> list[str]:  # fmt: skip
    """The pointers of a tile whose last axes are one dimension, and the mask where it needs one."""
    moves, start = address(frame.schedule.chain, tensor, indices)
    others = space[: -len(row.axes)]
    dimensions = (*others, "_".join(row.axes))
    known = sum(step.number for step in start) - row.picked
    numbers = {a: steps for a, steps in moves.items() if a not in space}
    first = _sum(frame, (numbers, (Step(known),)), (), tensor.name, lines).numbers
    terms = [_along(frame, a, moves[a], dimensions, tensor.name, lines) for a in others]
    terms.append(aligned(frame.dialect, _lanes(frame, row, dimensions[-1]), dimensions).text)
    pointers = _added([frame.pointer(tensor.name), *first, *terms])
    return [pointers, *mask_of(frame, dimensions, frame.masks(others))]


def _lanes(frame: Frame, row: TileRow, name: str) -> TileValue:
    """The elements of a row, as positions along a dimension of that name."""
    first, width = row.axes[0], frame.layout.width(row.axes[0])
    lanes = f"{frame.dialect.word('arange')}(0, {width * row.beside}){frame.wide}"
    start = frame.start(first)
    if start == "0":
        return TileValue(lanes, (name,), "int32")
    at = str(int(start) * row.beside) if start.isdigit() else f"{start} * {row.beside}"
    return TileValue(f"{at} + {lanes}", (name,), "int32", SUM)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Terms, of which some are numbers, and some extend along the axes of a tile; `known` where
    there are only constants, what they sum up to."""

    numbers: tuple[str, ...]
    vectors: tuple[str, ...]
    known: int | None


def _sum(
    frame: Frame, found: tuple[Moves, tuple[Step, ...]], space: tuple[str, ...], name: str,
    lines: list[str],
) -> _Sum:  # fmt: skip
    """What the positions of the axes move by, with a name in `lines` for each that is written in
    digits."""
    moves, start = found
    fixed = {step.extents: step.number for step in start}
    numbers: list[str] = []
    vectors: list[str] = []
    for a in (*(a for a in moves if a not in space), *space):
        position, steps = frame.position(a), moves.get(a, ())
        if position.constant:
            for step in steps:
                moved = step.number * step.digit(int(position.text))
                fixed[step.extents] = fixed.get(step.extents, 0) + moved
            continue
        if not steps:
            continue
        along = _along(frame, a, steps, space, name, lines)
        (vectors if position.space else numbers).append(along)
    offset = [_elements(frame, Step(n, extents)) for extents, n in fixed.items() if n]
    known = None if numbers or vectors or any(fixed) else sum(fixed.values())
    return _Sum((*numbers, *offset), tuple(vectors), known)


def _along(
    frame: Frame, a: str, steps: Sequence[Step], space: tuple[str, ...], name: str, lines: list[str]
) -> str:
    """What a position of an axis moves by, along the dimensions of a tile."""
    position = frame.position(a)
    if all(step.whole for step in steps):
        return _times(frame, aligned(frame.dialect, position, space).text, steps)
    words = " + ".join(_digit(frame, position.text, step) for step in steps)
    named = frame.part(f"{name}_at_{a}", words, lines)
    return aligned(frame.dialect, replace(position, text=named), space).text


def _inside(
    frame: Frame, tensor: Tensor, indices: Sequence[Affine], space: tuple[str, ...],
    lines: list[str],
) -> list[TileValue]:  # fmt: skip
    """The conditions on which the elements of a tile are inside an array that has padding."""
    conditions: list[TileValue] = []
    for i, p in enumerate(tensor.padding):
        name = f"{tensor.name}_{i}"
        moves = position_along(frame.schedule.chain, tensor, indices, i)
        where = _sum(frame, moves, space, name, lines)
        if where.known is not None:
            conditions.append(literal(0 <= where.known < p.extent))
            continue
        bounds = [">= 0"] if p.before else []
        bounds += [f"< {p.extent}"] if last_along(tensor, i) >= p.extent else []
        if not bounds:
            continue
        position = frame.part(name, _added([*where.vectors, *where.numbers]), lines)
        own = space if where.vectors else ()
        found = both(
            frame.dialect, [TileValue(f"{position} {b}", own, "bool", COMPARE) for b in bounds], own
        )
        conditions += [found] if found is not None else []
    inside = both(frame.dialect, [c for c in conditions if c.text != "True"], space)
    if inside is None:
        return []
    named = frame.part(f"{tensor.name}_inside", inside.text, lines)
    return [replace(inside, text=named, strength=ATOM)]


def _added(terms: Sequence[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ")


def mask_of(frame: Frame, space: tuple[str, ...], masks: Sequence[TileValue]) -> list[str]:
    """The argument that says which elements of a tile are inside, where not all of them are."""
    mask = both(frame.dialect, masks, space)
    return [f"mask={aligned(frame.dialect, mask, space).text}"] if mask is not None else []


def _times(frame: Frame, position: str, steps: Sequence[Step]) -> str:
    """A position times what it moves an address by."""
    words = " + ".join(_elements(frame, step) for step in steps)
    if words == "1":
        return position
    atom = words.isidentifier() or words.isdigit()
    return f"{position} * {words if atom else f'({words})'}"


def _digit(frame: Frame, position: str, step: Step) -> str:
    """A digit of a position, times what it moves an address by."""
    text = f"{position} // {step.unit}" if step.unit > 1 else position
    text = f"{text} % {step.radix}" if step.radix else text
    words = _elements(frame, step)
    return f"{text} * {words}" if words != "1" else text


def _elements(frame: Frame, step: Step) -> str:
    factors = [frame.size(a) for a in step.extents]
    if step.number != 1 or not factors:
        factors.insert(0, str(step.number))
    return " * ".join(factors)


def part_offset(tensor: Tensor, part: str) -> str:
    """Where a part's own tensor begins: each has one, one after the other."""
    size = math.prod(int(d) for d in tensor.shape)
    return f"{part} * {size}" if size > 1 else part
