"""Folding: a map that only one other map reads is written into it, so a tile is walked once."""

from __future__ import annotations

from mcfuser.chain import Chain, inline
from mcfuser.expr import reads


def fold(chain: Chain) -> Chain:
    """The chain without maps that exactly one operator, itself a map, reads."""
    for operator in chain.operators:
        readers = [
            o for o in chain.operators if any(r.tensor == operator.out for r in reads(o.body))
        ]
        alone = len(readers) == 1 and readers[0].reduce == "none" and operator.reduce == "none"
        plain = operator.domain is None and readers and readers[0].domain is None
        wide = chain.tensor(operator.out).dtype == "float32"
        if alone and plain and wide and operator.out not in chain.outputs:
            return fold(inline(chain, operator.out))
    return chain
