"""Tiles between memory and registers: inputs, outputs, and what the parts of a split share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mcfuser.chain import Tensor
from mcfuser.codegen.triton.frame import TAB, Frame, assign, call
from mcfuser.codegen.triton.hopper.warpgroup import arrived, put
from mcfuser.codegen.triton.tile import TileValue, aligned, both, cast, shape_text
from mcfuser.expr import Affine
from mcfuser.lowering.triton.address import Step, address
from mcfuser.lowering.triton.hopper.tensor_map import dimensions
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
    args = _access(frame, tensor, s.read.indices, space, lines)
    args += [_nothing(frame.dtype(s.buffer))] if len(args) > 1 else []
    stored, dtype, to = frame.schedule.buffer(s.buffer).dtype, frame.dtype(s.buffer), frame.dialect
    tail = f".to({to.word(dtype)})" if dtype != stored else ""
    name = frame.tile(s.buffer)
    return lines + call(frame.depth, f"{name} = {to.word('load')}", args, tail)


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
    space, lines = frame.layout.space(name), list[str]()
    where, *mask = _access(frame, tensor, _indices(frame, name), space, lines, part)
    tile = TileValue(frame.tile(name), space, frame.dtype(name))
    words = cast(frame.dialect, tile, tensor.dtype).text
    return lines + call(frame.depth, frame.dialect.word("store"), [where, words, *mask])


def _indices(frame: Frame, name: str) -> list[Affine]:
    return [d.index for d in frame.schedule.buffer(name).dims]


def _nothing(dtype: str) -> str:
    return "other=0.0" if dtype.startswith(("float", "bf")) else "other=0"


def _access(
    frame: Frame, tensor: Tensor, indices: Sequence[Affine], space: tuple[str, ...],
    lines: list[str], part: str | None = None,
) -> list[str]:  # fmt: skip
    """The pointers of a tile, of a part's own tensor if one is given, and the mask where it needs
    one; positions that are written in digits get `lines` of their own."""
    moves, start = address(frame.schedule.chain, tensor, indices)
    fixed = {step.extents: step.number for step in start}
    numbers: list[str] = []
    vectors: list[str] = []
    if part is not None:
        numbers.append(_of_part(tensor, part))
    for a in (*(a for a in moves if a not in space), *space):
        position = frame.position(a)
        if position.constant:
            for step in moves[a]:
                moved = step.number * step.digit(int(position.text))
                fixed[step.extents] = fixed.get(step.extents, 0) + moved
            continue
        if not all(step.whole for step in moves[a]):
            words = " + ".join(_digit(frame, position.text, step) for step in moves[a])
            name = frame.part(f"{tensor.name}_at_{a}", words, lines)
            along = aligned(frame.dialect, replace(position, text=name), space).text
        else:
            along = _times(frame, aligned(frame.dialect, position, space).text, moves[a])
        (vectors if position.space else numbers).append(along)
    offset = [_elements(frame, Step(n, extents)) for extents, n in fixed.items() if n]
    where = " + ".join([frame.pointer(tensor.name), *numbers, *offset, *vectors])
    return [where, *_mask(frame, space)]


def _mask(frame: Frame, space: tuple[str, ...]) -> list[str]:
    """The argument that says which elements of a tile are inside, where not all of them are."""
    mask = both(frame.dialect, frame.masks(space), space)
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
