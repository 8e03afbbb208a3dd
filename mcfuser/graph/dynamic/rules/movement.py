"""Operators that move elements along a dimension: slices, concatenations, gathers, margins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from mcfuser.graph.dynamic.layout import (
    Factor,
    Layout,
    Operand,
    PaddedDimension,
    Sign,
    dimension,
    finest,
    is_dynamic,
    plain,
    room,
    same,
)
from mcfuser.graph.dynamic.length import LengthSum, plus, quotient
from mcfuser.graph.dynamic.node import Numbers, PaddedNode, only

INT64 = TensorProto.INT64


def concat(n: PaddedNode) -> list[Operand]:
    """Concat; where an operand has padding before another one, elements move up to close it."""
    read = n.operands()
    rank = len(read[0].layout)
    axis = int(n.attribute("axis")) % rank
    dims: list[PaddedDimension] = []
    for d in range(rank):
        if d == axis:
            dims.append(n.result_layout()[d])
            continue
        one = read[0].layout[d]
        if not all(same(x.layout[d], one) for x in read):
            raise n.refusal(f"its operands have different run-time extents along dimension {d}")
        zero = all(f.zero for x in read for f in x.layout[d])
        dims.append(tuple(f.with_zero(zero) for f in one))
    parts = [x.layout[axis] for x in read]
    finite, sign = all(x.finite for x in read), _common({x.sign for x in read})
    if is_dynamic(parts[0]) and all(same(p, parts[0]) for p in parts):
        dims[axis] = dimension(n.graph.factor(len(parts)), *plain(parts[0]))
        return n.result(n.same(*read)[0], tuple(dims), finite, sign)
    read = [n.single(x, axis) for x in read]
    parts = [x.layout[axis] for x in read]
    name = n.write([x.name for x in read])[0]
    lengths = [n.graph.length(single_factor(n, p).extents) for p in parts]
    known = tuple((length, 1) for length in lengths if length is not None)
    if is_dynamic(dims[axis]) and len(known) == len(parts):
        n.graph.lengths.setdefault(dims[axis][0].extents, LengthSum(known))
    if any(is_dynamic(p) for p in parts[:-1]):
        name = _closed(n, name, axis, [single_factor(n, p) for p in parts])
    elif is_dynamic(parts[-1]):
        dims[axis] = tuple(f.with_zero(parts[-1][0].zero) for f in dims[axis])
    return n.result(name, tuple(dims), finite, sign)


def _common(signs: set[Sign]) -> Sign:
    return signs.pop() if len(signs) == 1 else "any"


def _closed(n: PaddedNode, name: str, axis: int, parts: Sequence[Factor]) -> str:
    """The joined operands with the valid positions of all of them first: element j is read from
    j, and further on by the padding of every operand that ends before j."""
    g = n.graph
    total = sum(p.upper for p in parts)
    at = g.const(np.arange(total), INT64)
    source, end = at, None
    for p in parts[:-1]:
        length = g.length_name(p, n.node)
        end = length if end is None else g.op("Add", end, length)
        if p.dynamic:
            past = g.op("Cast", g.op("GreaterOrEqual", at, end), to=INT64)
            gap = g.op("Sub", g.ints(p.upper), length)
            source = g.op("Add", source, g.op("Mul", past, gap))
    source = g.op("Min", source, g.ints(total - 1))
    return g.op("Gather", name, source, axis=axis)


def single_factor(n: PaddedNode, dim: PaddedDimension) -> Factor:
    """The only factor of a dimension, which is 1 where it has none."""
    return only(dim) or n.graph.factor(1)


def slice_(n: PaddedNode) -> list[Operand]:
    """Slice. From where it begins at the same place at every shape, the padding stays at the end;
    else elements are gathered from run-time positions."""
    x = n.operand(0)
    rank, points = len(x.layout), range(len(n.graph.points))
    starts, stops = _bounds(n, 1, "starts"), _bounds(n, 2, "ends")
    axes = n.attribute("axes") or n.number(3, "axes")
    axes = [int(a) % rank for a in (axes if axes is not None else range(len(starts[0])))]
    given = n.number(4, "steps")
    steps = [1] * len(axes) if given is None else [int(s) for s in given]
    x = n.single(x, *axes)
    wanted = n.result_layout()
    dims, name, moved = list(x.layout), x.name, []
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        if not is_dynamic(x.layout[axis]):
            if any(starts[p][i] != starts[0][i] or stops[p][i] != stops[0][i] for p in points):
                shown = [
                    slice(int(s[i]), int(e[i]), step) for s, e in zip(starts, stops, strict=True)
                ]
                whole = room(x.layout[axis])
                if any(one.indices(whole) != shown[0].indices(whole) for one in shown):
                    _moving_start(n, [one.indices(whole) for one in shown])
            dims[axis] = wanted[axis]
            continue
        factor = only(x.layout[axis])
        assert factor is not None
        ranges = [
            slice(int(starts[p][i]), int(stops[p][i]), step).indices(factor.extents[p])
            for p in points
        ]
        dims[axis] = _cut(n, factor, ranges, wanted[axis])
        if step < 0 or len({r[0] for r in ranges}) > 1:
            moved.append((axis, ranges, wanted[axis]))
    if not moved:
        return n.result(n.same(x)[0], tuple(dims), x.finite, x.sign)
    if len(moved) < len(axes):
        raise n.refusal("it cuts several dimensions, one of them at a run-time position")
    for axis, ranges, dim in moved:
        name = n.graph.op("Gather", name, _positions(n, ranges, dim), axis=axis)
    return n.result(name, tuple(dims), x.finite, x.sign)


def _moving_start(n: PaddedNode, ranges: Sequence[tuple[int, int, int]]) -> None:
    """Raises ModelError where a slice of a fixed extent begins at a run-time position; one that
    only ends there keeps its padding at the end."""
    if len({r[0] for r in ranges}) > 1 or ranges[0][2] < 0:
        raise n.refusal("it cuts a fixed extent at a run-time position")


def _bounds(n: PaddedNode, position: int, name: str) -> list[Numbers]:
    given = n.attribute(name)
    if given is not None:
        return [np.asarray(given)] * len(n.graph.points)
    arrays = n.numbers(position, name)
    assert arrays is not None
    return arrays


def _cut(
    n: PaddedNode, factor: Factor, ranges: Sequence[tuple[int, int, int]], dim: PaddedDimension
) -> PaddedDimension:
    """The dimension that is left, whose run-time extent is noted where a fixed number is cut."""
    start, _, step = ranges[0]
    if not is_dynamic(dim):
        return dim
    before_end = {e - r[1] for r, e in zip(ranges, factor.extents, strict=True)}
    length = n.graph.length(factor.extents)
    if step < 0 or any(r[0] != start for r in ranges) or len(before_end) > 1 or length is None:
        return dim
    left = quotient(plus(length, step - 1 - start - max(before_end)), step)
    n.graph.lengths.setdefault(dim[0].extents, left)
    return tuple(f.with_zero(factor.zero and before_end == {0}) for f in dim)


def _positions(n: PaddedNode, ranges: Sequence[tuple[int, int, int]], dim: PaddedDimension) -> str:
    """The positions that a slice reads: a run-time start, and a fixed step."""
    g = n.graph
    first = g.length_name(Factor(tuple(r[0] for r in ranges)), n.node)
    count = room(dim)
    at = g.op("Add", first, g.const(np.arange(count) * ranges[0][2], INT64))
    return g.op("Max", at, g.ints(0))


def split(n: PaddedNode) -> list[Operand]:
    """Split of a fixed extent, or of one into equal parts each of which has all of an inner
    run-time extent: the steps of a sequence, whose rows are those of a batch."""
    x = n.operand(0)
    axis = int(n.attribute("axis", 0)) % len(x.layout)
    dim, count = x.layout[axis], len(n.node.output)
    sizes = n.numbers(1, "parts")
    equal = sizes is None or all(len(set(s.tolist())) == 1 for s in sizes)
    steps = equal and len(dim) > 1 and not dim[0].dynamic and dim[0].upper % count == 0
    if not steps:
        n.static(x, [axis], "which it divides")
        n.number(1, "parts")
    results = []
    for i, name in enumerate(n.same(x)):
        part = (
            dimension(n.graph.factor(dim[0].upper // count), *dim[1:])
            if steps
            else n.result_layout(i)[axis]
        )
        layout = tuple(part if d == axis else other for d, other in enumerate(x.layout))
        results.append(Operand(name, layout, x.finite, x.sign))
    return results


def gather(n: PaddedNode) -> list[Operand]:
    """Gather. Negative indices count from the run-time end."""
    x, at = n.operand(0), n.operand(1)
    axis = int(n.attribute("axis", 0)) % len(x.layout)
    x = n.single(x, axis)
    at = _from_start(n, x, at, axis)
    name = n.write([x.name, at.name])[0]
    before, after = x.layout[:axis], x.layout[axis + 1 :]
    layout = (*before, *map(plain, at.layout), *after)
    return n.result(name, layout, x.finite, x.sign)


def gather_elements(n: PaddedNode) -> list[Operand]:
    """GatherElements."""
    x, at = n.operand(0), n.operand(1)
    axis = int(n.attribute("axis", 0)) % len(x.layout)
    x = n.single(x, axis)
    at = _from_start(n, x, at, axis)
    pairs = enumerate(zip(x.layout, at.layout, strict=True))
    layout = tuple(
        finest((own, other)) if d != axis and same(own, other) else plain(other)
        for d, (own, other) in pairs
    )
    return n.result(n.write([x.name, at.name])[0], layout, x.finite, x.sign)


def gather_nd(n: PaddedNode) -> list[Operand]:
    """GatherND. Indices of padded positions are brought within the data, for they may be any."""
    x, at = n.operand(0), n.operand(1)
    batch = int(n.attribute("batch_dims", 0))
    n.static(at, [-1], "which is the length of an index")
    if not all(same(a, b) for a, b in zip(x.layout[:batch], at.layout[:batch], strict=True)):
        raise n.refusal("its operands have different run-time extents along a batch dimension")
    count = room(at.layout[-1])
    indexed = range(batch, batch + count)
    x = n.single(x, *indexed)
    name = _within(n, at, [x.layout[d] for d in indexed])
    layout = (*map(plain, at.layout[:-1]), *x.layout[batch + count :])
    return n.result(n.write([x.name, name])[0], layout, x.finite, x.sign)


def _within(n: PaddedNode, at: Operand, dims: Sequence[PaddedDimension]) -> str:
    """Indices into several dimensions, along the last axis, counted from the dimensions' starts and
    within them."""
    if not any(map(is_dynamic, (*at.layout, *dims))):
        return at.name
    g = n.graph
    name = at.name if n.dtype(1) == INT64 else g.op("Cast", at.name, to=INT64)
    lengths = [
        g.length_name(single_factor(n, dim), n.node) if is_dynamic(dim) else g.ints(room(dim))
        for dim in dims
    ]
    ends = lengths[0] if len(lengths) == 1 else g.op("Concat", *lengths, axis=0)
    zero, one = g.ints(0), g.ints(1)
    if at.sign == "any":
        name = g.op("Where", g.op("Less", name, zero), g.op("Add", name, ends), name)
    return g.op("Max", g.op("Min", name, g.op("Sub", ends, one)), zero)


def _from_start(n: PaddedNode, x: Operand, at: Operand, axis: int) -> Operand:
    """Indices counted from the start of a dimension with padding at its end, and within it."""
    dim = x.layout[axis]
    if not is_dynamic(dim):
        return at
    factor = only(dim)
    assert factor is not None
    return at if at.sign != "any" else _nonnegative(n, at, n.graph.length_name(factor, n.node))


def _nonnegative(n: PaddedNode, at: Operand, length: str) -> Operand:
    """Indices counted from the start of an extent, which a row of one int64 holds."""
    if at.sign != "any":
        return at
    g = n.graph
    name = at.name if n.dtype(1) == INT64 else g.op("Cast", at.name, to=INT64)
    length = length if at.layout else g.scalar(length)
    zero = g.const(np.int64(0), INT64)
    name = g.op("Where", g.op("Less", name, zero), g.op("Add", name, length), name)
    return Operand(name, at.layout)


def scatter_elements(n: PaddedNode) -> list[Operand]:
    """ScatterElements. What is padding among the updates goes behind the data's end."""
    x, at, new = (n.operand(i) for i in range(3))
    axis = int(n.attribute("axis", 0)) % len(x.layout)
    x = n.single(x, axis)
    at = _from_start(n, x, at, axis)
    dims = [d for d, dim in enumerate(at.layout) if is_dynamic(dim)]
    if not dims:
        return n.result(n.write([x.name, at.name, new.name])[0], tuple(map(plain, x.layout)))
    g = n.graph
    end = room(x.layout[axis])
    valid = g.valid(at.layout, dims, n.node)
    if not is_dynamic(x.layout[axis]):
        at = _nonnegative(n, at, g.ints(end))
    name = at.name if n.dtype(1) == INT64 else g.op("Cast", at.name, to=INT64)
    name = g.op("Where", valid, name, g.const(np.int64(end), INT64))
    return _behind(n, x, axis, [name, new.name])


