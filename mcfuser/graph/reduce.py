"""Lifts reductions, and what is made of them: softmax and norms, as their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from mcfuser.chain import Reducer
from mcfuser.expr import Const, Expr, Read, call
from mcfuser.graph.attempt import Attempt, ChainValue, stored_tensor
from mcfuser.graph.dataflow import shape
from mcfuser.graph.draft import DraftOperator
from mcfuser.graph.operand import axes_of, operand, whole
from mcfuser.graph.scalar import simplify
from mcfuser.graph.views import Along, Unliftable, broadcast, within


def reduced_dimensions(axes: Sequence[object] | None, rank: int) -> tuple[int, ...]:
    """The dimensions that an operator's attribute names, all of them for None."""
    if axes is None:
        return tuple(range(rank))
    return tuple(sorted(int(str(a)) % rank for a in axes))


def lifted_reduction(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A sum, mean, maximum or minimum over some dimensions."""
    kind = value.op.name.removeprefix("relax.")
    x, domain = _reduced(s, value.args[0], kind)
    extents = shape(value.args[0])
    along = within(x.layout, s.draft.sizes, extents)
    dimensions = reduced_dimensions(value.attrs.axis, len(extents))
    over, rest = _parted(x, along, extents, dimensions)
    body = call("neg", x.expr) if kind == "min" else x.expr
    out = s.draft.fresh(["M", "Q", "Z"])
    reduce: Reducer = "max" if kind in ("max", "min") else "sum"
    s.draft.operators.append(DraftOperator(out, rest, body, reduce, over, domain=domain))
    result: Expr = Read(out, ())
    if kind == "min":
        result = call("neg", result)
    if kind == "mean":
        result = simplify("mul", result, Const(1.0 / _count(s, over)))
    keep = bool(value.attrs.keepdims)
    kept: Along = [
        [] if d in dimensions else axes
        for d, axes in enumerate(along)
        if keep or d not in dimensions
    ]
    return ChainValue(result, rest, broadcast(kept, shape(v)))


def _reduced(s: Attempt, a: relax.Expr, kind: str) -> tuple[ChainValue, Expr | None]:
    """The operand of a reduction, and the condition outside of which it is nothing to that: the
    lowest number to a maximum, zero to a sum. Others that read it read what is stored."""
    own = s.values.get(a)
    if own is not None and kind == "max" and own.shown is not None:
        condition, letter, x = own.shown, "X", replace(own, shown=None)
    elif own is not None and kind in ("sum", "mean") and own.nonzero is not None:
        condition, letter, x = own.nonzero, "P", replace(own, nonzero=None)
    else:
        return whole(s, a), None
    element = Read(stored_tensor(s, x, letter), ())
    s.values[a] = replace(own, expr=element)
    return replace(x, expr=element), condition


def lifted_softmax(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A softmax, or its logarithm, over one dimension."""
    logarithm = value.op.name == "relax.nn.log_softmax"
    x = whole(s, value.args[0])
    shown = None if logarithm else _shown(s, value.args[0])
    if shown is not None:
        x = replace(s.values[value.args[0]], shown=None)
    extents = shape(value.args[0])
    along = within(x.layout, s.draft.sizes, extents)
    over, kept = _parted(x, along, extents, reduced_dimensions([value.attrs.axis], len(extents)))
    scores = Read(stored_tensor(s, x, "X"), ())
    r, p, z = (s.draft.fresh([letter]) for letter in "RPZ")
    highest, total = Read(r, ()), Read(z, ())
    s.draft.operators += [
        DraftOperator(r, kept, scores, "max", over, domain=shown),
        DraftOperator(p, x.axes, call("exp", call("sub", scores, highest))),
        DraftOperator(z, kept, Read(p, ()), "sum", over, domain=shown),
    ]
    if logarithm:
        shifted = call("sub", scores, highest)
        return replace(x, expr=call("sub", shifted, call("log", total)))
    return replace(x, expr=call("div", Read(p, ()), total), nonzero=shown)


def _shown(s: Attempt, a: relax.Expr) -> Expr | None:
    """The condition outside which a value of the chain is the lowest number."""
    return s.values[a].shown if a in s.values else None


def lifted_norm(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A layer norm or a root-mean-square norm, as its parts."""
    x = whole(s, value.args[0])
    extents = shape(value.args[0])
    along = within(x.layout, s.draft.sizes, extents)
    dimensions = reduced_dimensions(value.attrs.axes, len(extents))
    over, kept = _parted(x, along, extents, dimensions)
    share = Const(1.0 / _count(s, over))
    element: Expr = Read(stored_tensor(s, x, "X"), ()) if not isinstance(x.expr, Read) else x.expr
    if value.op.name == "relax.nn.layer_norm" and value.attrs.center:
        mean = _sum(s, "M", kept, over, element)
        element = _map(s, "N", x.axes, call("sub", element, simplify("mul", mean, share)))
    square = _sum(s, "Q", kept, over, call("mul", element, element))
    variance = call("add", simplify("mul", square, share), float(value.attrs.epsilon))
    body: Expr = call("div", element, call("sqrt", variance))
    weights = [operand(s, w, [along[d] for d in dimensions]) for w in value.args[1:]]
    if value.op.name == "relax.nn.rms_norm" or value.attrs.scale:
        body = simplify("mul", body, weights[0])
    if value.op.name == "relax.nn.layer_norm" and value.attrs.center:
        body = simplify("add", body, weights[1])
    return replace(x, expr=body)


def _count(s: Attempt, over: Sequence[int]) -> int:
    return math.prod(s.draft.sizes[a] for a in over)


def _sum(s: Attempt, name: str, kept: tuple[int, ...], over: tuple[int, ...], body: Expr) -> Expr:
    out = s.draft.fresh([name])
    s.draft.operators.append(DraftOperator(out, kept, body, "sum", over))
    return Read(out, ())


def _map(s: Attempt, name: str, axes: tuple[int, ...], body: Expr) -> Expr:
    out = s.draft.fresh([name])
    s.draft.operators.append(DraftOperator(out, axes, body))
    return Read(out, ())


def _parted(
    x: ChainValue, along: Along, extents: Sequence[int], dimensions: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes that are reduced, and those that are kept."""
    if any(extents[d] > 1 and not along[d] for d in dimensions):
        raise Unliftable("it reduces a dimension along which its argument does not vary")
    over = axes_of([along[d] for d in dimensions])
    if not over:
        raise Unliftable("it reduces a single element")
    return over, tuple(a for a in x.axes if a not in over)
