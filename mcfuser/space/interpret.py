"""The oracle: runs a schedule tile by tile in NumPy, in float64, padding and masks included.

It executes the schedule's statements alone, without regard to the chain that they come from, and
counts traffic and flops by the arrays it touches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from mcfuser.chain import WHOLE, lowest
from mcfuser.expr import NARROW, Affine, Call, Cast, Const, Expr, Index, Read, walk
from mcfuser.space.reference import Array
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Statement,
    Store,
    StorePartial,
    plain_index,
)

_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.absolute, "exp": np.exp, "exp2": np.exp2, "log": np.log,
    "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor, "round": np.rint, "not": lambda x: x == 0,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "pow": np.power, "lt": np.less, "le": np.less_equal, "eq": np.equal,
    "ne": np.not_equal, "and": lambda x, y: (x != 0) & (y != 0),
    "or": lambda x, y: (x != 0) | (y != 0),
    "shift_right": lambda x, y: np.right_shift(x.astype(np.int64), y.astype(np.int64)),
    "bit_and": lambda x, y: np.bitwise_and(x.astype(np.int64), y.astype(np.int64)),
}  # fmt: skip


@dataclass
class RunCount:
    """What a run touched: elements of tensors inside their bounds, padded elements, visits of
    statements. `shared` and `gathered` are elements that parts stored, and that combining loaded,
    by reduction."""

    loaded: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    gathered: dict[str, int] = field(default_factory=dict)
    padded: int = 0
    flops: int = 0
    visits: int = 0


@dataclass
class _Run:
    schedule: Schedule
    inputs: Mapping[str, Array]
    outputs: dict[str, Array]
    buffers: dict[str, Array]
    count: RunCount
    at: dict[str, int]  # the first position of every loop's iteration
    part: int = 0
    partial: dict[tuple[str, int], Array] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)  # by id: the schedule keeps its expressions

    def start(self, axis: str) -> int:
        return self.at.get(axis, 0)

    def positions(self, axis: str) -> Array:
        return self.start(axis) + np.arange(self.schedule.tile(axis))


def interpret(schedule: Schedule, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], RunCount]:
    """The chain's outputs by running every block of the schedule, and what was counted.

    `inputs` are as the chain indexes them. Elements that no block stores stay NaN.
    """
    chain = schedule.chain
    outputs = {o: np.full(chain.shape(o), np.nan) for o in chain.outputs}
    known = {n: np.asarray(a, np.float64) for n, a in inputs.items()}
    run = _Run(schedule, known, outputs, {}, RunCount(), {})
    for b in schedule.buffers:
        run.buffers[b.name] = np.full(schedule.shape(b.name), np.nan)
    with np.errstate(all="ignore"):
        _block(run, schedule.body)
    return outputs, run.count


def _block(run: _Run, body: Sequence[Statement]) -> None:
    for s in body:
        if isinstance(s, Loop):
            _loop(run, s)
            continue
        run.count.visits += 1
        if isinstance(s, Load):
            _load(run, s)
        elif isinstance(s, Init):
            run.buffers[s.buffer][_region(run, s.buffer)] = s.value
        elif isinstance(s, SaveOld):
            run.buffers[s.old][_region(run, s.old)] = run.buffers[s.buffer][_region(run, s.buffer)]
        elif isinstance(s, Compute):
            _compute(run, s)
        elif isinstance(s, Repair):
            _repair(run, s)
        elif isinstance(s, StorePartial):
            _store_partial(run, s)
        elif isinstance(s, Combine):
            _combine(run, s)
        elif isinstance(s, Store):
            _store(run, s)
        else:
            assert_never(s)


def _loop(run: _Run, s: Loop) -> None:
    around, split = dict(run.at), s.kind == "split"
    trips = -(-run.schedule.chain.size(s.axis) // run.schedule.tile(s.axis))
    each = -(-trips // run.schedule.parts)  # iterations of a part
    if split:
        starts = [part * each for part in range(run.schedule.parts)]
    else:
        first, last = 0, trips
        if s.axis in around:
            first = around[s.axis] // run.schedule.tile(s.axis)
            last = min(first + each, trips)
        starts = [
            iteration for iteration in range(first, last) if _admitted(run, s, iteration, around)
        ]
    for number, iteration in enumerate(starts):
        if split:
            _forget(run)
            run.part = number
        run.at[s.axis] = iteration * run.schedule.tile(s.axis)
        _block(run, s.body)
    if split:
        _forget(run)
    run.at = around


def _admitted(run: _Run, s: Loop, iteration: int, around: Mapping[str, int]) -> bool:
    """The iteration holds a position, padding included, within the bounds of the loop. The bounds
    are evaluated at every current position of the axes that they depend on."""
    here = iteration * run.schedule.tile(s.axis) + np.arange(run.schedule.tile(s.axis))
    enough = all(here.max() >= _values(run, i, around).min() for i in s.lo)
    return enough and all(here.min() <= _values(run, i, around).max() for i in s.hi)


def _values(run: _Run, index: Affine, around: Mapping[str, int]) -> Array:
    """All values of an index over the current tiles of the surrounding loops, and over all
    positions of other axes."""
    total = np.asarray([index.offset])
    for a, c in index.terms:
        n = run.schedule.tile(a) if a in around else run.schedule.chain.size(a)
        total = np.unique(total[:, None] + c * (around.get(a, 0) + np.arange(n)))
    return total


def _forget(run: _Run) -> None:
    """Overwrites all tiles with NaN: parts and the combination of parts run in different blocks, so
    no tile may pass from one to the other."""
    for tile in run.buffers.values():
        tile[...] = np.nan


# --- expressions: every tile is float64, a condition in it 0 or 1


def _value(e: Expr, read: Callable[[Read], Array], index: Callable[[str], Array]) -> Any:
    if isinstance(e, Const):
        return np.float64(e.value)
    if isinstance(e, Index):
        return np.asarray(index(e.axis), np.float64)
    if isinstance(e, Read):
        return read(e)
    if isinstance(e, Cast):
        return _held_as(_value(e.arg, read, index), e.dtype)
    if not isinstance(e, Call):
        assert_never(e)
    x, *more = (np.asarray(_value(a, read, index), np.float64) for a in e.args)
    if e.op == "select":
        return np.where(x != 0, *more)
    return _UNARY[e.op](x) if not more else _BINARY[e.op](x, *more)


def _held_as(x: Any, dtype: str) -> Any:
    """The value converted to a dtype, except that its precision stays that of float64."""
    if dtype == "bool":
        return np.not_equal(x, 0)
    whole = dtype in (*WHOLE, *NARROW)
    return np.trunc(x) + 0.0 if whole else x  # there is one zero among whole numbers


# --- statements


def _load(run: _Run, s: Load) -> None:
    source, tile = run.inputs[s.read.tensor], run.buffers[s.buffer]
    lows = [_low(run, i) for i in s.read.indices]
    spans = [
        slice(max(low, 0), min(low + n, size))
        for low, n, size in zip(lows, tile.shape, source.shape, strict=True)
    ]
    part = source[tuple(spans)]
    tile[...] = 0.0
    inside = tuple(
        slice(s.start - low, s.start - low + n)
        for s, low, n in zip(spans, lows, part.shape, strict=True)
    )
    tile[inside] = part
    run.count.loaded[s.read.tensor] = run.count.loaded.get(s.read.tensor, 0) + part.size
    run.count.padded += tile.size - part.size


def _low(run: _Run, index: Affine) -> int:
    """The smallest position that an index takes within the tile at hand."""
    reach = sum(c * (run.schedule.tile(a) - 1) for a, c in index.terms if c < 0)
    return index.offset + reach + sum(c * run.start(a) for a, c in index.terms)


def _over(run: _Run, e: Expr, space: Sequence[str]) -> Array:
    """An expression over the tile's positions of some axes, one dimension each."""

    def along(axis: str, numbers: Array) -> Array:
        shape = [1] * len(space)
        shape[space.index(axis)] = -1
        return numbers.reshape(shape)

    def read(r: Read) -> Array:
        buffer = run.schedule.buffer(r.tensor)
        at = []
        for dim, index in zip(buffer.dims, r.indices, strict=True):
            low = 0 if dim.whole else _low(run, dim.index)
            position: Any = index.offset - low
            for axis, c in index.terms:
                position = position + c * along(axis, run.positions(axis))
            at.append(position)
        values: Array = run.buffers[r.tensor][tuple(at)]
        return values

    shape = tuple(run.schedule.tile(a) for a in space)
    values = _value(e, read, lambda a: along(a, run.positions(a)))
    return np.broadcast_to(np.asarray(values), shape)


