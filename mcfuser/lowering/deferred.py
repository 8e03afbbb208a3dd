"""Deferred products: matrix products whose result no other statement of the same iteration needs.

A loop may issue such a product one iteration later, to run at the same time as products of that
iteration, whatever the order in which its statements stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcfuser.chain import Product
from mcfuser.expr import Call, Expr, Read, reads
from mcfuser.lowering.uses import touched
from mcfuser.space.statement import Compute, Load, Repair, Statement


def deferred(
    body: Sequence[Statement], axis: str, products: Mapping[str, Product]
) -> tuple[Compute, ...]:
    """The deferred products among the statements of a loop over an axis, in their order.

    They are sums over the axis whose left operand the iteration computes, and whose result every
    other statement of the iteration leaves alone or multiplies. `products` are the matrix products
    by the tensor that they compute. A product of loaded operands alone is not deferred: it waits
    for nothing that the iteration computes.
    """
    loaded = {s.buffer for s in body if isinstance(s, Load)}
    written = {s.buffer for s in body if isinstance(s, Compute)}
    chosen = []
    for s in body:
        if not isinstance(s, Compute) or s.operator.out not in products:
            continue
        left = products[s.operator.out].left.tensor
        computed = left in written and left not in loaded
        if computed and axis in s.operator.over and only_scaled(body, s):
            chosen.append(s)
    return tuple(chosen)


def only_scaled(body: Sequence[Statement], s: Compute) -> bool:
    """The other statements of a loop's body leave what `s` sums up alone, or only multiply it."""
    return all(_scaled(other, s.buffer) for other in body if other is not s)


def _scaled(s: Statement, buffer: str) -> bool:
    """A statement leaves a buffer alone, or only multiplies it."""
    if not isinstance(s, Repair) or s.buffer != buffer:
        return buffer not in touched(s)
    return factor(s) is not None


def factor(s: Repair) -> Expr | None:
    """The factor by which a repair multiplies its buffer; None where it does anything else."""
    if not isinstance(s.h, Call) or s.h.op != "mul":
        return None
    one, two = s.h.args
    for own, other in ((one, two), (two, one)):
        if isinstance(own, Read) and own.tensor == s.buffer:
            return None if s.buffer in {r.tensor for r in reads(other)} else other
    return None
