"""Powers for Triton, which has none: by products, roots, and exponentials of logarithms."""

from __future__ import annotations

import math

from mcfuser.expr import Call, Const, Expr, call

PLAIN = (2.0, 3.0, 0.5, -0.5, -1.0)
"""Exponents that are written as products, roots and quotients."""


def power(e: Call) -> Expr | None:
    """`pow(x, y)` by what Triton has; None where the exponent is one of PLAIN.

    `0 ** 0` is 1, and so is `x ** 0`; of a negative x, a power whose exponent is whole has the sign
    of an odd or an even product, any other is no number.
    """
    x, y = e.args
    if isinstance(y, Const):
        return _constant(x, float(y.value))
    if isinstance(x, Const) and x.value > 0:
        return call("exp2", call("mul", y, math.log2(x.value)))
    size = _size(x, y)
    odd = call("ne", call("floor", call("mul", y, 0.5)), call("mul", y, 0.5))
    whole = call("eq", call("floor", y), y)
    below = call("select", whole, call("select", odd, call("neg", size), size), math.nan)
    some = call("select", call("lt", x, 0.0), below, size)
    return call("select", call("eq", y, 0.0), 1.0, some)


def _constant(x: Expr, y: float) -> Expr | None:
    if y in PLAIN:
        return None
    if y == 0.0:
        return call("select", call("eq", x, x), 1.0, 1.0)
    if y == 1.0:
        return call("mul", x, 1.0)
    if y == int(y):
        size = _size(x, Const(y))
        return size if y % 2 == 0 else call("select", call("lt", x, 0.0), call("neg", size), size)
    return call("exp2", call("mul", call("log", x), y / math.log(2)))


def _size(x: Expr, y: Expr) -> Expr:
    """`|x| ** y`: of 0, infinite where y is below zero."""
    logarithm = call("mul", call("log", call("abs", x)), 1 / math.log(2))
    return call("exp2", call("mul", logarithm, y))