def _valid(run: _Run, s: Compute) -> Array:
    """A mask of the reduction's positions that are inside the extents and the domain."""
    space = s.operator.related
    inside = np.ones((1,) * len(space), bool)
    for axis in s.operator.over:
        shape = [1] * len(space)
        shape[space.index(axis)] = -1
        inside = inside & (run.positions(axis) < run.schedule.chain.size(axis)).reshape(shape)
    return inside if s.domain is None else inside & _over(run, s.domain, space).astype(bool)


def _compute(run: _Run, s: Compute) -> None:
    o, target = s.operator, run.buffers[s.buffer]
    dtype = run.schedule.chain.tensor(o.out).dtype
    body = np.asarray(_held_as(_over(run, s.body, o.related), dtype), np.float64)
    where = _region(run, s.buffer)
    if o.reduce != "none" or s.domain is not None:
        body = np.where(_valid(run, s), body, lowest(dtype) if o.reduce == "max" else 0.0)
    reduced = tuple(range(len(o.axes), len(o.related)))
    if o.reduce == "none":
        target[where] = body
    elif o.reduce == "sum":
        target[where] += body.sum(axis=reduced)
    else:
        target[where] = np.maximum(target[where], body.max(axis=reduced))
    steps = _calls(run, s.body) + (o.reduce != "none")
    run.count.flops += steps * _real(run, o.related)


