"""What operators of a chain are to each other, which of them are products, and what they cost."""

from __future__ import annotations

import math
from dataclasses import replace

from mcfuser.chain.strides import flat_size, strides_of
from mcfuser.chain.values import BYTES, Chain, Operator, ProductPrecision, digits, sources
from mcfuser.expr import NARROW, Call, Cast, Read, axes

WINDOW = 64
"""The most positions of a window that is walked position by position."""


def over_window(chain: Chain, operator: Operator) -> bool:
    """Whether an operator multiplies the windows of each channel by that channel's weights, as a
    depthwise convolution does: a product with rows or columns alone, so no matrix product, that
    sums over few positions, and whose windows overlap."""
    roles = operator.product
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
    return tuple(o for o in chain.operators if o.product is not None)


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
    read = {r.tensor for r in o.reads if axes(r)}
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
        if (roles := operator.product) is not None:
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
