"""Whole numbers that stay exact: what 32 bits may not hold is computed in 64.

Positions and int32 tensors are computed in 32 bits. A sum or product of them may need more, and a
kernel would wrap around in silence where the chain's meaning does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mcfuser.chain import Chain, whole_range
from mcfuser.expr import (
    BOUNDS,
    CONDITIONS,
    DISCRETE,
    NARROW,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    call,
)

MOST = 2**31 - 1
_KEEPING = ("max", "min", "select", "floor", "round", "shift_right")
_LIMITS = {"bool": 1.0, "uint8": 2.0**8, "int8": 2.0**7, "int16": 2.0**15, "int32": 2.0**31,
           "int64": 2.0**63}  # fmt: skip
"""How large the numbers of a type are, either sign."""
_GROWING = ("add", "sub", "mul", "neg", "abs")


@dataclass(frozen=True, slots=True)
class _Range:
    """A whole number is at most so large, either sign; `wide` if it is computed in 64 bits."""

    most: float
    wide: bool


def exact(chain: Chain) -> Chain:
    """The chain whose arithmetic on whole numbers takes int64 operands where it may overflow."""
    operators = tuple(
        replace(
            o,
            body=_bounded(chain, o.out, _exact(chain, o.body)[0]),
            domain=_exact(chain, o.domain)[0] if o.domain is not None else None,
        )
        for o in chain.operators
    )
    return chain if operators == chain.operators else replace(chain, operators=operators)


def _bounded(chain: Chain, out: str, body: Expr) -> Expr:
    """The body of an operator whose result is a narrow integer, between the bounds of its type."""
    dtype = chain.tensor(out).dtype
    if dtype not in NARROW:
        return body
    (low, high), found = BOUNDS[dtype], whole_range(chain, body)
    if found is None or found[0] < low or found[1] > high:
        body = call("min", call("max", body, float(low)), float(high))
    return Cast(body, "int32")


def _exact(chain: Chain, e: Expr) -> tuple[Expr, _Range | None]:
    """The expression, and its range where it is a whole number."""
    if isinstance(e, Cast):
        inside, range_ = _exact(chain, e.arg)
        return Cast(inside, e.dtype), _of(e.dtype, range_)
    if not isinstance(e, Call):
        return e, _leaf(chain, e)
    both = [_exact(chain, a) for a in e.args]
    args, ranges = tuple(a for a, _ in both), [r for _, r in both]
    if e.op in CONDITIONS:
        return Call(e.op, args), _Range(1, False)
    values = ranges[1:] if e.op == "select" else ranges
    known = [r for r in values if r is not None]
    if len(known) < len(values) or e.op not in (*_GROWING, *_KEEPING, "bit_and"):
        return Call(e.op, args), None
    sizes = [r.most for r in known]
    if e.op == "bit_and":  # of negative ones it may be lower than both: -3 and -5 is -7
        sizes = [2.0 ** math.ceil(math.log2(max(*sizes, 1.0)))]
    most = math.prod(sizes) if e.op == "mul" else sum(sizes) if e.op in _GROWING else max(sizes)
    wide = any(r.wide for r in known)
    if most > MOST and not wide and e.op in _GROWING:
        args, wide = tuple(Cast(a, "int64") for a in args), True
    return Call(e.op, args), _Range(most, wide)


def _leaf(chain: Chain, e: Expr) -> _Range | None:
    if isinstance(e, Index):
        return _Range(chain.size(e.axis) - 1, False)
    if isinstance(e, Read):
        return _of(chain.tensor(e.tensor).dtype, None)
    if isinstance(e, Const) and not isinstance(e.value, float):
        return _Range(abs(int(e.value)), abs(int(e.value)) > MOST)
    return None


def _of(dtype: str, inside: _Range | None) -> _Range | None:
    """The range of a value of a dtype, or of one `inside` a cast to it."""
    if dtype not in DISCRETE:
        return None
    limit = _LIMITS[dtype]
    return _Range(min(limit, inside.most) if inside is not None else limit, dtype == "int64")
