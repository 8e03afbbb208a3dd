"""Lifts bindings of a Relax function to the operators of a chain.

Every dimension of a value starts as an axis of its own, and where two values are combined the axes
along their dimensions become the same ones. A view (reshape, transpose, slice) computes nothing: it
only changes the strides of axes. Where a view splits an axis, lifting starts again with two axes in
its place. In the end, neighbouring axes are merged where one axis would do in every tensor. So
equal chains get equal axes, however a model writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from mcfuser.chain import (
    Chain,
    begun,
    number_bounds,
    whole_interval,
    with_depth_last,
    with_precision,
)
from mcfuser.expr import BOUNDS, NARROW, Cast, Const, Expr, Read, call, reads
from mcfuser.graph.attempt import (
    Attempt,
    ChainValue,
    along_of,
    filled_number,
    merge_equal_inputs,
    stored_tensor,
    unify,
)
from mcfuser.graph.concatenation import by_parts
from mcfuser.graph.condition import MASKED
from mcfuser.graph.cut import cut
from mcfuser.graph.dataflow import (
    FLOATS,
    MOVING,
    Dataflow,
    ValueKind,
    computed_from,
    dtype,
    kind,
    shape,
    size,
)
from mcfuser.graph.draft import Finished, finish, position
from mcfuser.graph.integer_windows import has_integer_windows
from mcfuser.graph.layout import stored_shape, stored_strides
from mcfuser.graph.multiply import has_positions_left, lifted_product
from mcfuser.graph.operand import axes_of, number, operand, scaled, shown_where, whole_leaf
from mcfuser.graph.reduce import lifted_norm, lifted_reduction, lifted_softmax
from mcfuser.graph.scalar import ELEMENTWISE
from mcfuser.graph.views import Along, Axes, Straddle, Unliftable, broadcast, forward
from mcfuser.graph.window import lifted_convolution, lifted_pooling

NAMES = {"left": "A", "right": "B", "first": "C", "outer": "D", "last": "E"}
"""The names of tensors by role, after the paper: the operands of the first product, its result, the
other operand of the second product, and the result of the chain."""
_WITH_NUMBERS = tuple(f"relax.{op}" for op in ("add", "subtract", "multiply", "divide"))
"""The operators whose constant numbers are a quantized chain's own, unlike the bounds of a clip."""
_ON_BYTES = tuple(f"relax.{op}" for op in ("astype", "right_shift", "bitwise_and"))
"""The operators on narrow integers whose results always fit."""
NOTHING: Mapping[relax.Var, str] = {}
_REFINEMENTS = 24


@dataclass(frozen=True, slots=True)
class Lifted:
    """A chain, and the values of the module that its tensors stand for.

    `arguments` are the values of its inputs, `constants` the arrays of the constant ones, in the
    shapes of the chain, `outputs` the values that it computes, all by tensor name. `shapes` are the
    physical shapes of inputs and outputs, and `channels_last` those of these that are stored so.
    `starts` are the elements of arguments before those where the chain's arrays begin (`begun`).
    """

    chain: Chain
    arguments: Mapping[str, relax.Expr]
    constants: Mapping[str, NDArray[np.generic]]
    outputs: Mapping[str, relax.Var]
    shapes: Mapping[str, tuple[int, ...]]
    channels_last: frozenset[str] = frozenset()
    starts: Mapping[str, int] = field(default_factory=dict)


def lift(
    flow: Dataflow, members: Sequence[relax.Var], closed: frozenset[relax.Var], name: str
) -> Lifted:
    """The chain, called `name`, that computes the last of `members` (values in binding order).

    `closed` are the values inside other chains: views of these are not followed, but read. Parts of
    what is concatenated for the members alone are read where they are (`concatenation`). Raises
    Unliftable with the reason where the members cannot be written as a chain.
    """
    if (parted := by_parts(flow, members, closed)) is not None:
        with suppress(Unliftable):
            done = _lifted(parted.flow, parted.members, closed, name, parted.stored)
            if parted.made.isdisjoint(done.arguments.values()):
                return replace(done, outputs=dict.fromkeys(done.outputs, members[-1]))
    return _lifted(flow, members, closed, name)


