"""Ranges hold every value that an expression takes, and say which values reductions absorb."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.algebra.ranges import ANY, FINITE, ORDINARY, TRUTH, ZERO, Facts, ValueRange, value
from mcfuser.chain import LOWEST, Axis, Chain, Operator, Tensor
from mcfuser.expr import ARITY, Call, Cast, Const, Expr, Read, parse, read
from mcfuser.space.reference import evaluate

LOW = ValueRange(LOWEST, LOWEST)
MET = ValueRange(LOWEST, ORDINARY)


@dataclass
class Known(Facts):
    ranges: Mapping[str, ValueRange]
    never: Expr | None = None

    def read(self, r: Read) -> ValueRange:
        return self.ranges[r.tensor]

    def false(self, condition: Expr) -> bool:
        return condition == self.never


def found(e: str, never: str | None = None, **ranges: ValueRange) -> ValueRange:
    known = {"x": LOW, "z": ZERO, "r": FINITE, "v": FINITE, **ranges}
    return value(parse(e), Known(known, parse(never) if never else None))


@pytest.mark.parametrize(
    "e",
    [
        "exp2(x[n] - r[m])",
        "exp2(x[n] * 0.18 - r[m])",
        "exp(-(r[m] - x[n]))",
        "exp(1.0 * (x[n] - r[m]))",
        "exp(0.125 * (x[n] - r[m]))",
        "exp((x[n] - r[m]) / 8.0)",
        "exp(x[n])",
        "exp(max(x[n] * 0.5, -inf) + v[n])",
        "float16(exp(x[n] - r[m])) * v[n]",
        "z[n] * z[n]",
        "z[n] * tanh(v[n])",
        "z[n] / 3.0",
        "z[n] / (1.0 + exp(-v[n]))",
        "select(z[n] == 0.0, 0.0, z[n] / v[n])",
        "sqrt(abs(z[n]))",
        "select(n <= m, v[n], 0.0)",
        "exp(x[n] - select(r[m] <= -1e38, 0.0, r[m]))",
    ],
)
def test_what_a_sum_absorbs(e: str) -> None:
    assert found(e, never="n <= m") == ZERO


@pytest.mark.parametrize(
    "e",
    [
        "exp(r[m] - x[n])",
        "exp(x[n] - y[m])",
        "exp(tanh(x[n]))",
        "x[n] * 0.0 * 2.0 + 1.0",
        "z[n] * log(abs(z[n]))",
        "z[n] * exp(v[n])",
        "z[n] / v[n]",
        "exp(x[n] * 1e-38)",
        "exp(abs(x[n]))",
        "exp(x[n] * x[n])",
        "select(n <= m, 0.0, v[n])",
    ],
)
def test_what_a_sum_does_not_absorb(e: str) -> None:
    """Of these, `y` may be the lowest number itself, and what is near zero may not be zero."""
    assert found(e, never="n <= m", y=MET) != ZERO


def test_zero_times_infinity_is_no_number() -> None:
    assert found("z[n] * exp(v[n])") == ANY
    assert found("x[n] * 2.0 * z[n]") == ANY
    assert found("x[n] * z[n]") == ZERO


def test_a_guard_narrows_what_it_lets_through() -> None:
    assert found("select(r[m] <= -5.0, 0.0, r[m])", r=MET) == ValueRange(-5.0, ORDINARY)
    assert found("select(r[m] <= -5.0, r[m], 0.0)", r=MET) == ValueRange(LOWEST, 0.0)
    assert found("select(r[m] <= -5.0, v[m], r[m])", r=ANY) == ANY


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        ("r[m] < v[n]", TRUTH),
        ("x[n] < v[n]", ValueRange(1.0, 1.0)),
        ("v[n] <= x[n]", ZERO),
        ("not z[n] == 0.0", ZERO),
        ("z[n] == 0.0 and x[n] < r[m]", ValueRange(1.0, 1.0)),
        ("z[n] != 0.0 or r[m] < v[n]", TRUTH),
        ("int32(v[n])", FINITE),
        ("int32(x[n])", ANY),
        ("float16(x[n])", ValueRange(-math.inf, -math.inf)),
        ("bool(z[n])", ZERO),
        ("bool(v[n])", TRUTH),
        ("pow(z[n], 2.0)", ZERO),
        ("pow(z[n], 0.0)", ANY),
        ("pow(v[n], 0.5)", ANY),
        ("log(v[n])", ANY),
        ("sqrt(v[n])", ANY),
        ("v[n] * r[m] + n", FINITE),
    ],
)
def test_conditions_casts_and_powers(e: str, expected: ValueRange) -> None:
    assert found(e) == expected


def test_what_fits_every_integer_type_keeps_its_range_as_an_integer() -> None:
    most = ValueRange(1.0, 2.0**31 - 1.0)
    assert found("int32(r[m])", r=most) == ValueRange(0.0, most.high)
    assert found("int32(-r[m])", r=most) == ValueRange(-most.high, 0.0)
    assert found("int32(r[m])", r=ValueRange(1.0, 2.0**31)) == FINITE
    assert found("int32(-r[m])", r=ValueRange(1.0, 2.0**31)) == FINITE


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, -3.0, 7.0, 40.0, -90.0, 1e6, LOWEST, -LOWEST])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([read("a", "n"), read("b", "n"), Const(2.0), Const(-0.5)]))
    if draw(st.integers(0, 7)) == 0:
        return Cast(draw(expressions(depth - 1)), draw(st.sampled_from(["bool", "int32"])))
    op = draw(st.sampled_from(sorted(ARITY)))
    return Call(op, tuple(draw(expressions(depth - 1)) for _ in range(ARITY[op])))


@given(expressions(), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_value_lies_in_its_range(e: Expr, a: float, b: float, c: float, d: float) -> None:
    """Two numbers for each read, its range from one to the other; what overflows is infinite."""
    ends = {"a": (min(a, b), max(a, b)), "b": (min(c, d), max(c, d))}
    known = value(e, Known({n: ValueRange(*x) for n, x in ends.items()}))
    tensors = (*(Tensor(n, ("n",), "float64") for n in "ab"), Tensor("Y", ("n",), "float64"))
    chain = Chain("one", (Axis("n", 4),), tensors, (Operator("Y", ("n",), e),), ("Y",))
    numbers = np.asarray([[ends["a"][i % 2], ends["b"][i // 2]] for i in range(4)])
    with np.errstate(all="ignore"):
        values = evaluate(chain, {"a": numbers[:, 0], "b": numbers[:, 1]})["Y"]
    for x in values:
        if math.isnan(x):
            assert known == ANY
        elif abs(x) <= ORDINARY:
            assert known.low <= x <= known.high, (known, x)


@pytest.mark.parametrize(("function", "x", "most"), [
    ("exp2", 90.0, 2.0**90), ("exp2", 127.5, 2.4e38), ("exp", 88.5, 2.4e38), ("exp", 500.0, 2.4e38),
    ("exp", -90.0, 0.0), ("exp2", -130.0, 0.0),
])  # fmt: skip
def test_an_exponential_holds_what_kernels_give_in_place_of_huge_and_of_tiny_numbers(
    function: str, x: float, most: float
) -> None:
    """At 88.4 a CPU's ends at 2.4e38; some have no numbers below 1.2e-38 but zero."""
    found_range = found(f"abs({function}(r[m]))", r=ValueRange(x, x))
    assert found_range.low <= most <= found_range.high
    assert found_range.low > 1e26 or most == 0.0


def test_an_exponential_is_finite_as_far_as_float32_is_sure_to_hold_it() -> None:
    """exp(88) is 1.7e38; at 88.8 float32 overflows."""
    (low, high) = (found("exp(r[m])", r=ValueRange(0.0, most)).high for most in (87.9, 88.1))
    assert low < math.inf == high
