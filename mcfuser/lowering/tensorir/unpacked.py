"""Weights that a micro-kernel makes of constants in registers.

Weights of few bits become numbers by a map: shifts, zero points, scales. Where a product has so few
rows that it uses each of them in one micro-tile alone, they are made where they are used, and no
tile of them is ever in memory. What scales a block of weights multiplies the sum of its products,
and a number of four bits or less is looked up in a vector register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, Operator, made_weights
from mcfuser.expr import Call, Cast, Const, Expr, Index, axes, reads, replaced, walk
from mcfuser.lowering.tensorir.matrix import oriented
from mcfuser.lowering.tensorir.micro import WIDE
from mcfuser.space.plan import Floats, Ints
from mcfuser.space.reference import value
from mcfuser.space.statement import Buffer, Compute, Statement, statements

FEW = 4
"""The most rows of such a product: all micro-tiles have as many."""


LOOKED_UP = "llvm.x86.avx512.permvar.sf.512"
"""LLVM's name of the instruction that gives for each of 16 numbers, of which it sees the four
lowest bits, the one of 16 floats in that place."""
_CODES = 16
_MASKS = (1, 3, 7, 15)
_CODE = Index("code")


@dataclass(frozen=True, slots=True)
class CodeTable:
    """A part of an expression, `made` of whole numbers of which some low bits count alone: for each
    of those that four bits have, its value."""

    made: Expr
    code: Expr
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MadeWeights:
    """Weights as `numbers` times a `scale`, which varies along the axes `outer` of the depth: sums
    of products along the `inner` ones are scaled. `table` has the values of a part of the numbers.
    """

    numbers: Expr
    scale: Expr
    outer: tuple[str, ...]
    inner: tuple[str, ...]
    table: CodeTable | None

    def steps(self, lanes: Ints, block: Floats) -> Floats:
        """Operations for each of the weights, in vectors of so many `lanes`, where a `block` of
        them has one scale."""
        looked_up = np.zeros(1)
        if self.table is not None:
            spared = operations(self.table.made) - operations(self.table.code) - 1
            looked_up = spared * (lanes == WIDE)
        steps: Floats = operations(self.numbers) - looked_up + (2 + operations(self.scale)) / block
        return steps


def operations(e: Expr) -> int:
    """Calls and casts that making a number takes."""
    return sum(isinstance(n, (Call, Cast)) for n in walk(e))


@lru_cache(maxsize=256)
def made_of(body: Expr, depth: tuple[str, ...]) -> MadeWeights | None:
    """How weights with this body are made, for a product with this depth; None where nothing scales
    whole blocks of them. What several numbers are made of comes first along the depth."""
    factors = _factors(body)
    scales = [f for f in factors if not {*depth} <= {*axes(f)}]
    numbers = [f for f in factors if f not in scales]
    outer = tuple(a for a in depth if any(a in axes(f) for f in scales))
    if not scales or len(numbers) != 1 or outer == depth:
        return None
    scale = reduce(lambda a, b: Call("mul", (a, b)), scales)
    every = {a for r in reads(numbers[0]) for a in axes(r) if len(r.indices) > 1}
    inner = sorted((a for a in depth if a not in outer), key=lambda a: a not in every)
    return MadeWeights(numbers[0], scale, outer, tuple(inner), _table(numbers[0]))


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Call) and e.op == "mul":
        return [f for a in e.args for f in _factors(a)]
    return [e]


def _table(numbers: Expr) -> CodeTable | None:
    """The largest part of an expression that few low bits of one whole number decide."""
    for made in walk(numbers):
        for node in walk(made):
            if not isinstance(node, Call) or node.op != "bit_and":
                continue
            (code, mask), inside = node.args, replaced(made, node, _CODE)
            alone = not reads(inside) and axes(inside) == (_CODE.axis,)
            if alone and isinstance(mask, Const) and mask.value in _MASKS:
                return CodeTable(made, code, _values(inside, int(mask.value)))
    return None


def _values(e: Expr, mask: int) -> tuple[float, ...]:
    """The values of an expression of a code for all that four bits may be."""
    codes = np.arange(_CODES) & mask
    values = value(e, _nothing, lambda a: codes)
    return tuple(map(float, np.broadcast_to(values, codes.shape)))


def _nothing(r: Expr) -> float:
    raise AssertionError(f"{r} is no part of a code")


def unpacked(
    chain: Chain,
    buffers: Mapping[str, Buffer],
    body: Sequence[Statement],
    tile: Callable[[str], Ints],
) -> dict[str, NDArray[np.bool_]]:
    """For each tile of weights that a map makes of constants for one product alone, which of some
    candidates make them in registers; `tile` gives the candidates' tiles of an axis."""
    maps = {out for out in made_weights(chain) if _scales(chain, chain.operator(out))}
    found: dict[str, NDArray[np.bool_]] = {}
    for s, _ in statements(body) if maps else ():
        if not isinstance(s, Compute) or s.domain is not None:
            continue
        if (roles := s.operator.product) is None:
            continue
        roles = oriented(roles)
        tiles = dict(zip(s.operator.reads, reads(s.body), strict=True))
        weights = tiles[roles.right].tensor
        if weights in maps and len(chain.readers(buffers[weights].tensor)) == 1:
            rows = np.asarray(1)
            for a in roles.rows:
                rows = rows * tile(a)
            found[weights] = np.asarray(rows <= FEW)
    return found


def _scales(chain: Chain, o: Operator) -> bool:
    """Whether weights are made of inputs, everywhere and wherever that is."""
    if o.domain is not None or not {r.tensor for r in o.reads} <= {*chain.inputs}:
        return False
    return not any(isinstance(n, Index) for n in walk(o.body))
