"""TensorIR for a CPU: a schedule's statements as TVMScript text.

One PrimFunc: the grid is one parallel loop, a block's tiles are scratch in its core's cache, and
every pass over a tile is vectorised along its last axis. Loops run over the positions inside the
extents, so no pass needs a mask; products work on whole micro-tiles and their padding is never
read. Loads copy nothing unless a product needs its right operand in panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from mcfuser.chain import Chain, Product, product
from mcfuser.codegen.scalar import Scalar, literal
from mcfuser.expr import Affine, Call, Const, Expr, Read, axes, axis, children, reads
from mcfuser.space.place import plain_index
from mcfuser.space.schedule import (
    LOWEST,
    Compute,
    Dim,
    Illegal,
    Init,
    Keep,
    Load,
    Loop,
    Repair,
    Schedule,
    Statement,
    Store,
    statements,
)


@dataclass(frozen=True, slots=True)
class Lowering:
    """The register micro-tile of products: rows, and vectors of columns; lanes of a vector."""

    rows: int = 8
    vectors: int = 2
    lanes: int = 16


@dataclass(frozen=True, slots=True)
class Panels:
    """A constant matrix packed when compiling: [columns/width, depth, width], zero-padded.

    `depth` and `columns` are the dimensions of the tensor as the chain indexes it.
    """

    depth: int
    columns: int
    width: int


@dataclass(frozen=True)
class Source:
    """A PrimFunc's text. Parameters are the chain's inputs in order, then its outputs."""

    text: str
    name: str
    packed: tuple[tuple[str, Panels], ...]


@dataclass(frozen=True)
class _Operands:
    """How a product's micro-kernel walks: one row axis, one column axis, the rest around it."""

    roles: Product
    row: str | None
    column: str
    outer: tuple[str, ...]
    micro_rows: int
    width: int


