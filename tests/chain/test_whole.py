"""Which values are whole numbers, and between which bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json, narrow_type, whole_range
from mcfuser.expr import BOUNDS, Call, Cast, Const, Expr, Index, Read, read
from mcfuser.space.reference import value

TYPES = {"U": "uint8", "I": "int8", "J": "int16", "B": "bool", "N": "int32", "F": "float32",
         "P": "float32", "Q": "int32", "G": "float16", "R": "float32"}  # fmt: skip
MADE = (
    "P[m] = float32(U[m]) - 126.0 where m < 7",
    "Q[m] = min(max(F[m], -3.5), 8.0)",
    "G[m] = float32(U[m])",
    "R[m] = sum[k] float32(U[m]) * k",
)


def chain(line: str) -> Chain:
    """Values of all kinds, and one that is computed so."""
    lines = [*MADE, f"Z[m] = {line}"]
    used = {n: d for n, d in TYPES.items() if any(f"{n}[" in text for text in lines)}
    tensors = {n: {"shape": ["m"], "dtype": d} for n, d in used.items()}
    return from_json({"axes": {"m": 12, "k": 5}, "tensors": tensors, "operators": lines})


CHAIN = chain("U[m] + I[m] + J[m] + F[m]")


@pytest.mark.parametrize(
    ("line", "bounds"),
    [
        ("float32(U[m]) - 126.0", (-126, 129)),
        ("float32(U[m]) - float32(I[m])", (-127, 383)),
        ("float32(I[m]) * float32(J[m])", (-128 * 32767, 128 * 32768)),
        ("abs(float32(I[m]))", (0, 128)),
        ("-float32(I[m])", (-127, 128)),
        ("min(max(round(F[m] / 3.0) + 4.0, 0.0), 255.0)", (0, 255)),
        ("min(max(floor(F[m]), -1.5), 7.0)", None),
        ("round(min(max(F[m], -1.5), 7.2))", (-2, 8)),
        ("round(F[m])", (-math.inf, math.inf)),
        ("int32(min(max(F[m], -1.5), 7.2))", (-2, 8)),
        ("int32(F[m])", (-math.inf, math.inf)),
        ("select(F[m] < 0.5, float32(U[m]), -1.0)", (-1, 255)),
        ("select(F[m] < 0.5, float32(U[m]), 0.5)", None),
        ("bit_and(shift_right(U[m], 4), 15) - 8", (-8, 7)),
        ("shift_right(I[m], 3)", (-128, 127)),
        ("shift_right(U[m], I[m])", (-math.inf, math.inf)),
        ("bit_and(N[m], 7)", (0, 7)),
        ("P[m] + 1.0", (-125, 130)),
        ("Q[m]", (-4, 8)),
        ("G[m]", None),
        ("R[m]", None),
        ("F[m] < 0.5", (0, 1)),
        ("B[m]", (0, 1)),
        ("m", (0, 11)),
        ("F[m] * 2.0", None),
        ("float16(U[m])", None),
        ("exp(float32(U[m]))", None),
        ("0.5", None),
    ],
)
def test_bounds(line: str, bounds: tuple[float, float] | None) -> None:
    made = chain(line)
    assert whole_range(made, made.operator("Z").body) == bounds


LEAVES = st.one_of(
    st.sampled_from(["U", "I", "J", "F"]).map(lambda n: read(n, "m")),
    st.sampled_from([-3.0, 0.0, 0.5, 2.0, 126.0, 7]).map(Const),
    st.just(Index("m")),
)


def applied(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    one = st.sampled_from(["neg", "abs", "floor", "round"])
    two = st.sampled_from(["add", "sub", "mul", "max", "min"])
    return st.one_of(
        st.builds(lambda op, x: Call(op, (x,)), one, inner),
        st.builds(lambda op, x, y: Call(op, (x, y)), two, inner, inner),
        st.builds(lambda x, d: Cast(x, d), inner, st.sampled_from(["float32", "int32", "bool"])),
        st.builds(lambda c, x, y: Call("select", (Call("lt", (c, x)), x, y)), inner, inner, inner),
    )


@given(
    st.recursive(LEAVES, applied, max_leaves=8),
    st.fixed_dictionaries({
        "U": st.integers(*BOUNDS["uint8"]), "I": st.integers(*BOUNDS["int8"]),
        "J": st.integers(*BOUNDS["int16"]), "F": st.floats(-1000, 1000), "m": st.integers(0, 11),
    }),
)  # fmt: skip
def test_a_value_is_whole_and_between_its_bounds(e: Expr, given_: dict[str, float]) -> None:
    bounds = whole_range(CHAIN, e)

    def of(r: Read) -> float | int:
        return given_[r.tensor]

    result = np.asarray(value(e, of, lambda a: given_[a])).item()
    if bounds is not None and math.isfinite(result):
        assert Fraction(result).denominator == 1
        assert bounds[0] <= result <= bounds[1]


@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [((0, 255), "uint8"), ((-128, 127), "int8"), ((-1, 128), "int16"), ((0, 256), "int16"),
     ((0, 40000), None), ((-math.inf, 3), None), (None, None)],
)  # fmt: skip
def test_the_smallest_type_that_has_all_numbers(
    bounds: tuple[float, float] | None, dtype: str | None
) -> None:
    assert narrow_type(bounds) == dtype


def test_bounds_of_long_expressions_are_found_in_one_walk() -> None:
    """A number that is clipped, and is no whole one, inside another, forty times."""
    e: Expr = read("F", "m")
    for _ in range(40):
        e = Call("round", (Call("min", (Call("mul", (e, Const(0.5))), Const(200.0))),))
    assert whole_range(CHAIN, e) == (-math.inf, 200.0)
