"""What rounding may make of results: enough for float32, too little for what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.measure.rounding import allowed
from mcfuser.space import reference
from mcfuser.space.reference import evaluate
from tests.support.chains import LINES, chain, named

UNIT = 2.0**-24
SIZES = dict(zip("bmnkhpc", (2, 9, 17, 33, 5, 6, 3), strict=True))
OTHERS = {
    "functions": ["Y[m, n] = tanh(A[m, n]) + erf(B[m, n]) * exp2(A[m, n]) - sqrt(abs(B[m, n]))"],
    "powers": ["Y[m, n] = pow(abs(A[m, n]) + 0.1, 1.7) + pow(1.3, B[m, n]) / (2.0 + n)"],
    "logarithms": ["Y[m, n] = log(abs(A[m, n]) + 0.5) * 100.0"],
    "cancelling": ["S[m] = sum[n] A[m, n] * 1000.0", "Y[m, n] = S[m] - 1000.0 * S[m] * B[m, n]"],
    "maxima": ["R[m] = max[n] A[m, n] * B[m, n] - 1000000.0 * (n < 5)", "Y[m] = R[m] * R[m]"],
    "steps": ["Y[m, n] = select(A[m, n] + B[m, n] < 0.0, floor(3.0 * A[m, n]), B[m, n])"],
}


def chains() -> dict[str, Chain]:
    every = {n: named(n, SIZES) for n in LINES}
    shapes = {"A": "mn", "B": "mn"}
    return every | {n: chain(SIZES, shapes, lines) for n, lines in OTHERS.items()}


def single(c: Chain, inputs: dict[str, np.ndarray], monkeypatch) -> dict[str, np.ndarray]:
    """The chain by the reference, every operation rounded to float32."""
    real, of = reference.applied, reference.as_dtype

    def rounded(op: str, args: list[np.ndarray]) -> np.ndarray:
        found = real(op, args)
        return found.astype(np.float32).astype(np.float64) if found.dtype.kind == "f" else found

    with monkeypatch.context() as patch:
        patch.setattr(reference, "applied", rounded)
        patch.setattr(reference, "bounded_product", lambda *_: None)
        patch.setattr(reference, "as_dtype", lambda x, d: of(np.asarray(of(x, d), np.float32), d)
                      if d not in ("bool", "int32", "int64") else of(x, d))  # fmt: skip
        return evaluate(c, inputs)


@pytest.mark.parametrize("name", sorted(chains()))
def test_rounding_is_allowed_and_a_thousandth_is_not(name: str, monkeypatch) -> None:
    c = chains()[name]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = {n: rng.standard_normal(c.shape(n)).astype(np.float32).astype(float) for n in c.inputs}
        exact = evaluate(c, x)
        limits = allowed(c, x, exact, UNIT)
        rough = single(c, x, monkeypatch)
        for n in c.outputs:
            assert (np.abs(rough[n] - exact[n]) <= 8 * UNIT * limits[n] + 1e-300).all()
            known = np.isfinite(limits[n]) & (limits[n] < 1e6 * np.abs(exact[n]))
            assert known.mean() > 0.5
            assert (np.abs(exact[n] * 1e-3)[known] > 8 * UNIT * limits[n][known] * 1e-6).all()


def test_what_did_not_cancel_is_held_to_its_own_size() -> None:
    c = chain(SIZES, {"A": "mn", "B": "mn"}, ["Y[m, n] = A[m, n] * B[m, n] * 3.0"])
    rng = np.random.default_rng(0)
    x = {n: rng.standard_normal(c.shape(n)) * 1e-20 for n in c.inputs}
    exact = evaluate(c, x)
    limits = allowed(c, x, exact, UNIT)["Y"]
    assert (limits <= 4 * np.abs(exact["Y"])).all() and (limits >= np.abs(exact["Y"])).all()


def test_whole_numbers_have_no_error() -> None:
    whole = {"shape": ["m"], "dtype": "int32"}
    c = from_json({
        "axes": {"m": 9, "n": 17},
        "tensors": {"t": whole, "Y": whole},
        "operators": ["Y[m] = sum[n] (n * t[m] + 3) * (n < m)"],
    })  # fmt: skip
    x = {"t": np.arange(-4, 5)}
    assert not allowed(c, x, evaluate(c, x), UNIT)["Y"].any()


def test_a_choice_may_be_the_other_where_its_condition_is_in_doubt_and_only_there() -> None:
    """3 A - 3 B is nothing but rounding where A is B."""
    lines = ["Y[m] = select(A[m] * 3.0 - B[m] * 3.0 < 0.0, 7.0, A[m])"]
    c = chain({"m": 2}, {"A": "m", "B": "m"}, lines)
    x = {"A": np.asarray([1.1, 5.0]), "B": np.asarray([1.1, 1.0])}
    doubtful, sure = allowed(c, x, evaluate(c, x), UNIT)["Y"] * UNIT
    assert doubtful >= 7.0 - 1.1
    assert sure < 1e-5


def errors(said: str, t: float, u: float, unit: float = UNIT) -> float:
    """The error of `said`, in units, where T and U have these values and twice them as errors: a
    product is rounded, and then stored."""
    lines = ["T[m] = A[m] * 2.0", "U[m] = B[m] * 2.0", f"Y[m] = {said}"]
    c = chain({"m": 1}, {"A": "m", "B": "m"}, [*lines, "Z[m] = T[m] + U[m]"], ["Y", "Z"])
    x = {"A": np.asarray([t / 2]), "B": np.asarray([u / 2])}
    found = allowed(c, x, evaluate(c, x), unit)
    assert (found["T"][0], found["U"][0]) == (2 * abs(t), 2 * abs(u))
    return float(found["Y"][0])


def power(t: float, u: float) -> tuple[float, float]:
    """The error of a power from its base, which moves by 2 t, and from its exponent."""
    return u * t ** (u - 1) * 2 * t, t**u * abs(math.log(t)) * 2 * abs(u)


@pytest.mark.parametrize(
    ("said", "t", "u", "moved", "rounded"),
    [
        ("T[m] + U[m]", 3.0, -5.0, 6.0 + 10.0, 3.0 + 5.0),
        ("T[m] - U[m]", 3.0, 5.0, 6.0 + 10.0, 3.0 + 5.0),
        ("T[m] * U[m]", -3.0, 5.0, 3.0 * 10.0 + 5.0 * 6.0 + UNIT * 60.0, 15.0),
        ("T[m] / U[m]", 3.0, -4.0, (6.0 + 0.75 * 8.0) / 4.0, 0.75),
        ("-T[m]", 3.0, 1.0, 6.0, 0.0),
        ("abs(T[m])", -3.0, 1.0, 6.0, 0.0),
        ("max(T[m], U[m])", 3.0, -5.0, 10.0, 0.0),
        ("min(T[m], U[m])", 3.0, 5.0, 10.0, 0.0),
        ("tanh(T[m])", -0.5, 1.0, 1.0, math.tanh(0.5) + 1.0),
        ("erf(T[m])", -0.5, 1.0, 1.0, math.erf(0.5) + 1.0),
        ("exp(T[m])", -3.0, 1.0, math.exp(-3.0) * 6.0, math.exp(-3.0) * 4.0),
        ("exp2(T[m])", -3.0, 1.0, 6.0 / 8.0, 4.0 / 8.0),
        ("log(T[m])", 3.0, 1.0, 6.0 / 3.0, math.log(3.0) + 1.0),
        ("sqrt(T[m])", 9.0, 1.0, 18.0 / 6.0, 3.0),
        ("pow(T[m], U[m])", 3.0, 2.5, sum(power(3.0, 2.5)), 3**2.5 * (1 + 2.5 * math.log(3.0))),
        ("pow(T[m], U[m])", 0.5, 3.0, sum(power(0.5, 3.0)), 0.125 * (1 + 3.0 * math.log(2.0))),
        ("pow(T[m], 2.0)", 3.0, 1.0, power(3.0, 2.0)[0], 9.0 * (1 + 2.0 * math.log(3.0))),
        ("pow(2.0, U[m])", 1.0, 3.0, power(2.0, 3.0)[1], 8.0 * (1 + 3.0 * math.log(2.0))),
        ("select(T[m] < U[m], T[m], U[m])", 3.0, 5.0, 6.0, 0.0),
        ("select(T[m] < U[m], T[m], U[m])", 5.0, 3.0, 6.0, 0.0),
        ("bfloat16(T[m])", 3.0, 1.0, 6.0, 3.0),
        ("float16(T[m])", 3.0, 1.0, 6.0, 3.0 + 2.0**-24 / UNIT),
    ],
)
def test_an_operation_moves_errors_as_its_derivative_does_and_rounds_once_more(
    said: str, t: float, u: float, moved: float, rounded: float
) -> None:
    stored = abs(eval_of(said, t, u))
    assert errors(said, t, u) == pytest.approx(moved + rounded + stored, rel=1e-9)


def eval_of(said: str, t: float, u: float) -> float:
    """What is stored."""
    c = chain({"m": 1}, {"T": "m", "U": "m"}, [f"Y[m] = {said}", "Z[m] = T[m] + U[m]"], ["Y", "Z"])
    return float(evaluate(c, {"T": np.asarray([t]), "U": np.asarray([u])})["Y"][0])


@pytest.mark.parametrize(
    ("said", "t", "error"),
    [
        ("floor(T[m])", 3.5, 0.0),
        ("round(T[m])", 3.25, 0.0),
        ("round(T[m]) * 7.0 - floor(T[m]) + 2.0", 3.25, 0.0),
        ("min(max(round(T[m]) + 4.0, 0.0), 255.0)", 3.25, 0.0),
        ("round(T[m] * 65536.0) * 512.0", 3.25, 2 * 3.25 * 65536 * 512),
        ("round(T[m]) * 0.5", 3.25, 2 * 1.5),
        ("round(T[m]) / 2.0", 3.25, 2 * 1.5),
        ("float16(round(T[m]))", 3.25, 3.0 + 2.0**-24 / UNIT + 3.0),
    ],
)
def test_whole_numbers_are_added_and_multiplied_as_they_are(
    said: str, t: float, error: float
) -> None:
    """Up to 2^24: 6.5 x 2^24 is rounded twice, where it is computed and where it is stored."""
    assert errors(said, t, 1.0) == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(
    ("said", "t", "step"),
    [
        ("floor(T[m])", 3.0, 1.0),
        ("round(T[m])", 3.5, 1.0),
        ("int32(round(T[m]) + 4.0) * 1.0", 3.5, 1.0),
        ("int32(T[m]) * 1.0", 3.0, 1.0),
        ("bool(T[m] - U[m]) * 1.0", 2.0, 1.0),
        ("select(T[m] < U[m], 7.0, 4.0)", 2.0, 3.0),
        ("select(T[m] <= U[m], 7.0, 4.0)", 2.0, 3.0),
        ("select(T[m] == U[m], 7.0, 4.0)", 2.0, 3.0),
        ("select(T[m] != U[m] and T[m] < 9.0, 7.0, 4.0)", 2.0, 3.0),
    ],
)
def test_a_step_in_doubt_may_be_taken_or_not(said: str, t: float, step: float) -> None:
    """T is at the step, or at U; by a thousandth beside it there is no doubt."""
    assert errors(said, t, 2.0) * UNIT == pytest.approx(step, rel=1e-4)
    assert errors(said, t * 1.001, 2.0) * UNIT < 1e-4
    assert errors(said, t * 1.001, 2.0, unit=1e-3) * 1e-3 >= step


def test_a_product_with_itself_has_both_sides_errors() -> None:
    """T is 3 with an error of 6: (3 + 12) squared, for every term, and what is rounded."""
    lines = ["T[m, k] = A[m, k] * 2.0", "Y[m, n] = sum[k] T[m, k] * T[n, k]"]
    c = chain({"m": 2, "n": 2, "k": 2}, {"A": "mk"}, lines, ["Y", "T"])
    x = {"A": np.full((2, 2), 1.5)}
    found = allowed(c, x, evaluate(c, x), UNIT)
    assert found["T"].tolist() == [[6.0, 6.0], [6.0, 6.0]]
    assert found["Y"][0, 1] == pytest.approx(2 * 15.0**2 * UNIT / UNIT + 18.0, rel=0.05)


def test_a_sum_rounds_each_term_that_is_not_zero_and_the_result() -> None:
    c = chain({"m": 1, "n": 4}, {"A": "mn"}, ["Y[m] = sum[n] A[m, n] * 2.0 where n < 3"])
    x = {"A": np.asarray([[1.0, -3.0, 0.0, 50.0]])}
    found = allowed(c, x, evaluate(c, x), UNIT)["Y"]
    assert found[0] == (2.0 + 6.0) * 2 + 4.0  # products and terms; -4 is stored
    x = {"A": np.asarray([[1.0, -0.5, 0.0, 50.0]])}
    assert allowed(c, x, evaluate(c, x), UNIT)["Y"][0] == (2.0 + 1.0) * 2 + 1.0


def test_bits_of_what_is_known_exactly_are_exact() -> None:
    whole = {"shape": ["m"], "dtype": "int32"}
    tensors = {"N": whole, "A": {"shape": ["m"]}, "Y": whole, "Z": whole}
    lines = ["Y[m] = bit_and(shift_right(N[m], 1), 7)", "Z[m] = shift_right(int32(A[m] * 2.0), 1)"]
    c = from_json({"axes": {"m": 2}, "tensors": tensors, "operators": lines, "outputs": ["Y", "Z"]})
    x = {"N": np.asarray([5, 77]), "A": np.asarray([3.0, 3.25])}
    found = allowed(c, x, evaluate(c, x), UNIT)
    assert found["Y"].tolist() == [0.0, 0.0]
    assert found["Z"].tolist() == [np.inf, 0.0]  # 6 may have been 5.99


def test_a_maximum_has_the_largest_error_of_what_may_be_the_maximum() -> None:
    """50 is outside the domain, and 3 cannot be it, whatever its error."""
    c = chain({"m": 1, "n": 4}, {"A": "mn", "B": "mn"},
              ["Y[m] = max[n] A[m, n] - B[m, n] where n < 3"])  # fmt: skip
    a, b = np.asarray([[100.0, 11.0, 3.0, 50.0]]), np.asarray([[89.0, 0.0, 0.0, 0.0]])
    x = {"A": a, "B": b}
    assert allowed(c, x, evaluate(c, x), UNIT)["Y"][0] == 100.0 + 89.0 + 11.0
    x = {"A": a, "B": b + np.asarray([[1.0, 0.0, 0.0, 0.0]])}  # the first one is 10
    assert allowed(c, x, evaluate(c, x), UNIT)["Y"][0] == 11.0 + 11.0
    assert allowed(c, x, evaluate(c, x), 0.01)["Y"][0] == 100.0 + 90.0 + 11.0


def test_what_a_type_may_not_hold_may_be_anything() -> None:
    assert errors("float16(T[m])", 65504.0, 1.0) < np.inf
    assert errors("float16(T[m])", 65505.0, 1.0) == np.inf
    assert errors("T[m] * U[m]", 2e19, 1.5e19) < np.inf
    assert errors("T[m] * U[m]", 2e19, 2e19) == np.inf


def test_an_exponential_may_overflow_early_and_what_it_divides_may_vanish_with_it() -> None:
    """-88.5 times its sigmoid is -3e-37 in the reference."""
    c = chain({"m": 4}, {"A": "m"}, ["Y[m] = A[m] / (1.0 + exp(-A[m]))"])
    x = {"A": np.asarray([-88.5, -88.0, -40.0, 2.0])}
    exact = evaluate(c, x)
    limits = allowed(c, x, exact, UNIT)["Y"]
    assert np.isinf(limits[0]) and abs(exact["Y"][0]) > 1e-37
    assert (limits[1:] * UNIT < 1e-4 * np.abs(exact["Y"][1:])).all()


def test_errors_of_a_product_s_sides_are_multiplied_by_the_other_side() -> None:
    """The left side was rounded twice, as a product and when it was stored."""
    lines = ["T[m, k] = A[m, k] * 2.0", "C[m, n] = sum[k] T[m, k] * B[k, n]"]
    c = chain({"m": 3, "n": 4, "k": 5}, {"A": "mk", "B": "kn"}, lines)
    rng = np.random.default_rng(0)
    x = {"A": rng.standard_normal((3, 5)), "B": rng.standard_normal((5, 4))}
    exact = evaluate(c, x)
    found = allowed(c, x, exact, UNIT)["C"]
    t, b = np.abs(exact["T"]), np.abs(x["B"])
    np.testing.assert_allclose(found, 3 * (t @ b) + np.abs(exact["C"]), rtol=1e-5)
    other = chain({"m": 3, "n": 4, "k": 5}, {"A": "mk", "B": "kn"},
                  ["T[k, n] = B[k, n] * 2.0", "C[m, n] = sum[k] A[m, k] * T[k, n]"])  # fmt: skip
    exact = evaluate(other, x)
    t, a = np.abs(exact["T"]), np.abs(x["A"])
    found = allowed(other, x, exact, UNIT)["C"]
    np.testing.assert_allclose(found, 3 * (a @ t) + np.abs(exact["C"]), rtol=1e-5)
    square = chain({"m": 3, "n": 3, "k": 5}, {"A": "mk"},
                   ["T[m, k] = A[m, k] * 2.0", "C[m, n] = sum[k] T[m, k] * T[n, k]"])  # fmt: skip
    exact = evaluate(square, {"A": x["A"]})
    t = np.abs(exact["T"])
    found = allowed(square, {"A": x["A"]}, exact, UNIT)["C"]
    np.testing.assert_allclose(found, 25 * (t @ t.T) + np.abs(exact["C"]), rtol=1e-5)
