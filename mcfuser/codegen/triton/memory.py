"""Tiles between memory and registers: inputs, outputs, and what the parts of a split share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcfuser.chain import Tensor, last_along
from mcfuser.codegen.triton.frame import TAB, Frame, assign, call
from mcfuser.codegen.triton.hopper.warpgroup import arrived, put
from mcfuser.codegen.triton.tile import (
    ATOM,
    COMPARE,
    SUM,
    TileValue,
    aligned,
    both,
    cast,
    literal,
    shape_text,
)
from mcfuser.expr import Affine
from mcfuser.lowering.triton.address import Moves, Step, address, position_along
from mcfuser.lowering.triton.hopper.tensor_map import dimensions
from mcfuser.lowering.triton.matrix import MatrixAxes, divisor, padded_axes
from mcfuser.lowering.triton.rows import TileRow
from mcfuser.space.statement import Load, Store, StorePartial


def load(frame: Frame, s: Load) -> list[str]:
    """The lines that load the tile of an input, with zeros outside the tensor."""
    if frame.groups is not None and s.buffer in frame.groups.rings:
        ring = frame.groups.rings[s.buffer]
        return [] if ring.looped else arrived(frame, ring)
    if s.buffer in frame.layout.maps:
        return _through_map(frame, s)
    space = frame.layout.space(s.buffer)
    tensor = frame.schedule.chain.tensor(s.read.tensor)
    lines: list[str] = []
    row = frame.row(tensor, s.read.indices, space)
    if s.buffer in frame.matrices:
        args = _as_matrix(frame, s, frame.matrices[s.buffer], lines)
    elif row is not None:
        args = _as_row(frame, tensor, s.read.indices, space, row, lines)
    else:
        args = _access(frame, tensor, s.read.indices, space, lines)
    number = tensor.padding[0].value if tensor.padding else 0.0
    args += [_nothing(frame.dtype(s.buffer), number)] if len(args) > 1 else []
    stored, dtype, to = frame.schedule.buffer(s.buffer).dtype, frame.dtype(s.buffer), frame.dialect
    tail = f".to({to.word(dtype)})" if dtype != stored else ""
    name = frame.tile(s.buffer)
    if row is not None:
        return [*lines, *_parted(frame, name, row, space, args, tail)]
    lines += call(frame.depth, f"{name} = {to.word('load')}", args, tail)
    mask = both(to, frame.masks(space), space)
    if not number or mask is None:
        return lines
    words = f"{to.word('where')}({aligned(to, mask, space).text}, {name}, 0.0)"
    return [*lines, f"{TAB * frame.depth}{name} = {words}"]


def _as_matrix(frame: Frame, s: Load, groups: MatrixAxes, lines: list[str]) -> list[str]:
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
    pointers = _added([frame.pointer(tensor.name), *terms])
    mask = both(frame.dialect, masks, dimensions)
    if mask is None:
        return [pointers]
    return [pointers, f"mask={aligned(frame.dialect, mask, dimensions).text}"]


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


def _as_row(
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
    lanes = f"{frame.dialect.word('arange')}(0, {frame.layout.width(row.axes[0]) * row.beside})"
    begin = frame.start(row.axes[0])
    if begin != "0":
        at = str(int(begin) * row.beside) if begin.isdigit() else f"{begin} * {row.beside}"
        lanes = f"({at} + {lanes}{frame.wide})"
    else:
        lanes = f"{lanes}{frame.wide}"
    terms.append(
        aligned(frame.dialect, TileValue(lanes, dimensions[-1:], "int32"), dimensions).text
    )
    mask = both(frame.dialect, frame.masks(others), dimensions)
    pointers = _added([frame.pointer(tensor.name), *first, *terms])
    if mask is None:
        return [pointers]
    return [pointers, f"mask={aligned(frame.dialect, mask, dimensions).text}"]


def _parted(
    frame: Frame, name: str, row: TileRow, space: tuple[str, ...], args: list[str], tail: str
) -> list[str]:
    """The lines that load a row, and give it the dimensions of the tile."""
    moving, widths = frame.dialect.moving, [frame.layout.width(a) for a in space]
    row_name = frame.named(f"row of {name}", f"{name}_row")
    lines = call(frame.depth, f"{row_name} = {frame.dialect.word('load')}", args, tail)
    shape = shape_text([*widths, row.beside] if row.pairs else widths)
    words = f"{moving('reshape')}({row_name}, {shape})"
    if row.pairs:
        words = f"{moving('split')}({words})[{row.picked}]"
    return [*lines, *assign(frame.depth, name, words)]


def _through_map(frame: Frame, s: Load) -> list[str]:
    """The lines that load a tile through a tensor map, and bring its dimensions into the order of
    the buffer."""
    layout, (at, extending) = frame.layout, corner(frame, s)
    words = f"{frame.map(s.buffer)}.load([{', '.join(at)}])"
    if len(extending) < len(at):
        shape = shape_text([layout.width(a) for a in extending])
        words = f"{frame.dialect.moving('reshape')}({words}, {shape})"
    space = layout.space(s.buffer)
    tile = aligned(
        frame.dialect,
        TileValue(words, tuple(extending), frame.schedule.buffer(s.buffer).dtype),
        space,
    )
    words = cast(frame.dialect, tile, frame.dtype(s.buffer)).text
    return [f"{TAB * frame.depth}{frame.tile(s.buffer)} = {words}"]


def corner(frame: Frame, s: Load) -> tuple[list[str], list[str]]:
    """The first element of a tile of a tensor map, an index for each dimension, and the axes along
    which the tile extends, in the order of its dimensions."""
    at, extending = list[str](), list[str]()
    for _, _, index in dimensions(frame.schedule.chain, s.read):
        a = index.plain
        if a is None:
            at.append(str(index.offset))
        elif frame.layout.scalar(a):
            at.append(frame.position(a).text)
        else:
            at.append(frame.start(a))
            extending.append(a)
    return at, extending


def store(frame: Frame, s: Store) -> list[str]:
    """The lines that store the elements of an output's tile that are inside the tensor."""
    if frame.groups is not None and s.buffer in frame.groups.stored:
        value = TileValue(frame.tile(s.buffer), frame.layout.space(s.buffer), frame.dtype(s.buffer))
        at, _ = corner(frame, Load(s.buffer, frame.groups.written(s)))
        tensor = frame.schedule.chain.tensor(s.tensor)
        return put(frame, s.buffer, cast(frame.dialect, value, tensor.dtype).text, at)
    return _put(frame, s.buffer, frame.schedule.chain.tensor(s.tensor))


