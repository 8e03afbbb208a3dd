"""Lifts bindings of a Relax function to the operators of a chain.

Every dimension of a matrix product starts as an axis of its own. A view (reshape, transpose, slice)
computes nothing: it only changes the strides of axes. Where a view splits an axis, lifting starts
again with two axes in its place. In the end, neighbouring axes are merged where one axis would do
in every tensor. So equal chains get equal axes, however a model writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from mcfuser.chain import Chain
from mcfuser.expr import Cast, Const, Expr, Read, call
from mcfuser.graph.attempt import (
    Attempt,
    ChainValue,
    filled_number,
    followed_views,
    input_tensor,
    stored_tensor,
)
from mcfuser.graph.dataflow import Dataflow, dtype, shape, size
from mcfuser.graph.draft import DraftOperator, finish
from mcfuser.graph.scalar import ELEMENTWISE, nodes, simplify
from mcfuser.graph.views import (
    Along,
    LaidOutValue,
    Straddle,
    Unliftable,
    broadcast,
    forward,
    within,
)

FLOATS = ("float32", "float16")
NAMES = {"left": "A", "right": "B", "first": "C", "outer": "D", "last": "E"}
"""The names of tensors by role, after the paper: the operands of the first product, its result, the
other operand of the second product, and the result of the chain."""
_MORE = "FGHL"  # other operands
_LARGEST = 60  # nodes of a body, beyond which an operand becomes a tensor of its own
_REFINEMENTS = 8


@dataclass(frozen=True, slots=True)
class Lifted:
    """A chain, and the values of the module that its tensors stand for.

    `arguments` are the values of its inputs, `constants` the arrays of the constant ones, in the
    shapes of the chain, `outputs` the values that it computes, all by tensor name. `shapes` are the
    physical shapes of inputs and outputs.
    """

    chain: Chain
    arguments: Mapping[str, relax.Expr]
    constants: Mapping[str, NDArray[np.generic]]
    outputs: Mapping[str, relax.Var]
    shapes: Mapping[str, tuple[int, ...]]


def lift(
    flow: Dataflow, members: Sequence[relax.Var], closed: frozenset[relax.Var], name: str
) -> Lifted:
    """The chain, called `name`, that computes the last of `members` (values in binding order).

    `closed` are the values inside other chains: views of these are not followed, but read. Raises
    Unliftable with the reason where the members cannot be written as a chain.
    """
    last = max(i for i, v in enumerate(members) if flow.kinds[v] == "product")
    mapped = any(flow.kinds[v] == "elementwise" for v in members[last:])
    names = {**NAMES, "second": "U" if mapped else NAMES["last"]}
    factors: dict[int, tuple[int, ...]] = {}
    for _ in range(_REFINEMENTS):
        lifting = Attempt(flow, closed, factors, names)
        try:
            return _lift(lifting, members, name)
        except Straddle as cut:
            d = next(i for i, axes in enumerate(lifting.dimensions) if cut.axis in axes)
            at = lifting.dimensions[d].index(cut.axis)
            old = [lifting.draft.sizes[a] for a in lifting.dimensions[d]]
            factors[d] = (*old[:at], old[at] // cut.inner, cut.inner, *old[at + 1 :])
    raise Unliftable("its reshapes cut the axes too often")


def _lift(s: Attempt, members: Sequence[relax.Var], name: str) -> Lifted:
    for v in members:
        s.values[v] = _value(s, v)
    last = members[-1]
    value = s.values[last]
    if dtype(last) not in FLOATS:
        raise Unliftable(f"its result has dtype {dtype(last)}")
    if not value.axes:
        raise Unliftable("its result is a single number")
    out = stored_tensor(s, value, s.names["last"])
    if s.draft.operators[-1].out != out:
        raise Unliftable("its last value is not its result")
    done = finish(s.draft, value.layout, dtype(last), name)
    sources = s.draft.sources
    arguments = {t: kept.value for t, kept in sources.items() if t not in done.constants}
    shapes = {t: shape(value) for t, value in arguments.items()}
    shapes |= {t: constant.shape for t, constant in done.constants.items()}
    shapes[out] = shape(last)
    return Lifted(done.chain, arguments, done.constants, {out: last}, shapes)


def _value(s: Attempt, v: relax.Var) -> ChainValue:
    kind, value = s.flow.kinds[v], s.flow.values[v]
    match kind:
        case "product":
            inner = [a for a in value.args if a in s.values]
            return _next_product(s, v, value) if inner else _first_product(s, v, value)
        case "view":
            seen = s.values[value.args[0]]
            return replace(seen, layout=forward(value, seen.layout, s.draft.sizes))
        case "softmax":
            return _softmax(s, value)
        case "elementwise":
            return _map(s, v, value)
        case "other":
            raise Unliftable(f"'{v.name}' ({s.flow.operator(v)}) is no operator of a chain")
        case _:
            assert_never(kind)


# --- products -------------------------------------------------------------------------------


def _first_product(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    _check_product(value)
    left, right = (shape(a) for a in value.args)
    batch = [s.dimension(e) for e in shape(v)[:-2]]
    rows, columns, depth = (s.dimension(e) for e in (left[-2], right[-1], left[-1]))
    s.batch |= {a for axes in batch for a, _ in axes}
    one, scale = _factor(s, value.args[0], [*batch, rows, depth], s.names["left"])
    two, other = _factor(s, value.args[1], [*batch, depth, columns], s.names["right"])
    result = _product(s, v, (Read(one, ()), Read(two, ())), [*batch, rows, columns], depth, "first")
    return replace(result, expr=simplify("mul", result.expr, Const(scale * other)))


def _next_product(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    _check_product(value)
    if all(a in s.values for a in value.args):
        raise Unliftable("both operands of its second product are computed in the chain")
    on_left = value.args[0] in s.values
    inner, outer = value.args if on_left else reversed(value.args)
    seen = within(s.values[inner].layout, s.draft.sizes, shape(inner))
    extents = shape(v)
    skip = len(extents) - len(seen)
    batch = [
        seen[i - skip] if i >= skip and seen[i - skip] else s.dimension(extents[i])
        for i in range(len(extents) - 2)
    ]
    s.batch |= {a for axes in batch for a, _ in axes}
    depth = seen[-1] if on_left else seen[-2]
    own = s.dimension(extents[-1] if on_left else extents[-2])
    operand = [*batch, depth, own] if on_left else [*batch, own, depth]
    name, scale = _factor(s, outer, operand, s.names["outer"])
    mine: Expr = Read(stored_tensor(s, s.values[inner], "P", "W"), ())
    if dtype(outer) != "float32":
        mine = Cast(mine, dtype(outer))
    pair = (mine, Read(name, ())) if on_left else (Read(name, ()), mine)
    along = [*batch, seen[-2], own] if on_left else [*batch, own, seen[-1]]
    result = _product(s, v, pair, along, depth, "second")
    return replace(result, expr=simplify("mul", result.expr, Const(scale)))


def _check_product(value: relax.Call) -> None:
    left, right = value.args
    if len(shape(left)) < 2 or len(shape(right)) < 2:
        raise Unliftable("an operand is a vector")
    if dtype(left) != dtype(right) or dtype(left) not in FLOATS:
        raise Unliftable(
            f"it multiplies {dtype(left)} by {dtype(right)}, not floats of 16 or 32 bits"
        )
    if shape(left)[-1] == 1:
        raise Unliftable("its depth is 1, so nothing is summed")


def _product(
    s: Attempt,
    v: relax.Var,
    pair: tuple[Expr, Expr],
    along: Along,
    depth: list[tuple[int, int]],
    role: str,
) -> ChainValue:
    layout = broadcast(along, shape(v))
    axes = tuple(a for dimension in along for a, _ in dimension)
    out = s.draft.fresh([s.names[role]])
    one, two = (_tensor_read(e) for e in pair)
    over = tuple(a for a, _ in depth)
    s.draft.operators.append(DraftOperator(out, axes, call("mul", *pair), "sum", over, (one, two)))
    return ChainValue(Read(out, ()), axes, layout)


def _tensor_read(e: Expr) -> str:
    inner = e.arg if isinstance(e, Cast) else e
    assert isinstance(inner, Read)
    return inner.tensor


def _factor(s: Attempt, value: relax.Expr, along: Along, name: str) -> tuple[str, float]:
    """The input that a product's operand is read from, and the product of the constant factors
    between the two."""
    scale = 1.0
    extents = shape(value)
    view = LaidOutValue(value, broadcast(along[-len(extents) :], extents))
    while True:
        view = followed_views(s, view)
        if (unscaled := _unscaled(s, view)) is None:
            break
        view, factor = unscaled
        scale *= factor
    order = tuple(a for axes in along for a, _ in axes if a in view.layout)
    return input_tensor(s, view, order, [name, _MORE[0]]), scale


def _unscaled(s: Attempt, view: LaidOutValue) -> tuple[LaidOutValue, float] | None:
    """The value that an operand is a constant multiple of, and the factor; None if it is none."""
    v = view.value
    value = s.flow.values.get(v) if isinstance(v, relax.Var) else None
    if value is None or s.flow.kinds[v] != "elementwise" or v in s.closed:
        return None
    if value.op.name not in ("relax.multiply", "relax.divide") or len(s.flow.readers[v]) > 1:
        return None
    one, two = value.args
    factor = filled_number(two)
    if factor is None and value.op.name == "relax.multiply":
        one, two, factor = two, one, filled_number(one)
    if not factor or size(two) != 1 or shape(one) != shape(v) or v in s.flow.outputs:
        return None
    scale = float(factor) if value.op.name == "relax.multiply" else 1 / float(factor)
    return replace(view, value=one), scale


# --- operators between the products ---------------------------------------------------------


def _map(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    inner = [s.values[a] for a in value.args if a in s.values]
    if any(x.layout != inner[0].layout for x in inner):
        raise Unliftable(f"'{v.name}' combines a value with its own transpose")
    if dtype(v) not in (*FLOATS, "bool"):
        raise Unliftable(f"'{v.name}' has dtype {dtype(v)}")
    along = within(inner[0].layout, s.draft.sizes, shape(v))
    operands = [_operand(s, a, along) for a in value.args]
    if value.op.name == "relax.astype" and dtype(value.args[0]) == "bool":
        operands = [call("select", operands[0], 1.0, 0.0)]
    if value.op.name == "relax.nn.leakyrelu":
        operands.append(Const(float(value.attrs.alpha)))
    return replace(inner[0], expr=ELEMENTWISE[value.op.name](*operands))


def _operand(s: Attempt, a: relax.Expr, along: Along) -> Expr:
    if isinstance(a, (tirx.IntImm, tirx.FloatImm)):
        return Const(float(a.value))
    if a in s.values:
        seen = s.values[a]
        if nodes(seen.expr) > _LARGEST and dtype(a) != "bool":
            s.values[a] = seen = replace(seen, expr=Read(stored_tensor(s, seen, "Y"), ()))
        return seen.expr
    filled = filled_number(a)
    if filled is not None:
        return Const(filled)
    if dtype(a) not in (*FLOATS, "bool"):
        raise Unliftable(f"an operand between its products has dtype {dtype(a)}")
    extents = shape(a)
    view = followed_views(
        s, LaidOutValue(a, broadcast(along[len(along) - len(extents) :], extents))
    )
    order = tuple(x for axes in along for x, _ in axes if x in view.layout)
    operand = Read(input_tensor(s, view, order, _MORE), ())
    return Cast(operand, "float32") if dtype(a) == "float16" else operand


def _softmax(s: Attempt, value: relax.Call) -> ChainValue:
    extents = shape(value.args[0])
    if int(value.attrs.axis) not in (-1, len(extents) - 1):
        raise Unliftable("its softmax is not over the last axis")
    x = s.values[value.args[0]]
    along = within(x.layout, s.draft.sizes, extents)
    over = tuple(a for a, _ in along[-1])
    if not over:
        raise Unliftable("its softmax is over a single element")
    scores = Read(stored_tensor(s, x, "X"), ())
    kept = tuple(a for a in x.axes if a not in over)
    r, p, z = (s.draft.fresh([letter]) for letter in "RPZ")
    s.draft.operators += [
        DraftOperator(r, kept, scores, "max", over),
        DraftOperator(p, x.axes, call("exp", call("sub", scores, Read(r, ())))),
        DraftOperator(z, kept, Read(p, ()), "sum", over),
    ]
    return replace(x, expr=call("div", Read(p, ()), Read(z, ())))
