"""Relax's elementwise operators as expressions of the same values."""

from __future__ import annotations

import math

import pytest

from mcfuser.expr import Call, Const, Expr, Index, parse, text
from mcfuser.graph.scalar import ELEMENTWISE, nodes, power, simplify, where

X, Y = Index("x"), Index("y")
FUNCTIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "neg": lambda a: -a, "max": max, "min": min, "abs": abs,
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "tanh": math.tanh, "erf": math.erf,
    "floor": math.floor, "round": round, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "not": lambda a: not a,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "pow": lambda a, b: a**b,
    "select": lambda c, a, b: a if c else b,
}  # fmt: skip


def value(e: Expr, **at: float) -> float:
    if isinstance(e, Index):
        return at[e.axis]
    if isinstance(e, Const):
        return float(e.value)
    assert isinstance(e, Call)
    return FUNCTIONS[e.op](*(value(a, **at) for a in e.args))  # type: ignore[no-any-return]


ONE = {
    "nn.relu": lambda x: max(x, 0.0),
    "nn.relu6": lambda x: min(max(x, 0.0), 6.0),
    "nn.gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "nn.gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "nn.silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "square": lambda x: x * x,
    "negative": lambda x: -x,
    "tanh": math.tanh,
    "erf": math.erf,
    "abs": abs,
    "floor": math.floor,
    "round": round,
    "astype": lambda x: x,
}
TWO = {
    "add": lambda x, y: x + y, "subtract": lambda x, y: x - y, "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y, "maximum": max, "minimum": min,
    "less": lambda x, y: x < y, "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y, "greater_equal": lambda x, y: x >= y,
    "equal": lambda x, y: x == y, "not_equal": lambda x, y: x != y,
}  # fmt: skip


@pytest.mark.parametrize("x", [-7.5, -0.5, 0.0, 0.5, 7.5])
@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_value(name: str, x: float) -> None:
    found = ELEMENTWISE[f"relax.{name}"](X)
    assert value(found, x=x) == pytest.approx(ONE[name](x), abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [(1.5, 2.5), (2.5, 1.5), (2.0, 2.0), (-1.0, 3.0)])
@pytest.mark.parametrize("name", TWO)
def test_a_function_of_two_values(name: str, x: float, y: float) -> None:
    found = ELEMENTWISE[f"relax.{name}"](X, Y)
    assert value(found, x=x, y=y) == pytest.approx(TWO[name](x, y))


def test_functions_with_numbers() -> None:
    leaky = ELEMENTWISE["relax.nn.leakyrelu"](X, 0.1)
    assert [value(leaky, x=x) for x in (-2.0, 0.0, 3.0)] == pytest.approx([-0.2, 0.0, 3.0])
    clip = ELEMENTWISE["relax.clip"](X, Const(-1.0), Const(2.0))
    assert [value(clip, x=x) for x in (-5.0, 0.5, 5.0)] == [-1.0, 0.5, 2.0]
    assert value(ELEMENTWISE["relax.rsqrt"](X), x=4.0) == 0.5
    assert value(ELEMENTWISE["relax.isnan"](X), x=math.nan) and not value(
        ELEMENTWISE["relax.isnan"](X), x=1.0
    )


@pytest.mark.parametrize(
    ("op", "args", "said"),
    [
        ("div", (X, Const(4.0)), "x * 0.25"),
        ("mul", (X, Const(1.0)), "x"),
        ("mul", (Const(2.0), X), "x * 2.0"),
        ("mul", (parse("x * 3.0"), Const(2.0)), "x * 6.0"),
        ("add", (X, Const(0.0)), "x"),
        ("add", (Const(0.0), X), "x"),
        ("sub", (X, Const(0.0)), "x"),
        ("sub", (Const(0.0), X), "0.0 - x"),
        ("mul", (X, Const(0.0)), "x * 0.0"),
        ("div", (X, Const(0.0)), "x / 0.0"),
        ("div", (Const(4.0), X), "4.0 / x"),
        ("mul", (Const(4.0), Const(0.5)), "2.0"),
        ("add", (parse("tanh(x)"), Const(1.0)), "2.0 / (exp(x * (-2.0)) + 1.0)"),
        ("add", (Const(1.0), parse("tanh(x * 0.5)")), "2.0 / (exp(-x) + 1.0)"),
        ("add", (parse("tanh(x)"), Const(2.0)), "tanh(x) + 2.0"),
        ("mul", (Y, parse("1.0 / (exp(x) + 1.0)")), "y / (exp(x) + 1.0)"),
        ("mul", (parse("2.0 / (exp(x) + 1.0)"), parse("y * 0.5")), "y / (exp(x) + 1.0)"),
        ("mul", (parse("y / (exp(x) + 1.0)"), Const(0.5)), "y * 0.5 / (exp(x) + 1.0)"),
        ("mul", (parse("2.0 / (exp(x) + 1.0)"), Const(0.5)), "1.0 / (exp(x) + 1.0)"),
        ("mul", (Y, parse("1.0 / (x + 1.0)")), "y * (1.0 / (x + 1.0))"),
        ("mul", (Y, parse("x / (exp(x) + 1.0)")), "y * (x / (exp(x) + 1.0))"),
    ],
)
def test_what_is_simplified_and_what_is_not(op: str, args: tuple[Expr, ...], said: str) -> None:
    assert text(simplify(op, *args)) == said


@pytest.mark.parametrize("x", [-7.5, -0.5, 0.0, 0.5, 7.5])
def test_gelu_by_tanh_is_the_same_however_exporters_write_it(x: float) -> None:
    inner = simplify("mul", parse("x + x * x * x * 0.044715"), Const(math.sqrt(2 / math.pi)))
    one = simplify("add", Call("tanh", (inner,)), Const(1.0))
    whole = ELEMENTWISE["relax.nn.gelu_tanh"](X)
    for found in (
        simplify("mul", simplify("mul", X, Const(0.5)), one),
        simplify("mul", X, simplify("mul", one, Const(0.5))),
        simplify("mul", Const(0.5), simplify("mul", X, one)),
    ):
        assert "tanh" not in text(found) and nodes(found) == nodes(whole)
        assert value(found, x=x) == pytest.approx(value(whole, x=x), rel=1e-12)


def test_a_division_by_infinity_is_no_product() -> None:
    assert simplify("div", X, Const(math.inf)) == Call("div", (X, Const(math.inf)))


@pytest.mark.parametrize(
    ("exponent", "said"),
    [(2, "x * x"), (3, "x * x * x"), (0.5, "sqrt(x)"), (1.5, "pow(x, 1.5)")],
)
def test_powers(exponent: float, said: str) -> None:
    assert text(power(X, Const(exponent))) == said


def test_a_known_condition_chooses_and_an_unknown_one_is_asked() -> None:
    assert where(Const(True), X, Y) == X and where(Const(False), X, Y) == Y
    assert text(where(parse("x < y"), X, Y)) == "select(x < y, x, y)"


def test_a_guard_of_a_quotient_asks_for_its_sum() -> None:
    """What is no number in a row of a softmax comes from a sum that is about 0."""
    quotient = parse("P[m] / Z[m]")
    found = where(Call("ne", (quotient, quotient)), Const(0.0), quotient)
    assert text(found) == "select(0.5 < Z[m], P[m] / Z[m], 0.0)"
    other = where(Call("ne", (X, X)), Const(0.0), quotient)
    assert text(other) == "select(x != x, 0.0, P[m] / Z[m])"


def test_nodes_of_a_tree() -> None:
    assert nodes(X) == 1 and nodes(parse("x + y * 2.0")) == 5
