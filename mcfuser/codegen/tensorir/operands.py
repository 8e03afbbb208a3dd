"""The register micro-tile of each product of a schedule, and the layouts of its operands."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from mcfuser.chain import WHOLE, Bounds, Product, contiguous_axes, sources, strides_of
from mcfuser.codegen.tensorir.source import Panels
from mcfuser.expr import Expr, Read, axes, reads, rewrite
from mcfuser.lowering.tensorir.dots import (
    QUAD,
    LeftBytes,
    dot_lengths,
    left_bytes,
    left_element,
    lies_in_bytes,
)
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.matrix import BLOCK, SIDE, operand_dtypes, oriented, span, takes
from mcfuser.lowering.tensorir.micro import lie_in_panels, micro_rows, micro_vectors
from mcfuser.lowering.tensorir.unpacked import unpacked
from mcfuser.lowering.tensorir.winograd import Picture, convolution, fits, pieces
from mcfuser.space.plan import Ints
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Illegal, plain_index, statements

OperandKind = Literal["packed", "panels", "plain"]
"""The layout of a loaded right operand: a constant that is packed at compile time, panels that are
filled in scratch, or the tensor as it is."""


@dataclass(frozen=True)
class Operands:
    """A product's micro-kernel: one row axis, one column axis, the other kept axes around it.

    `left` and `right` name the tiles that it reads, `width` is its panels' width in columns. Where
    the `matrix` unit computes it, `micro_rows` and `width` are those of a block of tile registers;
    `loaded` tells that the left operand is split where it is loaded. Where Winograd's algorithm
    computes it, the micro-kernel's rows are the `pieces` of the `picture` in a tile, each of `out`
    by `out` results. Where it multiplies whole numbers, as many at once as `dot`, its left operand
    is made of `numbers`, by a map where it is `made`. It is read where it lies if it is `ready`, or
    copied: as it is `loaded`, or made, or else just before it is multiplied.
    """

    roles: Product
    left: str
    right: str
    row: str | None
    column: str
    outer: tuple[str, ...]
    micro_rows: int
    width: int
    matrix: bool = False
    loaded: bool = False
    picture: Picture | None = None
    pieces: int = 0
    out: int = 0
    dot: int = 0
    numbers: LeftBytes | None = None
    made: bool = False
    ready: bool = False

    @property
    def copied(self) -> bool:
        """Whether the left operand is not multiplied as it is, but split, or copied."""
        return self.matrix or (bool(self.dot) and not self.ready)

    @property
    def lead(self) -> tuple[str, ...]:
        """Axes of the right operand besides its depth and its columns."""
        used = axes(self.roles.right)
        return tuple(a for a in used if a not in self.roles.depth and a != self.column)

    @property
    def left_lead(self) -> tuple[str, ...]:
        """Axes of the left operand besides its rows and its depth."""
        used = axes(self.roles.left)
        return tuple(a for a in used if a != self.row and a not in self.roles.depth)


@dataclass(frozen=True)
class Products:
    """All products by the tile that they write; `right` by the loaded tile; `unit` is what each
    axis' tiles are padded to a multiple of; `maps` has the right operands that are made in
    registers, by their tiles, and `lefts` the left ones that are copied as they are made."""

    operands: Mapping[str, Operands]
    right: Mapping[str, OperandKind]
    unit: Mapping[str, int]
    maps: Mapping[str, Compute] = field(default_factory=dict)
    lefts: frozenset[str] = frozenset()

    def user(self, tile: str) -> Operands:
        """The product whose right operand a tile is, or is made of it."""
        made = {r.tensor: weights for weights, s in self.maps.items() for r in reads(s.body)}
        return next(o for o in self.operands.values() if o.right == made.get(tile, tile))

    def read(self, tile: str) -> Read:
        """The read of a loaded tile for a right operand."""
        o = self.user(tile)
        if o.right == tile:
            return o.roles.right
        return next(r for r in reads(self.maps[o.right].body) if r.tensor == tile)

    def addressed(self, tile: str) -> bool:
        """Whether the matrix unit reads and writes a computed tile, by addresses."""
        return tile in self.operands and self.operands[tile].matrix

    def splits(self, tile: str) -> str:
        """The product for which the left operand of a product's tile is split or copied: products
        whose loaded left operands are the same, in the same rows, share it."""
        o = self.operands[tile]
        if not o.loaded:
            return tile

        def alike(x: Operands) -> tuple[object, ...]:
            return (
                x.loaded, x.left, x.row, x.roles.left, x.roles.depth, x.matrix, x.micro_rows, x.dot
            )  # fmt: skip

        return next(n for n, x in self.operands.items() if alike(x) == alike(o))

    def split_with(self, tile: str) -> tuple[str, ...]:
        """The products for which a tile is split, or copied, as it is loaded or made."""
        return tuple(
            n for n, o in self.operands.items()
            if o.loaded and o.copied and o.left == tile and self.splits(n) == n
        )  # fmt: skip

    def panels(self, tile: str) -> Panels:
        """How the constant behind a tile is packed."""
        user = self.user(tile)
        names = [i.plain for i in self.read(tile).indices]
        window = user.picture.window if user.picture is not None else ()
        depth = tuple(names.index(a) for a in user.roles.depth if a not in window and a in names)
        along = tuple(names.index(a) for a in window)
        column = names.index(user.column)
        return Panels(depth, column, user.width, along, user.out, max(user.dot, 1))


def products_of(schedule: Schedule, lowering: TensorirKnobs) -> Products:
    """Every product of a schedule; raises Illegal where no micro-tile fits the tiles."""
    operands = {s.buffer: _operands(schedule, lowering, s) for s in _computes(schedule)}
    chain, tensors = (
        schedule.chain,
        {o.right: schedule.buffer(o.right).tensor for o in operands.values()},
    )
    readers = Counter(r.tensor for o in chain.operators for r in sources(o))
    right = {
        o.right: _kind(schedule, o, readers[tensors[o.right]] == 1)
        for o in operands.values()
        if tensors[o.right] in chain.inputs
    }
    for o in operands.values():
        if o.picture is not None and right.get(o.right) != "packed":
            raise Illegal("the weights of a convolution by Winograd's algorithm are not packed")
    once = {o.right for o in operands.values() if _once(o) and right.get(o.right) == "panels"}
    operands = {tile: o for tile, o in operands.items() if o.right not in once}
    right = {tile: kind for tile, kind in right.items() if tile not in once}
    maps = _maps(schedule, operands)
    right |= {
        r.tensor: "packed"
        for weights, s in maps.items()
        for r in reads(s.body)
        if _packs(schedule, operands, weights, r, readers)
    }
    lefts = {o.left for o in operands.values() if o.made}
    for tile in lefts:
        users = [o for o in operands.values() if o.made and o.left == tile]
        if len(users) < readers[schedule.buffer(tile).tensor]:
            raise Illegal(f"'{tile}' is multiplied as whole numbers, and read otherwise")
    return Products(operands, right, _units(operands), maps, frozenset(lefts))


def _maps(schedule: Schedule, operands: Mapping[str, Operands]) -> dict[str, Compute]:
    """The right operands that a map makes of constants, in registers."""
    buffers = {b.name: b for b in schedule.buffers}
    few = unpacked(schedule.chain, buffers, schedule.body, _tiles(schedule))
    used = {o.right for o in operands.values() if not o.copied and o.picture is None}
    computes = (s for s, _ in statements(schedule.body) if isinstance(s, Compute))
    return {s.buffer: s for s in computes if s.buffer in used and few.get(s.buffer)}


def _packs(
    schedule: Schedule, operands: Mapping[str, Operands], weights: str, r: Read,
    readers: Counter[str],
) -> bool:  # fmt: skip
    """Whether a constant of which weights are made is packed, as weights themselves are."""
    o = next(o for o in operands.values() if o.right == weights)
    names = [i.plain for i in r.indices]
    tensor = schedule.buffer(r.tensor).tensor
    return o.column in names and readers[tensor] == 1 and _aligned(schedule, o, tensor, names)


def _once(o: Operands) -> bool:
    """Whether each element of the right operand is used once, as in a depthwise convolution: to
    put it in panels costs more than the product, which is a reduction like any other."""
    return o.row is None and not o.roles.rows


def _computes(schedule: Schedule) -> Iterator[Compute]:
    for s, _ in statements(schedule.body):
        if not isinstance(s, Compute) or s.operator.product is None or _dots(schedule, s):
            continue
        if _real(schedule, s) and (s.domain is None or _masks(schedule, s)):
            yield s


def _masks(schedule: Schedule, s: Compute) -> bool:
    """The domain can mask the left operand, which has all of its axes, as they are; the other one
    is loaded, for what is computed may be infinite outside the domain, of which zero times is no
    number."""
    assert s.domain is not None
    roles = s.operator.product
    assert roles is not None
    left, right = (roles.left, roles.right) if roles.columns else (roles.right, roles.left)
    names = {i.plain for i in left.indices}
    loaded = {r: schedule.buffer(t.tensor).tensor for r, t in _renamed(s)}[right]
    whole = None not in names and set(axes(s.domain)) <= names
    return whole and loaded in schedule.chain.inputs


def _real(schedule: Schedule, s: Compute) -> bool:
    """Nothing whole is multiplied or summed: micro-tiles are float32."""
    names = (s.operator.out, *(schedule.buffer(r.tensor).tensor for r in reads(s.body)))
    return all(schedule.chain.tensor(n).dtype not in WHOLE for n in names)


def _dots(schedule: Schedule, s: Compute) -> bool:
    """One row against rows of a loaded operand, as in a decode step: each element is used once, so
    that putting it in panels would cost more than the product. A reduction like any other."""
    roles = s.operator.product
    assert roles is not None
    loaded = {r.tensor: schedule.buffer(t.tensor).tensor for r, t in _renamed(s)}
    tensor = loaded[roles.right.tensor]
    if tensor not in schedule.chain.inputs or any(schedule.tile(a) > 1 for a in roles.rows):
        return False
    along = contiguous_axes(schedule.chain, replace(roles.right, tensor=tensor))
    return bool(roles.columns) and not {*along}.isdisjoint(roles.depth)


def _renamed(s: Compute) -> Iterator[tuple[Read, Read]]:
    """What the operator reads, and the tiles that the statement reads in its place."""
    return zip(s.operator.reads, reads(s.body), strict=True)


def _operands(schedule: Schedule, lowering: TensorirKnobs, s: Compute) -> Operands:
    roles = s.operator.product
    assert roles is not None
    roles = oriented(roles)
    order = s.operator.axes.index
    row = next((a for a in reversed(roles.rows) if schedule.tile(a) > 1), None)
    column = max(roles.columns, key=lambda a: (schedule.tile(a) > 1, order(a)))
    outer = tuple(a for a in s.operator.axes if a not in (row, column))
    kept = _kept(schedule)
    tiles = {r: tile.tensor for r, tile in _renamed(s)}
    left, right = tiles[roles.left], tiles[roles.right]
    if lowering.matrix and _taken(schedule, s, (left, right), kept):
        assert row is not None
        rows, width = (int(span(np.asarray(schedule.tile(a)))) for a in (row, column))
        loaded = s.domain is None and schedule.buffer(left).tensor in schedule.chain.inputs
        return Operands(roles, left, right, row, column, outer, rows, width, True, loaded)
    buffers = {b.name: b for b in schedule.buffers}
    seen = convolution(schedule.chain, buffers, s) if lowering.winograd else None
    out = lowering.winograd
    picture = seen[1] if seen is not None and _fits(schedule, seen[1], out, kept) else None
    vectors = _vectors(schedule.tile(column), lowering)
    width = vectors * lowering.lanes
    if column in kept and schedule.tile(column) % width:
        raise Illegal(f"tiles of axis '{column}' are kept side by side, but no vector divides them")
    if picture is not None:
        many = int(pieces(picture, out, _tiles(schedule)))
        return Operands(
            roles, left, right, row, column, tuple(a for a in outer if a not in picture.rows),
            _rows(many, vectors, lowering, False), width, picture=picture, pieces=many, out=out,
        )  # fmt: skip
    rows = 1 if row is None else _rows(schedule.tile(row), vectors, lowering, row in kept)
    dot = int(dot_lengths(schedule.chain, buffers, s, _tiles(schedule), lowering.dots))
    if not dot:
        return Operands(roles, left, right, row, column, outer, rows, width)
    made = left_element(schedule.chain, roles) != roles.left
    if made and _side_by_side(schedule, left):
        raise Illegal(f"tiles of '{left}' are held side by side, which are copied as they are made")
    return Operands(
        roles, left, right, row, column, outer, rows, width, dot=dot, made=made,
        loaded=made or schedule.buffer(left).tensor in schedule.chain.inputs,
        numbers=_numbers(schedule, s, roles, dot),
        ready=dot == QUAD and lies_in_bytes(schedule.chain, roles),
    )  # fmt: skip


def _side_by_side(schedule: Schedule, tile: str) -> bool:
    """Whether scratch holds several tiles that are made one after the other."""
    dims = [plain_index(d.index) for d in schedule.buffer(tile).dims if d.whole]
    return any(schedule.trips(a) > 1 for a in dims)


def _numbers(schedule: Schedule, s: Compute, roles: Product, dot: int) -> LeftBytes:
    """The left operand's numbers, read from the tiles that it is made of."""
    chain, element = schedule.chain, left_element(schedule.chain, roles)
    found = left_bytes(chain, element) if dot == QUAD else LeftBytes(element, 0)
    assert found is not None
    tiles = dict(_renamed(s))
    if element != roles.left:
        computes = (x for x, _ in statements(schedule.body) if isinstance(x, Compute))
        maker = next(x for x in computes if x.operator.out == roles.left.tensor)
        tiles = dict(_renamed(maker))

    def renamed(e: Expr) -> Expr:
        return rewrite(e, lambda node: tiles[node] if isinstance(node, Read) else node)

    zero = None if found.zero is None else renamed(found.zero)
    return LeftBytes(renamed(found.numbers), found.least, zero)


