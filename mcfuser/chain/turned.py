"""Turns matrix products with constants, where the other operand lies badly.

A convolution of single positions multiplies weights by columns of data, one for each position. On a
CPU vectors lie along the columns: with 7 x 7 positions they are padded, and each row of the data
begins at another place of a cache line. Turned, positions are rows, and columns are those of the
weights, which are laid out when a model is compiled. What is stored lies apart then, but there is
one such element for each sum.

Of several pictures, positions are rows, since the weights have no axis of the pictures. Turned,
they are columns, as those of one picture are: 128 channels to 1,024, of 4 pictures of 1,024
positions, take 7.7 ms instead of 12 (an EPYC with AVX2, two cores, 2026-11-28).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcfuser.chain.matrix_product import Product
from mcfuser.chain.roles import contiguous_axes, overlaps
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
    the other one are short and end within a cache line, and those with one on the right have it on
    the left, where rows of both the other operand and the result lie side by side, and are long. It
    computes the same elements of the same arrays; where an extent is known at run time only, it is
    the chain itself."""
    if any(not isinstance(a.extent, int) for a in chain.axes):
        return chain
    for name in [o.out for o in chain.operators]:
        roles = chain.operator(name).product
        if roles is not None and (_badly(chain, roles) or _across(chain, roles)):
            chain = _first(chain, roles.columns, roles.batch)
    return chain


def _badly(chain: Chain, roles: Product) -> bool:
    """Whether weights are on the left, and rows of the other operand short."""
    left, right = (chain.tensor(r.tensor) for r in (roles.left, roles.right))
    if not roles.rows or not left.constant or right.constant or right.name not in chain.inputs:
        return False
    beside = {*roles.columns} & {*contiguous_axes(chain, roles.right)}
    return any(_short(chain.size(a), right) for a in beside)


def _across(chain: Chain, roles: Product) -> bool:
    """Whether vectors of a product's columns would lie across memory, and those of its rows along
    it."""
    left, right = (chain.tensor(r.tensor) for r in (roles.left, roles.right))
    if not roles.columns or not right.constant or left.constant:
        return False
    if left.name not in chain.inputs:
        beside = {*roles.rows} & {*chain.operator(left.name).axes[-1:]}
    elif overlaps(chain, roles.left):
        return False  # positions of windows are rows, of one picture as well
    else:
        beside = {*roles.rows} & {*contiguous_axes(chain, roles.left)}
    for name in chain.outputs:
        named = zip(chain.operator(name).axes, strides_of(chain, name), strict=True)
        beside &= {a for a, stride in named if stride == 1}
    return any(not _short(chain.size(a), left) for a in beside)


def _short(columns: int, tensor: Tensor) -> bool:
    """Whether a tensor's rows of so many elements are few for vectors, and end within a line."""
    return columns < FEW and columns * BYTES[tensor.dtype] % LINE != 0


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
    return replace(chain, tensors=tuple(tensors()), operators=operators)