def _real(run: _Run, axes: Sequence[str]) -> int:
    """Positions of the current tile that are no padding, counted one by one."""
    real = 1
    for axis in axes:
        here = run.positions(axis) if axis in run.at else np.arange(run.schedule.tile(axis))
        real *= int((here < run.schedule.chain.size(axis)).sum())
    return real


def _region(run: _Run, name: str) -> tuple[slice, ...]:
    """The slices of a computed buffer that the current iteration covers."""
    spans = []
    for dim in run.schedule.buffer(name).dims:
        axis = plain_index(dim.index)
        whole = dim.whole and axis in run.at
        low = run.start(axis) if whole else 0
        n = run.schedule.tile(axis) if whole or not dim.whole else None
        spans.append(slice(low, low + n if n is not None else None))
    return tuple(spans)


def _repair(run: _Run, s: Repair) -> None:
    """Applies h to the part of the target's buffer that the current iteration covers."""
    region = _region(run, s.buffer)
    run.buffers[s.buffer][region] = _repaired(run, s, {})
    run.count.flops += _calls(run, s.h) * _held(run, s.buffer)


def _repaired(run: _Run, s: Repair, given: Mapping[str, Array]) -> Array:
    """The value of h, where `given` holds tiles by name, and all other tiles are read from their
    buffers."""
    axes = [plain_index(d.index) for d in run.schedule.buffer(s.buffer).dims]

    def read(r: Read) -> Array:
        found = given.get(r.tensor)
        tile = run.buffers[r.tensor][_region(run, r.tensor)] if found is None else found
        names = [plain_index(i) for i in r.indices]
        shape = [1] * len(axes)
        for name, n in zip(names, tile.shape, strict=True):
            shape[axes.index(name)] = n
        order = sorted(range(len(names)), key=lambda i: axes.index(names[i]))
        return tile.transpose(order).reshape(shape)

    return np.asarray(_value(s.h, read, lambda a: run.positions(a)))


def _calls(run: _Run, e: Expr) -> int:
    """The functions that an expression applies; counted once in a run."""
    known = run.calls.get(id(e))
    if known is None:
        known = run.calls[id(e)] = sum(isinstance(n, Call) for n in walk(e))
    return known


def _held(run: _Run, name: str) -> int:
    """Elements of a buffer that the current iteration covers and that are no padding."""
    real = 1
    for dim, span in zip(run.schedule.buffer(name).dims, _region(run, name), strict=True):
        axis = plain_index(dim.index)
        n = run.schedule.extent(dim) if span.stop is None else span.stop - span.start
        here = run.start(axis) + np.arange(n)
        real *= int((here < run.schedule.chain.size(axis)).sum())
    return real


def _store_partial(run: _Run, s: StorePartial) -> None:
    """Stores a part's partial result under its reduction and the number of the part."""
    run.partial[s.buffer, run.part] = run.buffers[s.buffer][_region(run, s.buffer)].copy()
    run.count.shared[s.buffer] = run.count.shared.get(s.buffer, 0) + _held(run, s.buffer)


def _combine(run: _Run, s: Combine) -> None:
    target, where = run.buffers[s.buffer], _region(run, s.buffer)
    dtype = run.schedule.chain.tensor(s.operator.out).dtype
    target[where] = lowest(dtype) if s.operator.reduce == "max" else 0.0
    real = _held(run, s.buffer)
    for part in range(run.schedule.parts):
        value = _gather(run, s.buffer, part)
        for r in s.repairs:
            old = _gather(run, r.new, part)
            value = _repaired(run, r, {s.buffer: value, r.old: old})
            run.count.flops += _calls(run, r.h) * real
        if s.operator.reduce == "max":
            target[where] = np.maximum(target[where], value)
        else:
            target[where] += value
        run.count.flops += real


def _gather(run: _Run, name: str, part: int) -> Array:
    run.count.gathered[name] = run.count.gathered.get(name, 0) + _held(run, name)
    return run.partial[name, part]


def _store(run: _Run, s: Store) -> None:
    tile, target = run.buffers[s.buffer], run.outputs[s.tensor]
    spans, inside = [], []
    for dim, size in zip(run.schedule.buffer(s.buffer).dims, target.shape, strict=True):
        axis = plain_index(dim.index)
        if dim.whole and axis not in run.at:
            low, n, first = 0, size, 0
        else:
            low = run.start(axis)
            n = min(run.schedule.tile(axis), size - low)
            first = low if dim.whole else 0
        spans.append(slice(low, low + n))
        inside.append(slice(first, first + n))
    target[tuple(spans)] = tile[tuple(inside)]
    part = target[tuple(spans)]
    run.count.stored[s.tensor] = run.count.stored.get(s.tensor, 0) + part.size
    covered = tile[_region(run, s.buffer)].size
    run.count.padded += covered - part.size