def _lifted(
    flow: Dataflow,
    members: Sequence[relax.Var],
    closed: frozenset[relax.Var],
    name: str,
    stored: Mapping[relax.Var, str] = NOTHING,
) -> Lifted:
    members = (*_weights(flow, members), *_dequantized(flow, members, closed), *members)
    quantized = any(
        v in flow.widened or flow.operator(v) == "round" or has_integer_windows(flow, v)
        for v in members
    )
    products = [i for i, v in enumerate(members) if flow.kinds[v] == "product"]
    last = products[-1] if products else 0
    mapped = any(flow.kinds[v] == "elementwise" for v in members[last:])
    names = {**NAMES, "second": "U" if mapped else NAMES["last"]}
    factors: dict[int, tuple[int, ...]] = {}
    for _ in range(_REFINEMENTS):
        lifting = Attempt(flow, closed, factors, names, members[-1], quantized)
        try:
            return _lift(lifting, members, name, stored)
        except Straddle as cut:
            d = next(i for i, axes in enumerate(lifting.dimensions) if cut.axis in axes)
            at = lifting.dimensions[d].index(cut.axis)
            old = [lifting.draft.sizes[a] for a in lifting.dimensions[d]]
            factors[d] = (*old[:at], old[at] // cut.inner, cut.inner, *old[at + 1 :])
    raise Unliftable("its reshapes cut the axes too often")


def _weights(flow: Dataflow, members: Sequence[relax.Var]) -> list[relax.Var]:
    """What is computed from constants alone and members read, in binding order."""
    if not flow.constants:
        return []
    found = {x for v in members for x in computed_from(flow, v, flow.constants)}
    return sorted(found.difference(members), key=flow.position.__getitem__)


def _dequantized(
    flow: Dataflow, members: Sequence[relax.Var], closed: frozenset[relax.Var]
) -> list[relax.Var]:
    """The values that the members' products and maps compute anew from narrow integers, in binding
    order. Right operands are read as they are stored, but for their scales."""
    found = set[relax.Var]()
    for v in members if flow.widened else ():
        product, maps = flow.operator(v) == "matmul", flow.kinds[v] == "elementwise"
        if not product and not maps:
            continue
        left = 1 if product and has_positions_left(flow, v, members[-1]) else 0
        for i, a in enumerate(flow.values[v].args):
            if a not in flow.widened or a in closed:
                continue
            made = computed_from(flow, a, flow.widened)
            if maps or i == left or not any(flow.operator(x) in ("add", "subtract") for x in made):
                found.update(made)
    return sorted(found.difference(members, closed), key=flow.position.__getitem__)


def _lift(
    s: Attempt, members: Sequence[relax.Var], name: str, stored: Mapping[relax.Var, str]
) -> Lifted:
    for v in members:
        seen = _kind(s.flow, v) in MOVING
        if seen and s.flow.values[v].args[0] not in s.values:
            continue  # a view of what is read is followed where it is read
        s.values[v] = made = _value(s, v)
        if v in stored:
            expr = Read(stored_tensor(s, made, stored[v]), ())
            s.values[v] = replace(made.plain, expr=expr)
    if members[-1] not in s.values:
        raise Unliftable(f"'{members[-1].name}' is a view of what is read")
    last = members[-1]
    value = s.values[last]
    if dtype(last) not in FLOATS and not _is_narrowed(s.flow, last):
        raise Unliftable(f"its result has dtype {dtype(last)}")
    if not value.axes:
        raise Unliftable("its result is a single number")
    if size(last) != math.prod(s.draft.sizes[a] for a in value.axes):
        raise Unliftable("its result repeats elements")
    out = stored_tensor(s, value, s.names["last"])
    if s.draft.operators[-1].out != out:
        raise Unliftable("its last value is not its result")
    merge_equal_inputs(s)
    s.draft.drop_unread()
    layout = s.values[last].layout
    if last in s.flow.channels_last:
        layout = stored_strides(layout, s.draft.sizes, shape(last))
        s.draft.order_axes(layout)
    done = finish(s.draft, layout, dtype(last), name)
    done = replace(done, chain=with_precision(done.chain, s.flow.precision))
    if s.flow.depth_last:
        done = _depth_last(done)
    sources = s.draft.sources
    arguments = {t: source.value for t, source in sources.items() if t not in done.constants}
    stored = {**arguments, out: last}
    turned = frozenset(t for t, kept in stored.items() if kept in s.flow.channels_last)
    shapes = {t: constant.shape for t, constant in done.constants.items()}
    for t, kept in stored.items():
        shapes[t] = stored_shape(shape(kept)) if t in turned else shape(kept)
    chain, starts = begun(done.chain)
    return Lifted(chain, arguments, done.constants, {out: last}, shapes, turned, starts)


def _depth_last(done: Finished) -> Finished:
    """The chain with weights stored along the depth of their products."""
    chain, orders = with_depth_last(done.chain)
    turned = {t: np.ascontiguousarray(done.constants[t].transpose(o)) for t, o in orders.items()}
    return Finished(chain, {**done.constants, **turned})


def _value(s: Attempt, v: relax.Var) -> ChainValue:
    value, found = s.flow.values[v], _kind(s.flow, v)
    if found not in (*MOVING, "elementwise"):
        _check_whole(s, value)
    match found:
        case "product" if value.op.name == "relax.matmul":
            return lifted_product(s, v, value)
        case "product":
            return lifted_convolution(s, v, value)
        case "view" | "broadcast":
            seen = s.values[value.args[0]]
            return replace(seen, layout=forward(value, seen.layout, s.draft.sizes))
        case "slice":
            return cut(s, value)
        case "softmax":
            return lifted_softmax(s, v, value)
        case "norm":
            return lifted_norm(s, v, value)
        case "reduction" if "_pool" in value.op.name:
            return lifted_pooling(s, v, value)
        case "reduction":
            return lifted_reduction(s, v, value)
        case "elementwise":
            return _map(s, v, value)
        case "concatenation":
            return _concatenated(s, v, value)
        case "other" | "constant":
            raise Unliftable(f"'{v.name}' ({s.flow.operator(v)}) is no operator of a chain")
        case never:
            assert_never(never)


def _kind(flow: Dataflow, v: relax.Var) -> ValueKind:
    """The kind of a value's operator, whatever it is computed from."""
    found = flow.kinds[v]
    return kind(v, flow.values[v]) if found == "constant" else found


def _map(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """An elementwise operator; its operands may be broadcast."""
    name, casts = value.op.name, value.op.name == "relax.astype"
    if dtype(v) not in (*FLOATS, *NARROW, "bool"):
        raise Unliftable(f"'{v.name}' has dtype {dtype(v)}")
    if dtype(v) in NARROW and name not in _ON_BYTES:
        raise Unliftable(f"'{v.name}' ({name.removeprefix('relax.')}) may wrap in {dtype(v)}")
    inner = [a for a in value.args if a in s.values]
    if inner and casts and dtype(inner[0]) in FLOATS and dtype(v) in FLOATS:
        return s.values[inner[0]]  # a chain computes in float32, and rounds what it stores
    extents = shape(v)
    unify(s, lambda: _shared(s, inner, len(extents)))
    along = _joined(s, inner, len(extents))
    for d, extent in enumerate(extents):
        if extent > 1 and any(_varies(s, a, d - len(extents)) for a in value.args):
            along[d] = _completed(s, along[d], extent)
    conditional = _masked(s, value, along) or _still_masked(s, value, along)
    if conditional is not None:
        return replace(conditional, layout=broadcast(along, extents))
    axes = axes_of(along)
    known = [s.values[a].axes for a in inner]
    order = next((row for row in known if set(row) == set(axes)), axes)
    return ChainValue(_element(s, v, value, along), order, broadcast(along, extents))


def _element(s: Attempt, v: relax.Var, value: relax.Call, along: Along) -> Expr:
    """An element of an elementwise operator's result; `along` are the axes along its dimensions."""
    name, args = value.op.name, list(value.args)
    orders = {"relax.multiply": (args, args[::-1]), "relax.divide": (args,)}
    for x, factor in orders.get(name, ()):
        if (scale := number(s, factor, inverse=name == "relax.divide")) is not None:
            return scaled(s, operand(s, x, along), scale)
    own = name in _WITH_NUMBERS
    operands = [(number(s, a) if own else None) or operand(s, a, along) for a in args]
    if name == "relax.astype" and dtype(args[0]) == "bool":
        operands = [call("select", operands[0], 1.0, 0.0)]
    elif name == "relax.astype" and dtype(v) in NARROW:
        operands = [_narrowed(s, v, operands[0], dtype(args[0]))]
    elif name == "relax.astype" and dtype(args[0]) in NARROW:
        operands = [_widened(s, operands[0])]
    if name == "relax.nn.leakyrelu":
        operands.append(Const(float(value.attrs.alpha)))
    return ELEMENTWISE[name](*operands)


def _widened(s: Attempt, e: Expr) -> Expr:
    """A narrow integer as a real number; of one that was a whole real number before, that."""
    if not isinstance(e, Cast) or e.dtype != "int32":
        return Cast(e, "float32")
    whole = whole_interval(e.arg, partial(whole_leaf, s)) is not None
    return e.arg if whole else Cast(e, "float32")


def _narrowed(s: Attempt, v: relax.Var, e: Expr, before: str) -> Expr:
    """A real number as the whole number that `v` is, between the bounds of its type. Raises
    Unliftable where it may be outside of them."""
    (least, most), (low, high) = BOUNDS[dtype(v)], number_bounds(e, partial(whole_leaf, s))
    if before not in FLOATS or low < least or high > most:
        raise Unliftable(f"'{v.name}' may not fit into {dtype(v)}")
    return Cast(e, "int32")


def _is_narrowed(flow: Dataflow, v: relax.Var) -> bool:
    """Whether a value is a real one that became a narrow integer, or a view of such."""
    while v in flow.values and flow.kinds[v] == "view":
        v = flow.values[v].args[0]
    if dtype(v) not in NARROW or v not in flow.values or flow.operator(v) != "astype":
        return False
    return dtype(flow.values[v].args[0]) in FLOATS


def _concatenated(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """Equal parts side by side along a dimension: an axis counts them, others run along each."""
    parts, extents = list(value.args[0].fields), list(shape(v))
    if len({shape(part) for part in parts}) > 1:
        raise Unliftable(f"'{v.name}' puts parts of different extents side by side")
    at, rank = int(value.attrs.axis) % len(extents), len(extents)
    inner = [part for part in parts if part in s.values]
    unify(s, lambda: _shared(s, inner, rank))
    along = _joined(s, inner, rank)
    for d, extent in enumerate(shape(parts[0])):
        if not along[d]:
            along[d] = s.dimension(extent)
    (number,) = s.dimension(len(parts))
    *others, chosen = [operand(s, part, along) for part in parts]
    for i, part in reversed([*enumerate(others)]):
        chosen = call("select", call("lt", position(number[0]), i + 1), part, chosen)
    along[at] = [(number[0], extents[at] // len(parts)), *along[at]]
    return ChainValue(chosen, axes_of(along), broadcast(along, extents))


def _masked(s: Attempt, value: relax.Call, along: Along) -> ChainValue | None:
    """The result of adding a constant mask to a value of the chain, or of choosing by one between
    that value and a number; None for any other operator."""
    name, args = value.op.name, list(value.args)
    if name == "relax.where" and (number := filled_number(args[2])) is not None:
        mask, x = args[:2]
        if not number <= MASKED:
            return None
    elif name == "relax.add":
        x, mask = args if args[0] in s.values else args[::-1]
    else:
        return None
    if x not in s.values or {a for row in along for a, _ in row} != set(s.values[x].axes):
        return None
    condition = shown_where(s, mask, along)
    if condition is None or s.values[x].nonzero is not None:
        return None
    shown = s.values[x].shown
    return replace(s.values[x], shown=condition if shown is None else call("and", shown, condition))


def _still_masked(s: Attempt, value: relax.Call, along: Along) -> ChainValue | None:
    """What a softmax makes of a masked value where its steps are spelled out: its difference from
    its own maximum, the exponential of that, and the quotient of that and what is made of its sum.
    None for anything else."""
    name, args = value.op.name, list(value.args)
    x = s.values.get(args[0])
    if (
        x is None
        or (x.shown is None and x.nonzero is None)
        or {a for row in along for a, _ in row} != set(x.axes)
    ):
        return None
    if name == "relax.exp" and x.shown is not None:
        return replace(x, expr=call("exp", x.expr), shown=None, nonzero=x.shown)
    if name not in ("relax.subtract", "relax.divide"):
        return None
    other = operand(s, args[1], along)
    made = {o.out: o for o in s.draft.operators}
    read = [made[r.tensor] for r in reads(other) if r.tensor in made]
    highest = any((o.reduce, o.body, o.domain) == ("max", x.expr, x.shown) for o in read)
    if name == "relax.subtract" and highest and isinstance(other, Read):
        return replace(x, expr=call("sub", x.expr, other))
    total = any((o.reduce, o.body, o.domain) == ("sum", x.expr, x.nonzero) for o in read)
    if name == "relax.divide" and total and x.nonzero is not None:
        return replace(x, expr=call("div", x.expr, other))
    return None


def _shared(s: Attempt, inner: Sequence[relax.Expr], rank: int) -> Iterator[tuple[Axes, Axes]]:
    """The axes along the same dimension of two operands."""
    every = [_padded(along_of(s, a), rank) for a in inner]
    for d in range(rank):
        yield from combinations([along[d] for along in every if along[d]], 2)


def _joined(s: Attempt, inner: Sequence[relax.Expr], rank: int) -> Along:
    """The axes along which some operand varies; one that was broadcast may vary along a part of a
    dimension alone, such as the groups of its channels."""
    every = [_padded(along_of(s, a), rank) for a in inner]
    rows = ({pair for along in every for pair in along[d]} for d in range(rank))
    return [sorted(row, key=lambda pair: -pair[1]) for row in rows]


def _completed(s: Attempt, row: Axes, extent: int) -> Axes:
    """The axes along a dimension with new ones for what they leave out of it."""
    whole, left = list[tuple[int, int]](), extent
    for axis, stride in row:
        whole += _gap(s, left, stride * s.draft.sizes[axis])
        whole.append((axis, stride))
        left = stride
    return whole + _gap(s, left, 1)


def _gap(s: Attempt, end: int, begin: int) -> Axes:
    """New axes for the positions that are multiples of `begin` below `end`."""
    if end % begin:
        raise Unliftable("a value varies along a part of a dimension that does not divide it")
    return [(a, begin * stride) for a, stride in s.dimension(end // begin)] if end > begin else []


def _check_whole(s: Attempt, value: relax.Call) -> None:
    """Raises Unliftable where an operand that the chain computes was broadcast along a dimension:
    its axes do not tell how many positions there are."""
    for a in value.args:
        if a in s.values and size(a) != math.prod(s.draft.sizes[x] for x in s.values[a].axes):
            raise Unliftable(f"'{a.name}' was broadcast before it is more than mapped")


def _padded(along: Along, rank: int) -> Along:
    return [[] for _ in range(rank - len(along))] + along


def _varies(s: Attempt, a: relax.Expr, d: int) -> bool:
    """Whether an operand that is read varies along a dimension, counted from the last one."""
    if isinstance(a, (tirx.IntImm, tirx.FloatImm)) or a in s.values:
        return False
    extents = shape(a)
    return filled_number(a) is None and len(extents) >= -d and extents[d] > 1