def store_partial(frame: Frame, s: StorePartial) -> list[str]:
    """A part's tile of a reduction, into the workspace."""
    return _put(frame, s.buffer, frame.layout.workspace(s.buffer), "part")


def part_pointers(frame: Frame, name: str) -> list[str]:
    """The line that names the pointers to the parts' tiles of a reduction; none if the name is
    defined already."""
    at = _place(frame, name)
    if at in frame.placed:
        return []
    frame.placed.add(at)
    lines, tensor = list[str](), frame.layout.workspace(name)
    where, *_ = _access(frame, tensor, _indices(frame, name), frame.layout.space(name), lines)
    return lines + assign(frame.depth, at, where)


def fetch(frame: Frame, name: str, part: str, variable: str) -> list[str]:
    """The lines that load the partial result of one part into a variable. The load bypasses the
    first level of cache: in a kernel that also runs the parts, other blocks have only just stored
    it."""
    space, tensor = frame.layout.space(name), frame.layout.workspace(name)
    args = [f"{_place(frame, name)} + {_of_part(tensor, part)}", *_mask(frame, space)]
    args += [_nothing(frame.dtype(name))] if len(args) > 1 else []
    return call(
        frame.depth, f"{variable} = {frame.dialect.word('load')}", [*args, 'cache_modifier=".cg"']
    )


def _place(frame: Frame, name: str) -> str:
    return frame.named("part", f"{frame.tile(name)}_at")


def _of_part(tensor: Tensor, part: str) -> str:
    """Where a part's own tensor begins: each has one, one after the other."""
    size = math.prod(int(d) for d in tensor.shape)
    return f"{part} * {size}" if size > 1 else part


def _put(frame: Frame, name: str, tensor: Tensor, part: str | None = None) -> list[str]:
    space, lines, indices = frame.layout.space(name), list[str](), _indices(frame, name)
    tile = TileValue(frame.tile(name), space, frame.dtype(name))
    words = cast(frame.dialect, tile, tensor.dtype).text
    row = None if part is not None else frame.row(tensor, indices, space)
    if row is not None and not row.pairs:
        where, *mask = _as_row(frame, tensor, indices, space, row, lines)
        widths = [frame.layout.width(a) for a in space]
        shape = shape_text([*widths[:-2], math.prod(widths[-2:])])
        words = f"{frame.dialect.moving('reshape')}({words}, {shape})"
    else:
        where, *mask = _access(frame, tensor, indices, space, lines, part)
    return lines + call(frame.depth, frame.dialect.word("store"), [where, words, *mask])


def _indices(frame: Frame, name: str) -> list[Affine]:
    return [d.index for d in frame.schedule.buffer(name).dims]


def _nothing(dtype: str, number: float = 0.0) -> str:
    whole = not dtype.startswith(("float", "bf"))
    return f"other={int(number) if whole else number}"


def _access(
    frame: Frame, tensor: Tensor, indices: Sequence[Affine], space: tuple[str, ...],
    lines: list[str], part: str | None = None,
) -> list[str]:  # fmt: skip
    """The pointers of a tile, of a part's own tensor if one is given, and the mask where it needs
    one; positions that are written in digits get `lines` of their own."""
    first = [_of_part(tensor, part)] if part is not None else []
    where = _sum(frame, address(frame.schedule.chain, tensor, indices), space, tensor.name, lines)
    pointer = _added([frame.pointer(tensor.name), *first, *where.numbers, *where.vectors])
    return [pointer, *_mask(frame, space, _inside(frame, tensor, indices, space, lines))]


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


def _mask(frame: Frame, space: tuple[str, ...], inside: Sequence[TileValue] = ()) -> list[str]:
    """The argument that says which elements of a tile are inside the axes, and on what other
    conditions, where not all of them are."""
    mask = both(frame.dialect, [*frame.masks(space), *inside], space)
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