def _fits(schedule: Schedule, picture: Picture, out: int, kept: set[str]) -> bool:
    """Whether the tiles are of whole windows and lines, and none lies beside another."""
    found = fits(picture, schedule.chain, out, _tiles(schedule))
    return bool(found) and kept.isdisjoint(picture.rows)


def _taken(
    schedule: Schedule, s: Compute, operands: tuple[str, str], kept: Collection[str]
) -> bool:
    """Whether the matrix unit computes a product of these tiles."""
    dtypes = operand_dtypes(schedule.chain, {b.name: b for b in schedule.buffers}, *operands)

    def apart(a: str) -> Ints:
        return np.asarray(BLOCK * SIDE if a in kept else 1)

    return bool(takes(s, dtypes, _tiles(schedule), apart))


def _tiles(schedule: Schedule) -> Callable[[str], Ints]:
    """The tile of an axis as facts about many candidates ask for it; 1 for a name that is none."""
    return lambda a: np.asarray(schedule.tile(a) if a else 1)


def _kept(schedule: Schedule) -> set[str]:
    """Axes of which scratch holds several adjacent tiles, so that a micro-tile must not overlap
    two."""
    return {
        plain_index(d.index)
        for b in schedule.buffers
        for d in b.dims
        if d.whole and schedule.trips(plain_index(d.index)) > 1
    }


