"""Lifts matrix products."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce

from tvm import relax

from mcfuser.expr import Call, Cast, Const, Expr, Read, call, reads, uncast
from mcfuser.graph.attempt import Attempt, ChainValue, along_of, stored_tensor, unify
from mcfuser.graph.dataflow import FLOATS, Dataflow, dtype, shape
from mcfuser.graph.draft import DraftOperator, positions
from mcfuser.graph.layout import has_channels_last, is_pointwise
from mcfuser.graph.operand import axes_of, factor, scaled
from mcfuser.graph.scalar import simplify
from mcfuser.graph.views import Along, Axes, Unliftable, broadcast


def lifted_product(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A matrix product of two values, each computed by the chain or read."""
    _check(value)
    unify(s, lambda: _shared(s, value))
    batch, rows, columns, depth = _dimensions(s, v, value)
    if len(depth) > 1 and s.flow.kinds.get(value.args[1]) == "constant" and _reduced(s, value):
        raise Unliftable(f"the blocks of the weights of '{v.name}' would cut another reduction")
    s.batch |= set(axes_of(batch))
    first = all(o.factors is None for o in s.draft.operators)
    operands: list[Expr] = []
    scale, scales, domain = 1.0, list[Expr](), None
    sides = [(value.args[0], [*batch, rows, depth]), (value.args[1], [*batch, depth, columns])]
    if turned := has_positions_left(s.flow, v, s.result, s.values):
        sides.reverse()
    for role, (a, along) in zip(("left", "right"), sides, strict=True):
        if a in s.values:
            inner = s.values[a] if s.values[a].shown is None else s.values[a].plain
            if s.flow.kinds[a] == "constant" or a in s.flow.widened:
                element, factors = unscaled(s, inner.expr, axes_of([depth]))
                scales += factors
                if is_loaded(s, element):
                    operands.append(Cast(uncast(element), dtype(a)))
                    continue
                inner = replace(inner, expr=element)
            domain = _both(domain, inner.nonzero)
            stored = Read(stored_tensor(s, replace(inner, nonzero=None), "P", "W"), ())
            operands.append(stored if dtype(a) == "float32" else Cast(stored, dtype(a)))
            continue
        order = axes_of([*batch, depth, rows]) if turned and role == "right" else axes_of(along)
        name, number = factor(s, a, along, s.names[role if first else "outer"], order)
        operands.append(Read(name, ()))
        scale *= number
    layout = broadcast([*batch, rows, columns], shape(v))
    axes = axes_of([*batch, rows, columns])
    kept = axes_of([*batch, columns, rows]) if turned else axes
    axes = kept if has_channels_last(s.flow, v, s.result) else axes
    out = s.draft.fresh([s.names["first" if first else "second"]])
    one, two = (_tensor_read(e) for e in operands)
    s.draft.operators.append(
        DraftOperator(
            out, kept, call("mul", *operands), "sum", axes_of([depth]), (one, two), domain
        )
    )
    element = simplify("mul", Read(out, ()), Const(scale))
    return ChainValue(rescaled(s, element, scales), axes, layout)


def rescaled(s: Attempt, element: Expr, scales: Sequence[Expr]) -> Expr:
    """A sum times the factors that were taken out of what is summed, those of rows first."""
    rows_first = sorted(scales, key=lambda e: not _varies(s, e))
    return reduce(partial(scaled, s), rows_first, element)


def has_positions_left(
    flow: Dataflow, v: relax.Var, result: relax.Var, computed: Container[relax.Expr] = ()
) -> bool:
    """Whether the columns of a product are positions of a picture, and that or what a chain with
    this `result` computes of it has its channels last, or integers are multiplied: then they are
    the rows of what is computed, and its constant matrix is the right operand. `computed` are the
    values that the chain computes; of those that it makes of integers, it reads these."""
    value = flow.values[v]
    matrix, data = value.args
    whole = data in flow.widened and flow.kinds.get(matrix) == "constant"
    read = data not in computed or data in flow.widened
    last = has_channels_last(flow, v, result)
    turned = last or whole or (read and data in flow.channels_last)
    return turned and is_pointwise(flow, value)


