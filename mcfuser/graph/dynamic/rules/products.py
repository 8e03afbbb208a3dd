"""Matrix products: padded positions of what is summed over become zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcfuser.graph.dynamic.layout import (
    Layout,
    Operand,
    PaddedDimension,
    all_zero,
    extents,
    is_dynamic,
    plain,
    same,
)
from mcfuser.graph.dynamic.node import PaddedNode
from mcfuser.graph.dynamic.rules.elementwise import broadcast


def matmul(n: PaddedNode) -> list[Operand]:
    """MatMul of operands of any rank."""
    a, b = n.operand(0), n.operand(1)
    deep, over = len(a.layout) - 1, max(0, len(b.layout) - 2)
    a, b = _contracted(n, a, [deep], b, [over])
    names = n.same(a, b)
    batch = broadcast(n, [Operand("", x.layout[:-2]) for x in (a, b)])
    rows = a.layout[-2:-1] if len(a.layout) > 1 else ()
    columns = b.layout[-1:] if len(b.layout) > 1 else ()
    layout = (*batch, *_kept(rows, b.finite), *_kept(columns, a.finite))
    return n.result(names[0], layout, a.finite and b.finite)


def gemm(n: PaddedNode) -> list[Operand]:
    """Gemm, with or without its third operand."""
    a, b = n.operand(0), n.operand(1)
    across, down = int(n.attribute("transA", 0)), int(n.attribute("transB", 0))
    a, b = _contracted(n, a, [1 - across], b, [down])
    added = n.operand(2) if n.has(2) else None
    names = n.write([x.name for x in (a, b, added) if x is not None])
    layout: Layout = (plain(a.layout[across]), plain(b.layout[1 - down]))
    if added is not None:
        layout = broadcast(n, [Operand("", layout), added])
    return n.result(names[0], layout, all(x is None or x.finite for x in (a, b, added)))


def einsum(n: PaddedNode) -> list[Operand]:
    """Einsum of one or two operands, without an ellipsis."""
    equation = "".join(str(n.attribute("equation")).split())
    terms, arrow, wanted = equation.partition("->")
    letters = terms.split(",")
    read = n.operands()
    dynamic = any(is_dynamic(d) for x in read for d in x.layout)
    if dynamic and (not arrow or "." in equation or len(letters) > 2):
        raise n.refusal(f"its equation '{equation}' has an ellipsis, no result or many operands")
    if dynamic:
        of = {c: x.layout[i] for s, x in zip(letters, read, strict=True) for i, c in enumerate(s)}
        for s, x in zip(letters, read, strict=True):
            for i, c in enumerate(s):
                if not same(of[c], x.layout[i]):
                    raise n.refusal(f"its letter '{c}' stands for two different run-time extents")
        summed = [[i for i, c in enumerate(s) if c not in wanted] for s in letters]
        read = (
            list(_contracted(n, read[0], summed[0], read[1], summed[1]))
            if len(read) == 2
            else [n.masked(read[0], 0, summed[0], 0)]
        )
        layout = tuple(plain(of[c]) for c in wanted)
    else:
        layout = n.result_layout()
    return n.result(n.same(*read)[0], layout, all(x.finite for x in read))


def integer_matmul(n: PaddedNode) -> list[Operand]:
    """MatMulInteger over an extent that is fixed."""
    a, b = n.operand(0), n.operand(1)
    n.static(a, [len(a.layout) - 1], "over which it sums")
    n.static(b, [max(0, len(b.layout) - 2)], "over which it sums")
    for i in (2, 3):
        if n.has(i) and any(map(is_dynamic, n.operand(i).layout)):
            raise n.refusal("a zero point of each row is known only at run time")
    names = n.write([n.operand(i).name if n.has(i) else "" for i in range(len(n.node.input))])
    batch = broadcast(n, [Operand("", x.layout[:-2]) for x in (a, b)])
    layout = (*batch, *map(plain, a.layout[-2:-1]), *map(plain, b.layout[-1:]))
    return n.result(names[0], layout, True)


def _contracted(
    n: PaddedNode, a: Operand, of_a: Sequence[int], b: Operand, of_b: Sequence[int]
) -> tuple[Operand, Operand]:
    """The two operands of a sum of products over some of their dimensions, such that each product
    at a padded position is zero: one of the factors is, and the other is finite."""
    left, right = [a.layout[d] for d in of_a], [b.layout[d] for d in of_b]
    if len(left) == len(right) == 1 and not same(left[0], right[0]):
        sizes = f"{extents(left[0], 1)[0]} and {extents(right[0], 1)[0]}"
        raise n.refusal(f"it sums over two different run-time extents, {sizes} here")
    if not any(map(is_dynamic, (*left, *right))):
        return a, b
    zero_a, zero_b = all(map(all_zero, left)), all(map(all_zero, right))
    if (zero_a and b.finite) or (zero_b and a.finite):
        return a, b
    if not zero_a and not zero_b and a.finite and b.finite:
        if _size(a) <= _size(b):
            return n.masked(a, 0, of_a, 0), b
        return a, n.masked(b, 1, of_b, 0)
    return n.masked(a, 0, of_a, 0), n.masked(b, 1, of_b, 0)


def _size(x: Operand) -> int:
    return math.prod(f.upper for d in x.layout for f in d)


def _kept(dims: Sequence[PaddedDimension], finite: bool) -> Layout:
    """Dimensions of one operand in a product's result, whose zeros stay where the other operand is
    finite."""
    return tuple(d if finite else plain(d) for d in dims)