def _vectors(tile: int, lowering: TensorirKnobs) -> int:
    columns, lanes, most = (np.asarray(n) for n in (tile, lowering.lanes, lowering.vectors))
    return int(micro_vectors(columns, lanes, most))


def _rows(tile: int, vectors: int, lowering: TensorirKnobs, divide: bool) -> int:
    held = lowering.rows * lowering.vectors // vectors
    rows, accumulators, lanes = (np.asarray(n) for n in (tile, held, lowering.lanes))
    return int(micro_rows(rows, accumulators, lanes, divide))


def _units(operands: Mapping[str, Operands]) -> dict[str, int]:
    units: dict[str, int] = {}
    for o in operands.values():
        units[o.column] = math.lcm(units.get(o.column, 1), o.width)
        if o.row is not None and o.picture is None:
            units[o.row] = math.lcm(units.get(o.row, 1), o.micro_rows)
    return units


def _kind(schedule: Schedule, o: Operands, alone: bool) -> OperandKind:
    chain, right = schedule.chain, o.roles.right
    tensor = chain.tensor(schedule.buffer(o.right).tensor)
    packs = _aligned(schedule, o, tensor.name, [i.plain for i in right.indices])
    if tensor.constant and packs and alone:
        return "packed"
    strides = strides_of(chain, tensor.name)
    along = [s for i, s in zip(right.indices, strides, strict=True) if o.column in i.axes]
    contiguous = along == [1] and any(i.plain == o.column for i in right.indices)
    tile, width = _tiles(schedule), np.asarray(o.width)
    lies = contiguous and lie_in_panels(chain, o.roles, tensor.name, o.column, tile, width)
    return "plain" if lies and not o.dot else "panels"


def _aligned(schedule: Schedule, o: Operands, name: str, names: Sequence[str | None]) -> bool:
    """Whether a tensor that is read along these axes can be packed: it has extents that are
    numbers, and tiles begin where panels do."""
    chain, tensor = schedule.chain, schedule.chain.tensor(name)
    known = not any(isinstance(chain.extent(d), Bounds) for d in tensor.shape if isinstance(d, str))
    return known and None not in names and _whole_panels(schedule, o)


def _whole_panels(schedule: Schedule, o: Operands) -> bool:
    return schedule.tile(o.column) % o.width == 0 or schedule.trips(o.column) == 1


def masked_axes(left: Read) -> tuple[str, ...]:
    """The axes of a left operand that a domain masks, each an index of its own."""
    return tuple(i.plain for i in left.indices if i.plain is not None)
