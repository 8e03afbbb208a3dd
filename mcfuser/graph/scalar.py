"""The scalar expressions of Relax's elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mcfuser.expr import Call, Const, Expr, Read, call, children

Build = Callable[..., Expr]


def simplify(op: str, *args: Expr) -> Expr:
    """The application of `op`, simplified so that its value changes by one rounding at most.

    A division by a constant becomes a product with the reciprocal, two constant factors become one,
    and factors of 1 and terms of 0 are left out.
    """
    if op == "div" and isinstance(args[1], Const) and args[1].value not in (0, math.inf, -math.inf):
        return simplify("mul", args[0], Const(1 / args[1].value))
    if op in ("mul", "add") and isinstance(args[0], Const):
        args = (args[1], args[0])
    if op == "mul" and isinstance(args[1], Const):
        if args[1].value == 1:
            return args[0]
        inner = args[0]
        if isinstance(inner, Call) and inner.op == "mul" and isinstance(inner.args[1], Const):
            return Call("mul", (inner.args[0], Const(inner.args[1].value * args[1].value)))
    if op in ("add", "sub") and args[1] == Const(0.0):
        return args[0]
    return Call(op, args)


def gelu(x: Expr) -> Expr:
    """The Gaussian error linear unit, with erf."""
    return call("mul", call("mul", x, 0.5), call("add", call("erf", call("mul", x, 0.5**0.5)), 1.0))


def gelu_tanh(x: Expr) -> Expr:
    """The Gaussian error linear unit, approximated with tanh."""
    cube = call("mul", call("mul", x, x), x)
    inner = call("mul", call("add", x, call("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
    return call("mul", call("mul", x, 0.5), call("add", call("tanh", inner), 1.0))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return call("div", Const(1.0), call("add", call("exp", call("neg", x)), 1.0))


def silu(x: Expr) -> Expr:
    """x * sigmoid(x)."""
    return call("div", x, call("add", call("exp", call("neg", x)), 1.0))


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
