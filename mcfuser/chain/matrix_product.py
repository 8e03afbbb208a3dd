"""Which sums are matrix products, and the roles of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcfuser.expr import DISCRETE, Call, Cast, Expr, Read, axes


@dataclass(frozen=True, slots=True)
class Product:
    """The roles that axes play in an operator that is a matrix product.

    `left` and `right` are the two reads. `rows` index the left one only, `columns` the right one
    only. `depth` and `batch` index both; `depth` is summed over, `batch` is kept.
    """

    left: Read
    right: Read
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    depth: tuple[str, ...]


def matrix_product(kept: Sequence[str], over: tuple[str, ...], body: Expr) -> Product | None:
    """The roles of the axes of a sum of `body` over some axes, for every position of the `kept`
    ones; None where the body is no product of two reads, which may be cast to float types.

    The left operand is the one whose own axes come first in the output.
    """
    if not isinstance(body, Call) or body.op != "mul":
        return None
    one, two = (_without_casts(a) for a in body.args)
    if not isinstance(one, Read) or not isinstance(two, Read):
        return None
    a, b = set(axes(one)), set(axes(two))
    if set(over) - (a & b) or {*kept, *over} - (a | b):
        return None
    only = [x for x in kept if (x in a) != (x in b)]
    if not only:
        return None  # a dot product of rows: neither operand is used twice
    if only[0] in b:
        one, two, a, b = two, one, b, a
    return Product(
        one,
        two,
        batch=tuple(x for x in kept if x in a and x in b),
        rows=tuple(x for x in kept if x in a and x not in b),
        columns=tuple(x for x in kept if x in b and x not in a),
        depth=over,
    )


def _without_casts(e: Expr) -> Expr:
    """The expression without outer casts between float types; one to integers changes the value."""
    while isinstance(e, Cast) and e.dtype not in DISCRETE:
        e = e.arg
    return e
