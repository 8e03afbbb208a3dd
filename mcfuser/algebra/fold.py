"""Folding: a map that only one other map reads is written into it, so a tile is walked once."""

from __future__ import annotations

from mcfuser.chain import Chain, Operator, inline
from mcfuser.expr import Call, Read, walk

CHEAP = 2
"""Operations of a map that may be computed again for each time that it is read."""


def fold(chain: Chain) -> Chain:
    """The chain without maps that exactly one operator, itself a map, reads."""
    for operator in chain.operators:
        read_by = chain.readers(operator.out)
        if len(read_by) == 1 and _folds(chain, operator, read_by[0]):
            return fold(inline(chain, operator.out))
    return chain


def _folds(chain: Chain, operator: Operator, reader: Operator) -> bool:
    maps = operator.reduce == "none" and reader.reduce == "none"
    plain = operator.domain is None and reader.domain is None
    wide = chain.tensor(operator.out).dtype == "float32"
    times = sum(isinstance(n, Read) and n.tensor == operator.out for n in walk(reader.body))
    work = sum(isinstance(n, Call) for n in walk(operator.body))
    light = times == 1 or work <= CHEAP
    return maps and plain and wide and light and operator.out not in chain.outputs