def unscaled(s: Attempt, e: Expr, depth: Sequence[int]) -> tuple[Expr, list[Expr]]:
    """An operand without the factors that do not vary along the depth of its product, and these:
    they multiply sums instead of what is summed."""
    if isinstance(e, Call) and e.op == "mul":
        for kept, other in (e.args, e.args[::-1]):
            if _varies(s, other).isdisjoint(depth):
                element, more = unscaled(s, kept, depth)
                return element, [*more, other]
    return e, []


def _varies(s: Attempt, e: Expr) -> set[int]:
    """The axes along which an expression varies."""
    along = (a for r in reads(e) for a in s.draft.axes(r.tensor))
    return {*along, *positions(e)}


def is_loaded(s: Attempt, e: Expr) -> bool:
    """Whether an expression is an input, cast to another type at most."""
    inner = uncast(e)
    return isinstance(inner, Read) and inner.tensor in s.draft.sources


def _check(value: relax.Call) -> None:
    left, right = value.args
    if len(shape(left)) < 2 or len(shape(right)) < 2:
        raise Unliftable("an operand is a vector")
    if dtype(left) != dtype(right) or dtype(left) not in FLOATS:
        raise Unliftable(
            f"it multiplies {dtype(left)} by {dtype(right)}, not floats of 16 or 32 bits"
        )
    if shape(left)[-1] == 1:
        raise Unliftable("its depth is 1, so nothing is summed")


def _reduced(s: Attempt, value: relax.Call) -> bool:
    """Whether the left operand is computed from a reduction of the chain. The axes of the blocks
    would be loops beside those of that reduction, and pricing all orders of so many takes a
    minute."""
    if value.args[0] not in s.values:
        return False
    left, found = [s.values[value.args[0]].expr], set[str]()
    made = {o.out: o for o in s.draft.operators}
    while left:
        for r in reads(left.pop()):
            if r.tensor in made and r.tensor not in found:
                found.add(r.tensor)
                left.append(made[r.tensor].body)
    return any(made[name].reduce != "none" for name in found)


def _shared(s: Attempt, value: relax.Call) -> Iterator[tuple[Axes, Axes]]:
    """Axes of the two operands that are the same: the depth's, and those of batch dimensions."""
    left, right = value.args
    if left not in s.values or right not in s.values:
        return
    one, two = along_of(s, left), along_of(s, right)
    yield one[-1], two[-2]
    for a, b in zip(reversed(one[:-2]), reversed(two[:-2]), strict=False):
        if a and b:
            yield a, b


def _dimensions(s: Attempt, v: relax.Var, value: relax.Call) -> tuple[Along, Axes, Axes, Axes]:
    """The axes of the batch dimensions, the rows, the columns and the depth; new ones for what no
    operand in the chain has."""
    left, right = (along_of(s, a) if a in s.values else None for a in value.args)
    extents, sides = shape(v), [side for side in (left, right) if side is not None]
    batch: Along = []
    for i in range(len(extents) - 2):
        at = i - (len(extents) - 2)
        known = [side[at - 2] for side in sides if len(side) >= 2 - at and side[at - 2]]
        batch.append(known[0] if known else s.dimension(extents[i]))
    rows = left[-2] if left is not None else s.dimension(shape(value.args[0])[-2])
    columns = right[-1] if right is not None else s.dimension(shape(value.args[1])[-1])
    if left is not None:
        depth = left[-1]
    else:
        depth = right[-2] if right is not None else s.dimension(shape(value.args[0])[-1])
    if not depth:
        raise Unliftable("an operand does not vary along the depth of its product")
    return batch, rows, columns, depth


def _both(one: Expr | None, two: Expr | None) -> Expr | None:
    if one is None or two is None:
        return two if one is None else one
    return call("and", one, two)


def _tensor_read(e: Expr) -> str:
    inner = uncast(e)
    assert isinstance(inner, Read)
    return inner.tensor