def scatter_nd(n: PaddedNode) -> list[Operand]:
    """ScatterND. What is padding among the updates goes behind the data's end."""
    x, at, new = (n.operand(i) for i in range(3))
    n.static(at, [-1], "which is the length of an index")
    count = room(at.layout[-1])
    x = n.single(x, *range(count))
    name = _within(n, at, x.layout[:count])
    dims = [d for d, dim in enumerate(at.layout[:-1]) if is_dynamic(dim)]
    if not dims:
        return n.result(n.write([x.name, name, new.name])[0], tuple(map(plain, x.layout)))
    end = room(x.layout[0])
    valid = n.graph.valid(at.layout, dims, n.node)
    behind = n.graph.ints(end, *[0] * (count - 1))
    return _behind(n, x, 0, [n.graph.op("Where", valid, name, behind), new.name])


def _behind(n: PaddedNode, x: Operand, axis: int, updates: Sequence[str]) -> list[Operand]:
    """The node's result on data with one more element along an axis, which is dropped again."""
    g = n.graph
    end = room(x.layout[axis])
    more = [room(dim) for dim in x.layout]
    more[axis] = 1
    wide = g.op("Concat", x.name, g.const(np.zeros(more), n.dtype(0)), axis=axis)
    (made,) = n.write([wide, *updates])
    part = g.op("Slice", made, g.ints(0), g.ints(end), g.ints(axis))
    return n.result(part, tuple(map(plain, x.layout)))


