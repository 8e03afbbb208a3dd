"""Turns matrix products whose left operand is constant, where the rows of the right one lie badly.

A convolution of single positions multiplies weights by columns of data, one for each position. On a
CPU vectors lie along the columns: with 7 x 7 positions they are padded, and each row of the data
begins at another place of a cache line. Turned, positions are rows, and columns are those of the
weights, which are laid out when a model is compiled. What is stored lies apart then, but there is
one such element for each sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcfuser.chain.roles import Product, contiguous_axes, product
from mcfuser.chain.strides import strides_of
from mcfuser.chain.values import BYTES, Chain, Tensor, rewritten
from mcfuser.expr import Expr, Index, Read

FEW = 256
"""Columns from which on a product is faster as it is (AVX2, 2026-11-25: 1,000 columns of a depth of
64 took 0.88 of the time, 3,025 columns 0.97; 49 and 196 columns 0.4 to 1.0 of it when turned)."""
LINE = 64
"""Bytes of a cache line."""


def turned(chain: Chain) -> Chain:
    """The chain whose products with a constant left operand have it on the right, where the rows of
    the other one are short and end within a cache line. It computes the same elements of the same
    arrays; where an extent is known at run time only, it is the chain itself."""
    if any(not isinstance(a.extent, int) for a in chain.axes):
        return chain
    for o in chain.operators:
        roles = product(o)
        if roles is not None and _badly(chain, roles):
            chain = _first(chain, roles.columns, roles.batch)
    return chain


def _badly(chain: Chain, roles: Product) -> bool:
    """Whether a product is to be turned."""
    left, right = (chain.tensor(r.tensor) for r in (roles.left, roles.right))
    if not roles.rows or not left.constant or right.constant or right.name not in chain.inputs:
        return False
    beside = {*roles.columns} & {*contiguous_axes(chain, roles.right)}
    return any(n < FEW and n * BYTES[right.dtype] % LINE for n in map(chain.size, beside))


def _first(chain: Chain, columns: tuple[str, ...], batch: tuple[str, ...]) -> Chain:
    """The chain in which every operator keeps these axes before all others but the batch axes: then
    the operand of a product that has them is the left one."""

    def ordered(axes: tuple[str, ...]) -> tuple[str, ...]:
        if not {*columns} <= {*axes}:
            return axes
        return tuple(sorted(axes, key=lambda a: (a not in batch, a not in columns)))

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor in chain.inputs:
            return node
        at = dict(zip(chain.operator(node.tensor).axes, node.indices, strict=True))
        return Read(node.tensor, tuple(at[a] for a in ordered(tuple(at))))

    def tensors() -> Iterator[Tensor]:
        for t in chain.tensors:
            before = () if t.name in chain.inputs else chain.operator(t.name).axes
            after = ordered(before)
            if after == before:
                yield t
            elif t.name not in chain.outputs:
                yield replace(t, shape=after)
            else:
                steps = dict(zip(before, strides_of(chain, t.name), strict=True))
                yield replace(t, shape=after, strides=tuple(steps[a] for a in after))

    operators = tuple(replace(rewritten(o, leaf), axes=ordered(o.axes)) for o in chain.operators)
    return Chain(chain.name, chain.axes, tuple(tensors()), operators, chain.outputs)