def generate(
    schedule: Schedule,
    name: str,
    lowering: Lowering,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Source:
    """The schedule as the text of a PrimFunc.

    `shapes` are the extents that the parameters have in the surrounding graph; without them a
    parameter is flat. Raises Illegal where the schedule asks for what this back end has not.
    """
    return _Emit(schedule, name, lowering, shapes or {}).source()


def flat_size(chain: Chain, name: str) -> int:
    """Elements from the start of a tensor's array to its last one."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    strides = strides_of(chain, name)
    return tensor.offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def strides_of(chain: Chain, name: str) -> tuple[int, ...]:
    tensor, shape = chain.tensor(name), chain.shape(name)
    if tensor.strides is not None:
        return tensor.strides
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class _Emit:
    def __init__(
        self,
        schedule: Schedule,
        name: str,
        lowering: Lowering,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.schedule, self.chain = schedule, schedule.chain
        self.name, self.lowering, self.shapes = name, lowering, shapes
        self.lines: list[str] = []
        self.fresh = count()
        self.depth = 0
        self.loops: list[str] = []
        self.direct: dict[str, str] = {}  # a buffer that is written straight to an output
        self.zeroed: set[str] = set()  # sums whose Init the micro-kernel does itself
        self.kept = {  # axes whose tiles lie side by side in scratch
            plain_index(d.index)
            for b in schedule.buffers
            for d in b.dims
            if d.whole and schedule.trips(plain_index(d.index)) > 1
        }
        self.operands = {
            s.buffer: self._operands(s)
            for s, _ in statements(schedule.body)
            if isinstance(s, Compute) and product(s.operator) is not None
        }
        self.unit = self._units()
        self.right = self._right_operands()

    # --- text

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.put(head)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def each(self, name: str, count: str) -> Iterator[str]:
        """A serial loop, or nothing where it would turn once."""
        if count == "1":
            yield "0"
            return
        with self.block(f"for {name} in range({count}):"):
            yield name

    # --- positions

    def start(self, a: str) -> str:
        """Where the tile at hand begins along an axis."""
        if a not in self.loops:
            return "0"
        tile = self.schedule.tile(a)
        return f"{a}_t * {tile}" if tile > 1 else f"{a}_t"

    def count(self, a: str) -> str:
        """Positions of the tile at hand that lie inside the extent."""
        tile, size = self.schedule.tile(a), self.chain.size(a)
        if a not in self.loops:
            return str(min(size, tile * self.schedule.trips(a)))
        if size % tile == 0:
            return str(tile)
        return f"T.min({tile}, {size} - {self.start(a)})"

    def position(self, index: Affine, at: Mapping[str, str]) -> str:
        """A global index, given the position of each axis within its tile."""
        parts = [str(index.offset)] if index.offset else []
        for a, c in index.terms:
            here = _sum(self.start(a), at.get(a, "0"))
            if here != "0":
                parts.append(_times(here, c))
        return " + ".join(parts) or "0"

    def address(self, name: str, indices: Sequence[Affine], at: Mapping[str, str]) -> str:
        """The flat position of an element of a parameter."""
        offset = self.chain.tensor(name).offset
        parts = [str(offset)] if offset else []
        for index, stride in zip(indices, strides_of(self.chain, name), strict=True):
            here = self.position(index, at)
            if here != "0":
                parts.append(_times(here, stride))
        return f"{name}_flat[{' + '.join(parts) or '0'}]"

    def element(self, r: Read, at: Mapping[str, str]) -> str:
        """A read of a loaded or computed tile."""
        buffer = self.schedule.buffer(r.tensor)
        if buffer.tensor in self.chain.inputs:
            return self.address(buffer.tensor, r.indices, at)
        if r.tensor in self.direct:
            return self.address(self.direct[r.tensor], r.indices, at)
        where = [self._inside(d, i, at) for d, i in zip(buffer.dims, r.indices, strict=True)]
        return f"{r.tensor}_tile[{', '.join(where) or '0'}]"

    def _inside(self, dim: Dim, index: Affine, at: Mapping[str, str]) -> str:
        if index.plain is None or index.plain != dim.index.plain:
            raise Illegal("a computed tile is read at an index that is not an axis")
        a = index.plain
        local = at.get(a, "0")
        return _sum(self.start(a), local) if dim.whole and a in self.loops else local

    def extent(self, dim: Dim) -> int:
        """Scratch positions of a computed tile's dimension, whole micro-tiles."""
        a = plain_index(dim.index)
        unit = self.unit.get(a, 1)
        trips = self.schedule.trips(a) if dim.whole else 1
        return (trips - 1) * self.schedule.tile(a) + -(-self.schedule.tile(a) // unit) * unit

    # --- products

    def _operands(self, s: Compute) -> _Operands:
        roles = product(s.operator)
        assert roles is not None
        if not roles.columns:
            roles = Product(
                roles.right, roles.left, roles.batch, roles.columns, roles.rows, roles.depth
            )
        large = [a for a in roles.rows if self.schedule.tile(a) > 1]
        row = large[-1] if large else None
        order = s.operator.axes.index
        column = max(roles.columns, key=lambda a: (self.schedule.tile(a) > 1, order(a)))
        outer = tuple(a for a in s.operator.axes if a not in (row, column))
        lanes = self.lowering.lanes
        need = -(-self.schedule.tile(column) // lanes)
        vectors = min(self.lowering.vectors, need)
        while need % vectors:
            vectors -= 1
        self._divides(column, vectors * lanes)
        if row is None:
            return _Operands(roles, row, column, outer, 1, vectors * lanes)
        budget = self.lowering.rows * self.lowering.vectors
        rows = self.lowering.rows if vectors == self.lowering.vectors else budget // vectors
        rows = min(rows, 16, self.schedule.tile(row))
        while row in self.kept and self.schedule.tile(row) % rows:
            rows -= 1
        return _Operands(roles, row, column, outer, rows, vectors * lanes)

    def _divides(self, a: str, width: int) -> None:
        if a in self.kept and self.schedule.tile(a) % width:
            raise Illegal(f"tiles of axis '{a}' are kept side by side, but no vector divides them")

    def _units(self) -> dict[str, int]:
        units: dict[str, int] = {}
        for found in self.operands.values():
            units[found.column] = math.lcm(units.get(found.column, 1), found.width)
            if found.row is not None:
                units[found.row] = math.lcm(units.get(found.row, 1), found.micro_rows)
        return units

    def _right_operands(self) -> dict[str, str]:
        """Loaded right operands by buffer: `packed` constants, `panels` in scratch, or `plain`."""
        found: dict[str, str] = {}
        readers: dict[str, int] = {}
        for s, _ in statements(self.schedule.body):
            if isinstance(s, (Compute, Repair)):
                body = s.body if isinstance(s, Compute) else s.h
                for r in reads(body):
                    readers[r.tensor] = readers.get(r.tensor, 0) + 1
        for s, _ in statements(self.schedule.body):
            if not isinstance(s, Compute) or s.buffer not in self.operands:
                continue
            ops = self.operands[s.buffer]
            name = self._buffer_of(s, ops.roles.right)
            buffer = self.schedule.buffer(name)
            if buffer.tensor not in self.chain.inputs:
                continue
            found[name] = self._right_kind(ops, buffer.tensor, readers[name])
        return found

    def _right_kind(self, ops: _Operands, tensor: str, readers: int) -> str:
        right = ops.roles.right
        strides = strides_of(self.chain, tensor)
        plain = all(i.plain is not None for i in right.indices)
        aligned = self.schedule.tile(ops.column) % ops.width == 0
        aligned = aligned or self.schedule.trips(ops.column) == 1
        matrix = len(right.indices) == 2 and len(ops.roles.depth) == 1 and plain
        if self.chain.tensor(tensor).constant and matrix and aligned and readers == 1:
            return "packed"
        unit = [s for i, s in zip(right.indices, strides, strict=True) if i.plain == ops.column]
        whole = self.chain.size(ops.column) % ops.width == 0 and aligned
        return "plain" if unit == [1] and whole else "panels"

    def _buffer_of(self, s: Compute, r: Read) -> str:
        """The tile that stands for a read of the operator's body."""
        for mine, original in zip(reads(s.body), reads(s.operator.body), strict=True):
            if original == r:
                return mine.tensor
        raise Illegal(f"operator '{s.operator.out}' lost its operand '{r.tensor}'")

    # --- the function

    def source(self) -> Source:
        self._forward_stores(self.schedule.body)
        packed = tuple(
            (self.schedule.buffer(b).tensor, self._panels_of(b))
            for b, kind in self.right.items()
            if kind == "packed"
        )
        params = [self._parameter(n, dict(packed)) for n in self.chain.inputs]
        params += [self._parameter(n, {}) for n in self.chain.outputs]
        tiles = " ".join(f"{a}={n}" for a, n in self.schedule.tiles)
        self.put(f"# {self.chain.name}: {self.schedule.expression} {tiles}")
        self.put("@T.prim_func(s_tir=True, private=True)")
        with self.block(f"def {self.name}({', '.join(params)}):"):
            self.put(
                'T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})'
            )
            for n in (*self.chain.inputs, *self.chain.outputs):
                dtype, size = self.chain.tensor(n).dtype, self._flat(n, dict(packed))
                self.put(f'{n}_flat = T.decl_buffer(({size},), "{dtype}", data={n}_arg.data)')
            self._grid()
        return Source("\n".join(self.lines) + "\n", self.name, packed)

    def _flat(self, name: str, packed: Mapping[str, Panels]) -> int:
        if name in packed:
            shape, panels = self.chain.shape(name), packed[name]
            count = -(-shape[panels.columns] // panels.width)
            return count * shape[panels.depth] * panels.width
        if name in self.shapes:
            return math.prod(self.shapes[name])
        return flat_size(self.chain, name)

    def _parameter(self, name: str, packed: Mapping[str, Panels]) -> str:
        shape: tuple[int, ...] = (self._flat(name, packed),)
        if name in self.shapes and name not in packed:
            shape = self.shapes[name]
        inside = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
        return f'{name}_arg: T.Buffer(({inside}), "{self.chain.tensor(name).dtype}")'

    def _panels_of(self, buffer: str) -> Panels:
        ops = next(
            o
            for s, _ in statements(self.schedule.body)
            if isinstance(s, Compute) and (o := self.operands.get(s.buffer)) is not None
            and self._buffer_of(s, o.roles.right) == buffer
        )  # fmt: skip
        names = [i.plain for i in ops.roles.right.indices]
        return Panels(names.index(ops.roles.depth[0]), names.index(ops.column), ops.width)

    def _forward_stores(self, body: Sequence[Statement]) -> None:
        """A map whose next statement stores it is written straight to the output."""
        for s, after in zip(body, (*body[1:], None), strict=True):
            if isinstance(s, Loop):
                self._forward_stores(s.body)
            elif (
                isinstance(s, Compute)
                and isinstance(after, Store)
                and s.operator.reduce == "none"
                and after.buffer == s.buffer
            ):
                self.direct[s.buffer] = after.tensor

    def _grid(self) -> None:
        body, grid = self.schedule.body, []
        while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "grid":
            grid.append(body[0].axis)
            body = body[0].body
        self.loops += grid
        total = math.prod(self.schedule.trips(a) for a in grid)
        head = f"for t in T.parallel({total}):" if total > 1 else "for t in range(1):"
        with self.block(head):
            rest = total
            for a in grid:
                rest //= self.schedule.trips(a)
                value = f"t // {rest}" if rest > 1 else "t"
                if rest * self.schedule.trips(a) != total:
                    value += f" % {self.schedule.trips(a)}"
                self.put(f"{a}_t: T.let[T.int32] = {value}")
            self._scratch()
            self._body(body)

    def _scratch(self) -> None:
        lanes = self.lowering.lanes
        for b in self.schedule.buffers:
            if b.tensor in self.chain.inputs:
                if self.right.get(b.name) == "panels":
                    self._panel_scratch(b.name)
            elif b.name not in self.direct:
                shape = [self.extent(d) for d in b.dims] or [1]
                inside = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
                self.put(f'{b.name}_tile = T.alloc_buffer(({inside}), "float32")')
        for s, _ in statements(self.schedule.body):
            if isinstance(s, Compute) and s.buffer in self.operands and s.domain is not None:
                used = [i.plain or "" for i in self.operands[s.buffer].roles.left.indices]
                shape = [self.extent(Dim(axis(a))) for a in used]
                self.put(
                    f'{s.buffer}_masked = T.alloc_buffer(({", ".join(map(str, shape))},), "float32")'
                )
        most = max((o.width // lanes for o in self.operands.values()), default=0)
        rows = max((o.micro_rows for o in self.operands.values()), default=0)
        for v in range(most):
            self.put(f'acc{v} = T.alloc_buffer(({rows}, {lanes}), "float32")')
        self.put(f'lane = T.alloc_buffer(({lanes},), "float32")')
        self.put('once = T.alloc_buffer((8,), "float32")')

    def _panel_scratch(self, buffer: str) -> None:
        ops = self._user(buffer)
        depth = math.prod(self.schedule.tile(a) for a in ops.roles.depth)
        panels = -(-self.schedule.tile(ops.column) // ops.width)
        others = self._others(ops)
        lead = "".join(f"{self.schedule.tile(a)}, " for a in others)
        self.put(
            f'{buffer}_panels = T.alloc_buffer(({lead}{panels}, {depth}, {ops.width}), "float32")'
        )

    def _user(self, buffer: str) -> _Operands:
        for s, _ in statements(self.schedule.body):
            if isinstance(s, Compute) and s.buffer in self.operands:
                ops = self.operands[s.buffer]
                if self._buffer_of(s, ops.roles.right) == buffer:
                    return ops
        raise Illegal(f"tile '{buffer}' is the right operand of no product")

    def _others(self, ops: _Operands) -> tuple[str, ...]:
        """Axes of the right operand besides its depth and its columns, with more than one place."""
        used = axes(ops.roles.right)
        return tuple(
            a for a in used
            if a not in ops.roles.depth and a != ops.column and self.schedule.tile(a) > 1
        )  # fmt: skip

    # --- statements

    def _body(self, body: Sequence[Statement]) -> None:
        for s, after in zip(body, (*body[1:], None), strict=True):
            if isinstance(s, Loop):
                with self.block(f"for {s.axis}_t in range({self.schedule.trips(s.axis)}):"):
                    self.loops.append(s.axis)
                    self._body(s.body)
                    self.loops.pop()
            elif isinstance(s, Load):
                if self.right.get(s.buffer) == "panels":
                    self._pack(s)
            elif isinstance(s, Init):
                if (
                    isinstance(after, Compute)
                    and after.buffer in self.operands
                    and (after.buffer == s.buffer)
                ):
                    self.zeroed.add(s.buffer)
                else:
                    self._fill(s)
            elif isinstance(s, Compute):
                self._compute(s)
            elif isinstance(s, Keep):
                here = [axis(plain_index(d.index)) for d in self.schedule.buffer(s.buffer).dims]
                self._pass(self._axes(s.old), Read(s.buffer, tuple(here)), s.old)
            elif isinstance(s, Repair):
                self._pass(self._axes(s.buffer), s.h, s.buffer)
            elif s.buffer not in self.direct:
                self._store(s)

    def _axes(self, buffer: str) -> tuple[str, ...]:
        return tuple(plain_index(d.index) for d in self.schedule.buffer(buffer).dims)

    def _fill(self, s: Init) -> None:
        shape = [self.extent(d) for d in self.schedule.buffer(s.buffer).dims]
        with self._nest([(f"i{i}", str(n)) for i, n in enumerate(shape[:-1])]) as at:
            if not shape:
                self.put(f"{s.buffer}_tile[0] = {literal(s.value)}")
                return
            where = "".join(f"{a}, " for a in at)
            n, lanes = shape[-1], self.lowering.lanes
            if n % lanes == 0:
                with (
                    self.block(f"for j0 in range({n // lanes}):"),
                    self.block(f"for j in T.vectorized({lanes}):"),
                ):
                    self.put(f"{s.buffer}_tile[{where}j0 * {lanes} + j] = {literal(s.value)}")
            else:
                with self.block(f"for j in range({n}):"):
                    self.put(f"{s.buffer}_tile[{where}j] = {literal(s.value)}")

    @contextmanager
    def _nest(self, loops: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
        """Serial loops, their variables; loops of one turn are left out and stand at 0."""
        deep, names = 0, []
        for name, count in loops:
            if count == "1":
                names.append("0")
                continue
            self.put(f"for {name} in range({count}):")
            self.depth += 1
            deep += 1
            names.append(name)
        yield names
        self.depth -= deep

    def _store(self, s: Store) -> None:
        names = self._axes(s.buffer)
        self._pass(names, Read(s.buffer, tuple(axis(a) for a in names)), None, s.tensor)

    def _compute(self, s: Compute) -> None:
        if s.buffer in self.operands:
            self._product(s)
        elif s.operator.reduce == "none":
            body = s.body
            if s.domain is not None:
                body = Call("select", (s.domain, body, Const(0.0)))
            self._pass(s.operator.axes, body, s.buffer)
        else:
            self._reduction(s)

    def _pass(
        self, names: Sequence[str], body: Expr, target: str | None, output: str | None = None
    ) -> None:
        """target[names] = body over the tile, vectorised along the last axis."""
        counts = [(f"{a}_i", self.count(a)) for a in names]
        if target is not None and target in self.direct:
            target, output = None, self.direct[target]
        with self._nest(counts[:-1]) as outer:
            at = dict(zip(names, outer, strict=False))
            known = self._invariant(body, names[-1], at) if names else {}

            def write(last: Mapping[str, str], slot: str) -> None:
                here = {**at, **last}
                value = self._scalar(here, known).text(body)
                indices = tuple(axis(a) for a in names)
                if output is not None:
                    dtype = self.chain.tensor(output).dtype
                    value = value if dtype == "float32" else f'T.Cast("{dtype}", {value})'
                    self.put(f"{self.address(output, indices, here)} = {value}")
                else:
                    assert target is not None
                    self.put(f"{self.element(Read(target, indices), here)} = {value}")

            if not names:
                write({}, "0")
            else:
                self._lanes(names[-1], counts[-1][1], write)

    def _lanes(self, a: str, count: str, write: Callable[[Mapping[str, str], str], None]) -> None:
        """Calls `write` with the axis' position and the lane, under vector loops over an axis and
        a scalar loop for what is left."""
        lanes = self.lowering.lanes
        if count == "1":
            write({a: "0"}, "0")
            return
        if count.isdigit():
            vectors, left = str(int(count) // lanes), str(int(count) % lanes)
        else:
            vectors, left = f"{count} // {lanes}", f"{count} % {lanes}"
        if vectors != "0":
            with (
                self.block(f"for {a}_v in range({vectors}):"),
                self.block(f"for {a}_l in T.vectorized({lanes}):"),
            ):
                write({a: f"{a}_v * {lanes} + {a}_l"}, f"{a}_l")
        if left != "0":
            base = (
                f"({count}) // {lanes} * {lanes}"
                if not count.isdigit()
                else str(int(count) // lanes * lanes)
            )
            with self.block(f"for {a}_r in range({left}):"):
                write({a: f"{base} + {a}_r" if base != "0" else f"{a}_r"}, f"{a}_r")

    def _value(self, r: Read, at: Mapping[str, str]) -> str:
        text = self.element(r, at)
        buffer = self.schedule.buffer(r.tensor)
        stored = self.chain.tensor(buffer.tensor).dtype
        if buffer.tensor in self.chain.inputs and stored in ("float16", "bfloat16", "float64"):
            return f'T.Cast("float32", {text})'
        return text

    def _scalar(self, at: Mapping[str, str], known: Mapping[Expr, str]) -> Scalar:
        def position(a: str) -> str:
            return f'T.Cast("float32", {_sum(self.start(a), at.get(a, "0"))})'

        return Scalar(self.put, lambda r: self._value(r, at), position, known, self.fresh)

    def _invariant(self, body: Expr, last: str, at: Mapping[str, str]) -> dict[Expr, str]:
        """Costly parts that do not vary along the last axis, computed once before its loop."""
        known: dict[Expr, str] = {}

        def find(e: Expr) -> None:
            if isinstance(e, Call) and last not in axes(e) and reads(e) and e.op in _COSTLY:
                if e not in known and len(known) < _SLOTS:
                    self.put(f"once[{len(known)}] = {self._scalar(at, {}).text(e)}")
                    known[e] = f"once[{len(known)}]"
                return
            for child in children(e):
                find(child)

        find(body)
        return known

    # --- reductions

    def _reduction(self, s: Compute) -> None:
        o = s.operator
        identity = LOWEST if o.reduce == "max" else 0.0
        body = s.body
        if s.domain is not None:
            body = Call("select", (s.domain, body, Const(identity)))
        if self._contiguous(body) in o.over:
            self._across(s, body, identity)
        else:
            self._along(s, body)

    def _contiguous(self, body: Expr) -> str | None:
        """The axis along which most of what is read lies side by side in memory."""
        votes: dict[str, int] = {}
        for r in reads(body):
            tensor = self.schedule.buffer(r.tensor).tensor
            strides = (
                strides_of(self.chain, tensor) if tensor in self.chain.inputs
                else (0,) * (len(r.indices) - 1) + (1,)
            )  # fmt: skip
            for index, stride in zip(r.indices, strides, strict=False):
                if stride == 1 and index.plain is not None:
                    votes[index.plain] = votes.get(index.plain, 0) + len(r.indices)
        return max(votes, key=lambda a: votes[a]) if votes else None

    def _across(self, s: Compute, body: Expr, identity: float) -> None:
        """Lanes hold partial results along the reduced axis, folded in half at the end."""
        o, lanes = s.operator, self.lowering.lanes
        last = self._contiguous(body)
        assert last is not None
        around = [*o.axes, *(a for a in o.over if a != last)]
        with self._nest([(f"{a}_i", self.count(a)) for a in around]) as names:
            at = dict(zip(around, names, strict=True))
            known = self._invariant(body, last, at)
            with self.block(f"for l in T.vectorized({lanes}):"):
                self.put(f"lane[l] = {literal(identity)}")

            def write(here: Mapping[str, str], slot: str) -> None:
                value = self._scalar({**at, **here}, known).text(body)
                self.put(f"lane[{slot}] = {_reduced(o.reduce, f'lane[{slot}]', value)}")

            self._lanes(last, self.count(last), write)
            half = lanes // 2
            while half >= 1:
                with self.block(f"for l in T.vectorized({half}):" if half > 1 else "if True:"):
                    i = "l" if half > 1 else "0"
                    both = _reduced(o.reduce, f"lane[{i}]", f"lane[{i} + {half}]")
                    self.put(f"lane[{i}] = {both}")
                half //= 2
            here = self.element(Read(s.buffer, tuple(axis(a) for a in o.axes)), at)
            self.put(f"{here} = {_reduced(o.reduce, here, 'lane[0]')}")

    def _along(self, s: Compute, body: Expr) -> None:
        """The reduced axes are the outer loops; lanes are separate results."""
        o = s.operator
        around = [*o.over, *o.axes[:-1]]
        with self._nest([(f"{a}_i", self.count(a)) for a in around]) as names:
            at = dict(zip(around, names, strict=True))
            known = self._invariant(body, o.axes[-1], at) if o.axes else {}

            def write(last: Mapping[str, str], slot: str) -> None:
                here = {**at, **last}
                target = self.element(Read(s.buffer, tuple(axis(a) for a in o.axes)), here)
                value = self._scalar(here, known).text(body)
                self.put(f"{target} = {_reduced(o.reduce, target, value)}")

            if o.axes:
                self._lanes(o.axes[-1], self.count(o.axes[-1]), write)
            else:
                write({}, "0")

    # --- products

    def _pack(self, s: Load) -> None:
        """Panels of the right operand: [columns/width][depth][width], zero beyond the extent."""
        ops = self._user(s.buffer)
        width, column, depth = ops.width, ops.column, ops.roles.depth
        others = self._others(ops)
        panels = str(-(-self.schedule.tile(column) // width))
        loops = [(f"{a}_i", self.count(a)) for a in (*others,)]
        with self._nest([*loops, ("p", panels), *((f"{a}_i", self.count(a)) for a in depth)]) as n:
            at = dict(zip((*others, "p", *depth), n, strict=True))
            panel = at.pop("p")
            row = self._depth_row(ops, at)
            lead = "".join(f"{at[a]}, " for a in others)
            here = _sum(_times(panel, width), "j")
            value = self.address(s.read.tensor, s.read.indices, {**at, column: here})
            dtype = self.chain.tensor(s.read.tensor).dtype
            value = value if dtype == "float32" else f'T.Cast("float32", {value})'
            if self.count(column) != str(int(panels) * width):
                value = f"T.if_then_else({here} < {self.count(column)}, {value}, T.float32(0))"
            with self.block(f"for j in range({width}):"):
                self.put(f"{s.buffer}_panels[{lead}{panel}, {row}, j] = {value}")

    def _depth_row(self, ops: _Operands, at: Mapping[str, str]) -> str:
        """The row within a panel: the position within the tiles of all depth axes."""
        row = "0"
        for a in ops.roles.depth:
            row = _sum(_times(row, self.schedule.tile(a)) if row != "0" else "0", at.get(a, "0"))
        return row

    def _product(self, s: Compute) -> None:
        ops = self.operands[s.buffer]
        left, right = (self._buffer_of(s, r) for r in (ops.roles.left, ops.roles.right))
        if s.domain is not None:
            left = self._masked(s, ops, left)
        lanes, vectors = self.lowering.lanes, ops.width // self.lowering.lanes
        tile = self.schedule.tile(ops.column)
        panels = str(-(-tile // ops.width))
        if not self.count(ops.column).isdigit():
            panels = _ceil(self.count(ops.column), ops.width)
        rows = _ceil(self.count(ops.row), ops.micro_rows) if ops.row is not None else "1"
        loops = [(f"{a}_i", self.count(a)) for a in ops.outer]
        with self._nest([*loops, ("j0", panels), ("i0", rows)]) as names:
            *outer, j0, i0 = names
            at = dict(zip(ops.outer, outer, strict=True))
            places = [(v, self._place(s, ops, at, i0, j0, v)) for v in range(vectors)]
            for v, place in places:
                with self._micro(ops, lanes):
                    start = "T.float32(0)" if s.buffer in self.zeroed else place
                    self.put(f"acc{v}[i, j] = {start}")
            with self._nest([(f"{a}_i", self.count(a)) for a in ops.roles.depth]) as depth:
                at.update(zip(ops.roles.depth, depth, strict=True))
                with self.block(f"for i in T.unroll({ops.micro_rows}):"):
                    one = self._left(ops, left, {**at}, i0)
                    for v in range(vectors):
                        with self.block(f"for j in T.vectorized({lanes}):"):
                            two = self._right(ops, right, at, j0, v)
                            self.put(f"acc{v}[i, j] = acc{v}[i, j] + {one} * {two}")
            for v, place in places:
                with self._micro(ops, lanes):
                    self.put(f"{place} = acc{v}[i, j]")

    @contextmanager
    def _micro(self, ops: _Operands, lanes: int) -> Iterator[None]:
        with (
            self.block(f"for i in T.unroll({ops.micro_rows}):"),
            self.block(f"for j in T.vectorized({lanes}):"),
        ):
            yield

    def _place(
        self, s: Compute, ops: _Operands, at: Mapping[str, str], i0: str, j0: str, v: int
    ) -> str:
        """The element of the product's own tile that accumulator v holds at [i, j]."""
        local = {**at, ops.column: self._columns(ops, j0, v)}
        if ops.row is not None:
            local[ops.row] = _sum(_times(i0, ops.micro_rows), "i")
        return self.element(Read(s.buffer, tuple(axis(a) for a in s.operator.axes)), local)

    def _columns(self, ops: _Operands, j0: str, v: int) -> str:
        return _sum(_times(j0, ops.width), _sum(str(v * self.lowering.lanes), "j"))

    def _left(self, ops: _Operands, buffer: str, at: dict[str, str], i0: str) -> str:
        """The left operand's element, a row past the extent replaced by the last one."""
        if buffer.endswith("_masked"):
            at[ops.row or ""] = _sum(_times(i0, ops.micro_rows), "i")
            return f"{buffer}[{', '.join(at[i.plain or ''] for i in ops.roles.left.indices)}]"
        if ops.row is not None:
            row = _sum(_times(i0, ops.micro_rows), "i")
            loaded = self.schedule.buffer(buffer).tensor in self.chain.inputs
            count = self.count(ops.row)
            exact = count.isdigit() and int(count) % ops.micro_rows == 0
            at[ops.row] = f"T.min({row}, {count} - 1)" if loaded and not exact else row
        return self._value(Read(buffer, ops.roles.left.indices), at)

    def _right(self, ops: _Operands, buffer: str, at: Mapping[str, str], j0: str, v: int) -> str:
        kind = self.right.get(buffer)
        lane = _sum(str(v * self.lowering.lanes), "j")
        if kind == "panels":
            lead = "".join(f"{at[a]}, " for a in self._others(ops))
            return f"{buffer}_panels[{lead}{j0}, {self._depth_row(ops, at)}, {lane}]"
        if kind == "packed":
            tensor = self.schedule.buffer(buffer).tensor
            (k,) = ops.roles.depth
            rows, start = self.chain.size(k), self.start(ops.column)
            first = f"({start}) // {ops.width}" if start != "0" else "0"
            panel, row = _sum(first, j0), _sum(self.start(k), at[k])
            parts = (_times(panel, rows * ops.width), _times(row, ops.width), lane)
            return f"{tensor}_flat[{' + '.join(p for p in parts if p != '0')}]"
        here = {**at, ops.column: self._columns(ops, j0, v)}
        return self._value(Read(buffer, ops.roles.right.indices), here)

    def _masked(self, s: Compute, ops: _Operands, left: str) -> str:
        """A copy of the left operand with zeros outside the domain."""
        assert s.domain is not None
        read = Read(left, ops.roles.left.indices)
        names = [i.plain for i in read.indices]
        if None in names or set(axes(s.domain)) - set(names):
            raise Illegal(f"the domain of '{s.operator.out}' is not one of its left operand")
        plain = [a for a in names if a is not None]
        with self._nest([(f"{a}_i", self.count(a)) for a in plain[:-1]]) as outer:
            at = dict(zip(plain, outer, strict=False))

            def write(last: Mapping[str, str], slot: str) -> None:
                here = {**at, **last}
                value = self._scalar(here, {}).text(Call("select", (s.domain, read, Const(0.0))))
                where = ", ".join(here[a] for a in plain)
                self.put(f"{s.buffer}_masked[{where}] = {value}")

            self._lanes(plain[-1], self.count(plain[-1]), write)
        return f"{s.buffer}_masked"


_COSTLY = frozenset(("exp", "exp2", "log", "tanh", "erf", "sqrt", "div", "pow"))
_SLOTS = 8


def _reduced(reduce: str, a: str, b: str) -> str:
    return f"{a} + {b}" if reduce == "sum" else f"T.max({a}, {b})"


def _sum(a: str, b: str) -> str:
    if a == "0" or b == "0":
        return b if a == "0" else a
    return f"{a} + {b}"


def _times(a: str, factor: int) -> str:
    if factor == 1 or a == "0":
        return a
    return f"({a}) * {factor}" if any(c in a for c in " +") else f"{a} * {factor}"


def _ceil(count: str, unit: int) -> str:
    if count.isdigit():
        return str(-(-int(count) // unit))
    return f"({count} + {unit - 1}) // {unit}"
