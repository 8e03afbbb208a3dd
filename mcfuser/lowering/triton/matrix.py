"""Inputs that Triton loads as the matrices that products take.

An operand of several axes along a dimension of the matrix, such as the rows of several batches, may
be loaded in the dimensions of its tensor and be given those of the matrix afterwards. Triton does
that in registers then: the operand passes through them, where the tensor cores would read it in
shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from mcfuser.chain import BYTES, Chain, Product
from mcfuser.chain.merged import VECTOR
from mcfuser.expr import Call
from mcfuser.lowering.triton.address import address, position_along
from mcfuser.lowering.uses import reads_of
from mcfuser.space.statement import Compute, Load

MatrixAxes = tuple[tuple[str, ...], ...]
"""The axes along each dimension of a matrix, or of several."""


def matrices(
    chain: Chain,
    loads: Mapping[str, Load],
    computed: list[Compute],
    dots: Mapping[str, Product],
    extending: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> dict[str, MatrixAxes]:
    """The loaded buffers of which nothing but products reads anything, always as the same matrix
    that has several axes along a dimension; each with the axes of its dimensions.

    `computed` are all computations, `dots` the products among them, and `extending` gives those of
    some axes that are dimensions of tiles.
    """
    found = dict[str, MatrixAxes]()
    for name, load in loads.items():
        readers = [s for s in computed if name in {r.tensor for r in reads_of(s)}]
        seen = {g for s in readers for g in _taken(s, name, dots, extending)}
        if len(seen) != 1:
            continue
        (groups,) = seen
        if groups and any(len(g) > 1 for g in groups) and _copied(chain, load, groups):
            found[name] = groups
    return found


def divisor(chain: Chain, load: Load, group: tuple[str, ...]) -> int:
    """The largest power of two that what some axes add to the addresses of a load is a multiple
    of, in elements."""
    moves, _ = address(chain, chain.tensor(load.read.tensor), load.read.indices)
    number = math.gcd(*(step.number for a in group for step in moves.get(a, ())))
    return number & -number


def _taken(
    s: Compute,
    name: str,
    dots: Mapping[str, Product],
    extending: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> Iterator[MatrixAxes]:
    """The matrices as which a computation takes a buffer; no groups where it takes it otherwise."""
    roles = dots.get(s.operator.out)
    body = s.body
    if roles is None or s.domain is not None or any(s.masked_factors) or not isinstance(body, Call):
        yield ()
        return
    sides = {
        roles.left.tensor: (roles.batch, roles.rows, roles.depth),
        roles.right.tensor: (roles.batch, roles.depth, roles.columns),
    }
    if len(sides) < 2 or name not in sides or {roles.left, roles.right} != {*body.args}:
        yield ()
        return
    yield tuple(group for group in map(extending, sides[name]) if group)


def _copied(chain: Chain, load: Load, groups: MatrixAxes) -> bool:
    """Whether a matrix is loaded in as large pieces as its tile, and what lies outside an array is
    seen along one dimension of it. Of addresses with other dimensions than their axes, Triton knows
    what they are multiples of only as it is told (`divisor`)."""
    tensor = chain.tensor(load.read.tensor)
    least = VECTOR // BYTES[tensor.dtype]
    if any(len(g) > 1 and divisor(chain, load, g) % least for g in groups):
        return False
    if any(p.value for p in tensor.padding):
        return False
    padded = padded_axes(chain, load)
    return sum(bool(padded & {*g}) for g in groups) <= 1


def padded_axes(chain: Chain, load: Load) -> set[str]:
    """The axes along which a load may leave an array that has padding."""
    tensor, at = chain.tensor(load.read.tensor), load.read.indices
    moves = (position_along(chain, tensor, at, i)[0] for i in range(len(tensor.padding)))
    return {a for along in moves for a in along}