def regions(n: PaddedNode) -> list[Operand]:
    """RoiAlign, of any number of regions."""
    x, rows, pictures = (n.operand(i) for i in range(3))
    n.static(x, range(len(x.layout)), "which its regions are cut from")
    made = n.result_layout()
    return n.result(n.same(x, rows, pictures)[0], (plain(rows.layout[0]), *made[1:]))


def pad(n: PaddedNode) -> list[Operand]:
    """Pad by a constant: padded positions hold it, so that the margin begins where the run-time
    extent ends. A margin that depends on the extents is a fixed one behind what is padded then."""
    x = n.operand(0)
    rank, points = len(x.layout), range(len(n.graph.points))
    given = n.attribute("pads")
    margins = n.numbers(1, "margins") if given is None else [np.asarray(given)] * len(points)
    assert margins is not None
    axes = [int(a) % rank for a in axes] if (axes := n.number(3, "axes")) is not None else None
    whole = np.zeros((len(points), 2, rank), np.int64)
    for i, d in enumerate(axes if axes is not None else range(rank)):
        for p in points:
            whole[p, :, d] = margins[p][i], margins[p][i + len(margins[p]) // 2]
    moving = (whole != whole[0]).any(axis=0)
    if moving[0].any():
        raise n.refusal("what it puts before its elements depends on the extents")
    cut = [
        d for d in range(rank)
        if moving[1, d] or (is_dynamic(x.layout[d]) and whole[0, :, d].any())
    ]  # fmt: skip
    fill = n.attribute("value", 0.0)
    if cut and n.has(2):
        number = n.number(2, "filling")
        fill = float(np.asarray(number).reshape(())) if number is not None else 0.0
    negative = (whole[0][~moving] < 0).any()
    if cut and (n.attribute("mode", "constant") != "constant" or negative):
        raise n.refusal(f"dimension {cut[0]} is cut, or padded by its own elements")
    x = n.single(x, *cut)
    filled = n.masked(x, 0, cut, fill)
    layout = n.result_layout()
    dims: list[PaddedDimension] = []
    for d in range(rank):
        steady = not moving[1, d]
        if d in cut and steady and (length := n.graph.length(x.layout[d][0].extents)) is not None:
            wide = plus(length, int(whole[0, :, d].sum()))
            n.graph.lengths.setdefault(layout[d][0].extents, wide)
        dims.append(x.layout[d] if steady and not whole[0, :, d].any() else layout[d])
    name = _margins(n, filled, whole[0]) if moving.any() else n.same(filled)[0]
    done: Layout = tuple(
        tuple(f.with_zero(fill == 0) for f in dim) if d in cut else plain(dim)
        for d, dim in enumerate(dims)
    )
    return n.result(name, done, x.finite and math.isfinite(fill))


def _margins(n: PaddedNode, filled: Operand, margins: Numbers) -> str:
    """The operand, filled behind what is valid, with margins [2, rank], of which some may cut."""
    g, rank = n.graph, len(filled.layout)
    pads = np.maximum(margins, 0)
    value = [n.node.input[2]] if n.has(2) else []
    name = g.op("Pad", filled.name, g.ints(*pads.reshape(-1).tolist()), *value)
    dims = [d for d in range(rank) if margins[1, d] < 0]
    if not dims:
        return name
    sizes = [room(dim) for dim in filled.layout]
    ends = [sizes[d] + int(margins[:, d].sum()) for d in dims]
    return g.op("Slice", name, g.ints(*[0] * len(dims)), g.ints(*ends), g.ints(*dims))
