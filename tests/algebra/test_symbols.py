"""Expressions go to SymPy and come back with the same values."""

from __future__ import annotations

import math

import pytest
import sympy as sp

from mcfuser.algebra.symbols import from_sympy, to_sympy
from mcfuser.errors import ChainError
from mcfuser.expr import Call, Cast, Const, Expr, Index, parse, text

SYMBOLS = {n: sp.Symbol(n, real=True) for n in ("r", "c", "t")}
AT = {"r": 0.75, "c": 1.5, "t": 2.25}
FUNCTIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "pow": lambda a, b: a**b, "neg": lambda a: -a,
    "exp": math.exp, "exp2": lambda a: 2**a, "log": math.log, "tanh": math.tanh,
    "sqrt": math.sqrt, "erf": math.erf,
}  # fmt: skip


def value(e: Expr) -> float:
    if isinstance(e, Index):
        return AT[e.axis]
    if isinstance(e, Const):
        return float(e.value)
    assert isinstance(e, Call)
    return FUNCTIONS[e.op](*map(value, e.args))


BACK = ["r + c",
        "r - c", "r * c", "r / c", "-r", "exp(r - c)", "exp2(r - c)", "log(c)", "pow(c, 3.0)",
        "sqrt(c) * t", "t * exp2(r - c) / r", "t - 2.0 * log(c)", "1.0 / (1.0 + exp(-c))",
        "pow(c, r)"]  # fmt: skip


@pytest.mark.parametrize("said", BACK)
def test_what_comes_back_has_the_same_value(said: str) -> None:
    e = parse(said)
    assert value(from_sympy(to_sympy(e, SYMBOLS))) == pytest.approx(value(e), rel=1e-12)


@pytest.mark.parametrize("said", ["tanh(r)", "erf(r)", "exp(r)", "log(r)", "sqrt(r)"])
def test_functions_are_those_of_sympy(said: str) -> None:
    found = to_sympy(parse(said), SYMBOLS).subs(SYMBOLS["r"], AT["r"])
    assert float(found) == pytest.approx(value(parse(said)), rel=1e-12)


def test_a_power_of_two_is_written_as_one() -> None:
    assert text(from_sympy(to_sympy(parse("exp2(r - c)"), SYMBOLS))).startswith("exp2(")
    assert text(from_sympy(to_sympy(parse("exp(r - c)"), SYMBOLS))).startswith("exp(")


def test_a_reciprocal_is_a_quotient_and_no_power() -> None:
    assert text(from_sympy(to_sympy(parse("1.0 / c"), SYMBOLS))) == "1.0 / c"
    assert text(from_sympy(to_sympy(parse("pow(c, -2.0)"), SYMBOLS))) == "pow(c, -2.0)"


@pytest.mark.parametrize(("chosen", "expected"), [(1, 1.5), (0, 2.25)])
def test_a_choice_is_either_of_its_branches(chosen: int, expected: float) -> None:
    found = to_sympy(parse("select(r, c, t)"), SYMBOLS)
    at = {SYMBOLS["r"]: chosen, SYMBOLS["c"]: 1.5, SYMBOLS["t"]: 2.25}
    assert float(found.subs(at)) == expected


@pytest.mark.parametrize("said", ["max(r, c)", "floor(r)", "abs(r)", "r < c"])
def test_what_has_no_inverse_is_refused_by_name(said: str) -> None:
    e = parse(said)
    assert isinstance(e, Call)
    with pytest.raises(ChainError, match=f"'{e.op}' of the moving value cannot be inverted"):
        to_sympy(e, SYMBOLS)


def test_a_cast_is_refused_and_so_is_what_no_operator_says() -> None:
    with pytest.raises(ChainError, match="'int32' of the moving value"):
        to_sympy(Cast(Index("r"), "int32"), SYMBOLS)
    with pytest.raises(ChainError, match="cannot be written as an expression"):
        from_sympy(sp.gamma(SYMBOLS["r"]))


@pytest.mark.parametrize("base", [sp.E, sp.Integer(2)])
def test_the_logarithm_of_a_power_is_its_exponent_which_does_not_overflow(base: sp.Expr) -> None:
    r, c = SYMBOLS["r"], SYMBOLS["c"]
    power = sp.exp(r - c, evaluate=False) if base == sp.E else sp.Pow(2, r - c, evaluate=False)
    found = from_sympy(sp.log(power, evaluate=False))
    assert "exp" not in text(found)
    assert value(found) == pytest.approx((0.75 - 1.5) * float(sp.log(base)))
