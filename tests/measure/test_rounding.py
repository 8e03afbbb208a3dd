"""What rounding may make of results: enough for float32, too little for what is wrong."""

from __future__ import annotations

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
