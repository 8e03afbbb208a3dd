"""Tiles between memory and registers: inputs, outputs, and what the parts of a split share."""

from __future__ import annotations

import math

from mcfuser.chain import Tensor
from mcfuser.codegen.triton.frame import TAB, Frame, assign, call
from mcfuser.codegen.triton.hopper.warpgroup import arrived, put
from mcfuser.codegen.triton.pointers import access, as_matrix, as_row, mask_of, part_offset
from mcfuser.codegen.triton.tile import (
    TileValue,
    aligned,
    both,
    cast,
    shape_text,
)
from mcfuser.expr import Affine
from mcfuser.lowering.triton.hopper.tensor_map import dimensions
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
        args = as_matrix(frame, s, frame.matrices[s.buffer], lines)
    elif row is not None:
        args = as_row(frame, tensor, s.read.indices, space, row, lines)
    else:
        args = access(frame, tensor, s.read.indices, space, lines)
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
    where, *_ = access(frame, tensor, _indices(frame, name), frame.layout.space(name), lines)
    return lines + assign(frame.depth, at, where)


def fetch(frame: Frame, name: str, part: str, variable: str) -> list[str]:
    """The lines that load the partial result of one part into a variable. The load bypasses the
    first level of cache: in a kernel that also runs the parts, other blocks have only just stored
    it."""
    space, tensor = frame.layout.space(name), frame.layout.workspace(name)
    args = [
        f"{_place(frame, name)} + {part_offset(tensor, part)}",
        *mask_of(frame, space, frame.masks(space)),
    ]
    args += [_nothing(frame.dtype(name))] if len(args) > 1 else []
    return call(
        frame.depth, f"{variable} = {frame.dialect.word('load')}", [*args, 'cache_modifier=".cg"']
    )


def _place(frame: Frame, name: str) -> str:
    return frame.named("part", f"{frame.tile(name)}_at")


def _put(frame: Frame, name: str, tensor: Tensor, part: str | None = None) -> list[str]:
    space, lines, indices = frame.layout.space(name), list[str](), _indices(frame, name)
    tile = TileValue(frame.tile(name), space, frame.dtype(name))
    words = cast(frame.dialect, tile, tensor.dtype).text
    row = None if part is not None else frame.row(tensor, indices, space)
    if row is not None and not row.pairs:
        where, *mask = as_row(frame, tensor, indices, space, row, lines)
        widths = [frame.layout.width(a) for a in space]
        shape = shape_text([*widths[:-2], math.prod(widths[-2:])])
        words = f"{frame.dialect.moving('reshape')}({words}, {shape})"
    else:
        where, *mask = access(frame, tensor, indices, space, lines, part)
    return lines + call(frame.depth, frame.dialect.word("store"), [where, words, *mask])


def _indices(frame: Frame, name: str) -> list[Affine]:
    return [d.index for d in frame.schedule.buffer(name).dims]


def _nothing(dtype: str, number: float = 0.0) -> str:
    whole = not dtype.startswith(("float", "bf"))
    return f"other={int(number) if whole else number}"
