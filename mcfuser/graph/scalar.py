"""The scalar expressions of Relax's elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeGuard

from mcfuser.expr import Call, Const, Expr, Read, call, children

Build = Callable[..., Expr]
_SCALE = math.sqrt(2 / math.pi)  # of the argument of tanh, where it approximates gelu's erf


def simplify(op: str, *args: Expr) -> Expr:
    """The application of `op`, simplified so that its value changes by one rounding at most.

    A division by a constant becomes a product with the reciprocal, two constant factors become one,
    and factors of 1 and terms of 0 are left out. tanh(x) + 1 becomes the logistic function of 2x,
    2 / (1 + exp(-2x)), which has no difference of nearly equal numbers; and what multiplies a
    logistic function, its numerator, if one of the two is a constant.
    """
    if op == "div" and isinstance(args[1], Const) and args[1].value not in (0, math.inf, -math.inf):
        return simplify("mul", args[0], Const(1 / args[1].value))
    if op in ("mul", "add") and isinstance(args[0], Const):
        args = (args[1], args[0])
    if op == "mul" and isinstance(args[1], Const):
        if args[1].value == 1:
            return args[0]
        inner = args[0]
        if isinstance(inner, Const):
            return Const(inner.value * args[1].value)
        if isinstance(inner, Call) and inner.op == "mul" and isinstance(inner.args[1], Const):
            return simplify("mul", inner.args[0], Const(inner.args[1].value * args[1].value))
    if op in ("add", "sub") and args[1] == Const(0.0):
        return args[0]
    if op == "add" and args[1] == Const(1.0) and _is(args[0], "tanh"):
        return logistic(2.0, simplify("mul", args[0].args[0], Const(2.0)))
    if op == "mul":
        for by, quotient in (args, args[::-1]):
            if _is_logistic(quotient) and any(
                isinstance(factor, Const) for factor in (by, quotient.args[0])
            ):
                return call("div", simplify("mul", quotient.args[0], by), quotient.args[1])
    return Call(op, args)


def _is(e: Expr, op: str) -> TypeGuard[Call]:
    return isinstance(e, Call) and e.op == op


def _is_logistic(e: Expr) -> TypeGuard[Call]:
    """Whether it is a multiple of the logistic function."""
    return (
        _is(e, "div")
        and _is(e.args[1], "add")
        and e.args[1].args[1] == Const(1.0)
        and _is(e.args[1].args[0], "exp")
    )


def logistic(numerator: float | Expr, x: Expr) -> Expr:
    """numerator / (1 + exp(-x))."""
    return call("div", numerator, call("add", call("exp", _negative(x)), 1.0))


def _negative(x: Expr) -> Expr:
    return (
        simplify("mul", x, Const(-1.0))
        if _is(x, "mul") and isinstance(x.args[1], Const)
        else call("neg", x)
    )


def gelu(x: Expr) -> Expr:
    """The Gaussian error linear unit, with erf."""
    return call("mul", call("mul", x, 0.5), call("add", call("erf", call("mul", x, 0.5**0.5)), 1.0))


def gelu_tanh(x: Expr) -> Expr:
    """The Gaussian error linear unit, approximated with tanh: x / 2 * (1 + tanh(y)), which is
    x / (1 + exp(-2y))."""
    cube = call("mul", call("mul", x, x), x)
    return logistic(x, call("mul", call("add", x, call("mul", cube, 0.044715)), 2 * _SCALE))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return logistic(1.0, x)


def silu(x: Expr) -> Expr:
    """x * sigmoid(x)."""
    return logistic(x, x)


def leaky(x: Expr, alpha: float) -> Expr:
    """x, multiplied by `alpha` where it is negative."""
    return call("select", call("lt", x, 0.0), call("mul", x, alpha), x)


def where(condition: Expr, one: Expr, other: Expr) -> Expr:
    """`one` where the condition holds, else `other`.

    Where `one` replaces the NaN of a quotient q = p / sum, as exporters write it after a softmax,
    the condition becomes a test of the sum. The sum of a row's exponentials is at least 1, unless
    all scores are -inf: then it is about 0, or NaN. So `0.5 < sum` holds exactly where q is not
    NaN; it needs no division, and is right even where exp(-inf) is slightly above 0.
    """
    if isinstance(condition, Const):
        return one if condition.value else other
    quotient = other
    if (
        isinstance(condition, Call)
        and condition.op == "ne"
        and condition.args == (quotient, quotient)
        and isinstance(quotient, Call)
        and quotient.op == "div"
        and isinstance(quotient.args[1], Read)
    ):
        return call("select", call("lt", Const(0.5), quotient.args[1]), quotient, one)
    return call("select", condition, one, other)


def power(x: Expr, exponent: Expr) -> Expr:
    """x ** exponent; exponents 2, 3 and 0.5 as products and a root."""
    whole = exponent.value if isinstance(exponent, Const) else None
    if whole == 2:
        return call("mul", x, x)
    if whole == 3:
        return call("mul", call("mul", x, x), x)
    return call("sqrt", x) if whole == 0.5 else call("pow", x, exponent)


def _of_bits(op: str) -> Build:
    return lambda *args: call(op, *(_whole(a) for a in args))


def _whole(e: Expr) -> Expr:
    return Const(int(e.value)) if isinstance(e, Const) else e


def _plain(op: str) -> Build:
    return lambda *args: simplify(op, *args)


def _swapped(op: str) -> Build:
    return lambda x, y: call(op, y, x)


ELEMENTWISE: Mapping[str, Build] = {
    **{
        f"relax.{name}": _plain(op)
        for name, op in {
            "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div",
            "maximum": "max", "minimum": "min", "negative": "neg", "abs": "abs", "exp": "exp",
            "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "floor": "floor",
            "round": "round",
            "less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne",
            "logical_and": "and", "logical_or": "or", "logical_not": "not",
        }.items()
    },
    "relax.right_shift": _of_bits("shift_right"),
    "relax.bitwise_and": _of_bits("bit_and"),
    "relax.greater": _swapped("lt"),
    "relax.greater_equal": _swapped("le"),
    "relax.power": power,
    "relax.where": where,
    "relax.isnan": lambda x: call("ne", x, x),
    "relax.square": lambda x: call("mul", x, x),
    "relax.rsqrt": lambda x: call("div", Const(1.0), call("sqrt", x)),
    "relax.sigmoid": sigmoid,
    "relax.clip": lambda x, low, high: call("min", call("max", x, low), high),
    "relax.nn.relu": lambda x: call("max", x, 0.0),
    "relax.nn.relu6": lambda x: call("min", call("max", x, 0.0), 6.0),
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
    "relax.nn.silu": silu,
    "relax.nn.leakyrelu": leaky,
    "relax.astype": lambda x: x,
}  # fmt: skip


def nodes(e: Expr) -> int:
    """The number of nodes of an expression."""
    return 1 + sum(nodes(child) for child in children(e))
