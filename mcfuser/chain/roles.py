"""Which operators are matrix products, the roles of their axes, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mcfuser.chain.strides import flat_size, strides_of
from mcfuser.chain.values import BYTES, Chain, Operator, ProductPrecision, digits, sources
from mcfuser.expr import DISCRETE, NARROW, Call, Cast, Expr, Read, axes, reads


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


def product(operator: Operator) -> Product | None:
    """The roles of the axes of a sum over a product of two reads, which may be cast to float types;
    None where the operator is none.

    The left operand is the one whose own axes come first in the output.
    """
    body = operator.body
    if operator.reduce != "sum" or not isinstance(body, Call) or body.op != "mul":
        return None
    pair = [_without_casts(a) for a in body.args]
    if not all(isinstance(p, Read) for p in pair):
        return None
    one, two = (p for p in pair if isinstance(p, Read))
    a, b = set(axes(one)), set(axes(two))
    related = operator.related
    if set(operator.over) - (a & b) or set(related) - (a | b):
        return None
    only = [x for x in operator.axes if (x in a) != (x in b)]
    if not only:
        return None  # a dot product of rows: neither operand is used twice
    if only[0] in b:
        one, two, a, b = two, one, b, a
    return Product(
        one,
        two,
        batch=tuple(x for x in operator.axes if x in a and x in b),
        rows=tuple(x for x in operator.axes if x in a and x not in b),
        columns=tuple(x for x in operator.axes if x in b and x not in a),
        depth=operator.over,
    )


WINDOW = 64
"""The most positions of a window that is walked position by position."""


def over_window(chain: Chain, operator: Operator) -> bool:
    """Whether an operator multiplies the windows of each channel by that channel's weights, as a
    depthwise convolution does: a product with rows or columns alone, so no matrix product, that
    sums over few positions, and whose windows overlap."""
    roles = product(operator)
    if roles is None or (roles.rows and roles.columns):
        return False
    extents = [chain.extent(a) for a in roles.depth]
    few = math.prod(e if isinstance(e, int) else WINDOW + 1 for e in extents) <= WINDOW
    return few and any(overlaps(chain, r) for r in (roles.left, roles.right))


def contiguous_axes(chain: Chain, r: Read) -> list[str | None]:
    """The axes along which positions of a read lie side by side, but for padding; None for an index
    that is not one axis."""
    every = zip(r.indices, strides_of(chain, r.tensor), strict=True)
    return [i.plain for i, stride in every if [d.stride for d in digits(stride, 0)] == [1]]


def overlaps(chain: Chain, r: Read) -> bool:
    """Whether positions of a read share elements, but for those along dimensions of stride 0."""
    moving = zip(r.indices, strides_of(chain, r.tensor), strict=True)
    along = {a for index, stride in moving if stride for a in index.axes}
    return math.prod(chain.size(a) for a in along) > flat_size(chain, r.tensor)


def _without_casts(e: Expr) -> Expr:
    """The expression without outer casts between float types; one to integers changes the value."""
    while isinstance(e, Cast) and e.dtype not in DISCRETE:
        e = e.arg
    return e


def with_precision(chain: Chain, precision: ProductPrecision) -> Chain:
    """The chain with a precision of its products, if it has one of float32 operands."""
    if precision == chain.precision:
        return chain
    bodies = [o.body for o in products(chain)]
    wide = any(
        (a.dtype if isinstance(a, Cast) else chain.tensor(a.tensor).dtype) == "float32"
        for body in bodies if isinstance(body, Call)
        for a in body.args if isinstance(a, Cast | Read)
    )  # fmt: skip
    return replace(chain, precision=precision) if wide else chain


def products(chain: Chain) -> tuple[Operator, ...]:
    """The operators of a chain that are matrix products, in order."""
    return tuple(o for o in chain.operators if product(o) is not None)


def made_weights(chain: Chain) -> set[str]:
    """What maps compute from constants alone, for other operators of the chain."""
    known = {n for n in chain.inputs if chain.tensor(n).constant}
    for o in chain.operators:
        plain = o.reduce == "none" and o.out not in chain.outputs
        if plain and known.issuperset(r.tensor for r in sources(o)):
            known.add(o.out)
    return known.difference(chain.inputs)


def dequantized(chain: Chain) -> set[str]:
    """What maps compute from narrow integers that the chain is given, and from single numbers, for
    other operators: it is quicker to compute them than to read them."""
    return {o.out for o in chain.operators if o.out not in chain.outputs and _dequantizes(chain, o)}


def _dequantizes(chain: Chain, o: Operator) -> bool:
    """Whether an operator is such a map."""
    if o.reduce != "none" or o.domain is not None:
        return False
    read = {r.tensor for r in reads(o.body) if axes(r)}
    return bool(read) and all(n in chain.inputs and chain.tensor(n).dtype in NARROW for n in read)


def shared_axes(chain: Chain) -> tuple[str, ...]:
    """The axes that every operator keeps."""
    kept = [set(o.axes) for o in chain.operators]
    return tuple(a.name for a in chain.axes if all(a.name in k for k in kept))


def batch_axes(chain: Chain) -> tuple[str, ...]:
    """The axes that every operator keeps and that are batch axes of every product.

    Their loops are only ever bound to the grid. There are none in a chain without products; and the
    innermost axis of a product without columns is none, for its results fill vectors.
    """
    common = set(shared_axes(chain))
    for operator in chain.operators:
        if (roles := product(operator)) is not None:
            common &= set(roles.batch)
            if not roles.columns:
                common.discard(operator.axes[-1])
    if not products(chain):
        common = set()
    return tuple(a.name for a in chain.axes if a.name in common)


def flops(chain: Chain) -> int:
    """Floating-point operations of the products: two for each element of each iteration space."""
    return sum(2 * math.prod(chain.size(a) for a in o.related) for o in products(chain))


def nbytes(chain: Chain, tensor: str) -> int:
    """The bytes of a tensor's elements in memory. Those that several positions share, as windows
    that overlap do, count once."""
    t = chain.tensor(tensor)
    count = math.prod(chain.shape(tensor))
    if t.strides is not None:
        count = min(count, flat_size(chain, tensor) - t.offset)
    return count * BYTES[t.dtype]
