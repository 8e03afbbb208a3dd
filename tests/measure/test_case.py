"""Cases: inputs that are drawn in pieces, values as types store them, errors of outputs."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import LOWEST, Chain, from_json, gemm
from mcfuser.measure import case as cases
from mcfuser.measure.case import Case, all_finite
from mcfuser.measure.worker import tolerance
from mcfuser.space.reference import decode, encode, evaluate, logical
from tests.support.chains import chain
from tests.support.pictures import Windows, padded

TWO = gemm(1, 64, 48, 32, 32, "float16")


def of(c: Chain, seed: int = 0, varied: bool = False, unit: float = 1e-5, **far: float) -> Case:
    return Case(c, seed, far, unit, varied)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_inputs_are_normal_and_the_same_for_the_same_seed(dtype: str) -> None:
    c = gemm(1, 512, 48, 32, 512, dtype)
    first, again, other = of(c).made.data, of(c).made.data, of(c, 1).made.data
    for name in c.inputs:
        values = decode(first[name], dtype).astype(np.float64)
        assert len(values) == np.prod(c.shape(name))
        assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert len({a[:100].tobytes() for a in first.values()}) == len(first)


def test_pieces_of_an_input_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "PIECE", 100)
    found = of(TWO).made.data["A"]
    pieces = [found[i : i + 100] for i in range(0, len(found), 100)]
    assert len(pieces[-1]) == len(found) % 100 > 0
    assert len({p[:48].tobytes() for p in pieces}) == len(pieces)


def test_what_divides_is_away_from_zero_and_offsets_move() -> None:
    lines = ["Y[m] = sum[n] (A[m, n] / D[m, n])"]
    c = chain({"m": 64, "n": 64}, {"A": "mn", "D": "mn"}, lines)
    data = of(c, A=9.0).made.data
    assert data["D"].min() >= 1.0 and data["A"].min() < 8.0
    assert abs(data["A"].mean() - 9) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_values_survive_their_storage(dtype: str) -> None:

    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    once = decode(encode(values, dtype), dtype)
    assert np.array_equal(decode(encode(once, dtype), dtype), once)
    limit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 0.0}[dtype]
    assert np.abs(once - values).max() <= limit * np.abs(values).max()


def test_a_value_between_two_halves_is_rounded_to_the_even_one() -> None:
    between = np.asarray([0x3F808000, 0x3F818000, 0x3F828000, 0xBF818000], np.uint32)
    stored = encode(between.view(np.float32), "bfloat16")
    assert [hex(n) for n in stored] == ["0x3f80", "0x3f82", "0x3f82", "0xbf82"]


def test_poison_is_nan_in_bfloat16() -> None:

    assert np.isnan(decode(np.full(4, 0xFFFF, np.uint16), "bfloat16")).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_value_that_is_not_finite_is_found(dtype: str, bad: float) -> None:

    values = np.linspace(-3e4, 3e4, 24, dtype=np.float32).reshape(4, 6)
    assert all_finite(encode(values, dtype), dtype)
    assert all_finite(encode(values, dtype)[:, ::2], dtype)
    values[2, 4] = bad
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored = cut if dtype == "bfloat16" else values.astype(dtype)
    assert not all_finite(stored, dtype)
    assert not all_finite(stored[:, ::2], dtype)


@pytest.mark.parametrize("at", [0, 7, 8, 99])
def test_no_part_is_passed_over(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(cases, "CACHED", 8)
    stored = np.ones((10, 10), np.float16)
    assert all_finite(stored, "float16")
    stored.reshape(-1)[at] = np.inf
    assert not all_finite(stored, "float16")


def right(case: Case) -> dict[str, np.ndarray]:
    """The outputs as a right kernel leaves them, float32 or halves."""
    known = {
        n: decode(a, case.chain.tensor(n).dtype).reshape(case.chain.shape(n))
        for n, a in case.made.data.items()
    }
    found = evaluate(case.chain, known)
    return {n: encode(found[n], case.chain.tensor(n).dtype) for n in case.chain.outputs}


def test_a_program_is_wrong_where_an_output_was_not_written() -> None:
    case = of(TWO, unit=1e-2)
    stored = right(case)["E"]
    assert case.error("E", stored) < 1e-3
    holed = stored.copy()
    holed[0, 7, 3] = np.nan
    assert case.error("E", holed) == "output 'E' is not finite"
    assert "its error is" in str(case.error("E", stored * np.float16(1.5)))


def test_an_output_that_its_type_cannot_hold_is_not_expected_to_be_finite() -> None:
    of_half = of(of_dtype("float16", "Y[m] = sum[n] A[m, n] * 0.0 + 1e5"))
    infinite = np.full(8, np.inf, np.float16)
    assert of_half.error("Y", infinite) == 0.0
    nothing = of(of_dtype("float16", "Y[m] = sum[n] A[m, n]"))
    assert nothing.error("Y", infinite) == "output 'Y' is not finite"


SMALL_ROW = chain({"m": 64, "n": 32, "k": 16}, {"A": "mk", "B": "kn", "s": "m"},
                  ["Y[m, n] = sum[k] A[m, k] * B[k, n] * s[m]"])  # fmt: skip


def test_an_element_is_wrong_however_small_it_is_beside_others() -> None:
    """The norm of all elements hides one of them; what rounding may make of it does not."""
    case = of(SMALL_ROW)
    found = right(case)["Y"]
    assert isinstance(case.error("Y", found), float)
    small = np.unravel_index(np.argmin(np.abs(found)), found.shape)
    found[small] += 1e-3
    norm = np.linalg.norm(found)
    assert 1e-3 / norm < 1e-5
    assert "1 element too far off" in str(case.error("Y", found))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_windows_that_overlap_have_the_values_of_what_is_stored(dtype: str) -> None:
    c = padded(Windows(9, 3, before=1, after=1), Windows(7, 3, before=1), 4, 2, dtype=dtype)
    made = of(c).made
    stored = {n: decode(logical(c, n, a), c.tensor(n).dtype) for n, a in made.data.items()}
    assert made.data["A"].size < stored["A"].size
    np.testing.assert_array_equal(made.expected["E"], evaluate(c, stored)["E"])


OFF = {"float32": 3e-5, "float16": 3e-2, "bfloat16": 2e-1}


@pytest.mark.parametrize("dtype", OFF)
def test_what_is_off_by_a_little_more_than_is_tolerated_is_wrong(dtype: str) -> None:
    c = gemm(1, 64, 48, 32, 32, dtype)
    case = of(c, unit=tolerance(c))
    values = decode(right(case)["E"], dtype).astype(np.float32)
    assert isinstance(case.error("E", encode(values, dtype)), float)
    assert "its error is" in str(
        case.error("E", encode(values * np.float32(1 + OFF[dtype]), dtype))
    )


def test_a_cast_on_the_way_is_tolerated_as_what_is_stored() -> None:
    line = "Y[m] = sum[n] float16(A[m, n]) * 2.0"
    assert tolerance(chain({"m": 8, "n": 8}, {"A": "mn"}, [line])) == 1e-2


def test_a_maximum_of_nothing_hides_no_error() -> None:
    c = chain({"m": 8, "n": 8}, {"A": "mn"}, ["Y[m] = max[n] A[m, n] where n < m"])
    case = of(c)
    found = right(case)["Y"]
    assert found[0] == np.float32(LOWEST) and isinstance(case.error("Y", found), float)
    found[5] *= 1.001
    assert isinstance(case.error("Y", found), str)
    found = right(case)["Y"]
    found[0] = 0.0
    assert isinstance(case.error("Y", found), str)


def test_what_should_be_infinite_must_be() -> None:
    c = chain({"m": 8, "n": 8}, {"A": "mn"}, ["Y[m, n] = log(abs(A[m, n]) * (n < m))"])
    case = of(c)
    found = right(case)["Y"]
    assert np.isinf(found).any() and isinstance(case.error("Y", found), float)
    found[0, 0] = LOWEST
    assert "1 element should be infinite" in str(case.error("Y", found))


def test_whole_numbers_are_exact() -> None:
    c = of_dtype("int32", "Y[m] = sum[n] A[m, n] * 1000")
    case = of(c)
    found = right(case)["Y"]
    assert case.error("Y", found) == 0.0
    found[3] += 1
    assert isinstance(case.error("Y", found), str)


def of_dtype(dtype: str, line: str) -> Chain:
    return from_json({
        "axes": {"m": 8, "n": 100},
        "tensors": {"A": {"shape": ["m", "n"], "dtype": dtype},
                    "Y": {"shape": ["m"], "dtype": dtype}},
        "operators": [line],
    })  # fmt: skip


LOGARITHMS = {
    "of an input": ["Y[m, n] = log(A[m, n]) + sqrt(B[m, n]) + pow(D[m, n], 1.7)"],
    "through a sum": ["S[m] = sum[n] A[m, n]", "Y[m, n] = log(S[m]) * B[m, n] / D[m, n]"],
    "of what is left of one": ["Y[m, n] = log(1.0 - A[m, n]) * B[m, n]"],
}


@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("name", LOGARITHMS)
def test_inputs_lie_where_the_operators_are_defined(name: str, varied: bool) -> None:
    c = chain({"m": 16, "n": 16}, dict.fromkeys("ABD", "mn"), LOGARITHMS[name])
    case = of(c, varied=varied)
    assert np.isfinite(case.made.expected["Y"]).all()
    assert isinstance(case.error("Y", right(case)["Y"]), float)


SOFTMAX = chain(
    {"m": 16, "n": 64, "k": 32},
    {"A": "mk", "B": "nk"},
    [
        "S[m, n] = sum[k] A[m, k] * B[n, k]",
        "R[m] = max[n] S[m, n]",
        "Z[m] = sum[n] exp(S[m, n] - R[m])",
        "Y[m, n] = exp(S[m, n] - R[m]) / Z[m]",
    ],
)


@pytest.mark.parametrize("seed", range(20))
def test_a_right_kernel_is_right_on_varied_inputs(seed: int) -> None:
    """What float32 makes of a softmax is allowed, whatever the signs and scales."""
    case = of(SOFTMAX, seed, varied=True)
    data = {n: a.reshape(SOFTMAX.shape(n)) for n, a in case.made.data.items()}
    s = data["A"] @ data["B"].T
    p = np.exp(s - s.max(1, keepdims=True))
    y = p / p.sum(1, keepdims=True)
    assert y.dtype == np.float32
    assert isinstance(case.error("Y", y), float)
    assert isinstance(case.error("Y", y * np.float32(1.3)), str)


def test_a_rounded_number_may_be_the_next_one_where_it_is_near_and_nowhere_else() -> None:
    """All together they may be as far off as that makes them."""
    tensors = {"F": {"shape": ["m"]}, "E": {"shape": ["m"], "dtype": "uint8"}}
    lines = ["E[m] = min(max(round(F[m] * 40.0) + 128.0, 0.0), 255.0)"]
    made = of(from_json({"axes": {"m": 4096}, "tensors": tensors, "operators": lines}))
    expected = made.made.expected["E"]
    assert made.error("E", expected.astype("uint8")) == 0.0
    far = np.abs(np.abs(made.made.data["F"].astype(float) * 40.0) % 1 - 0.5)
    near = np.flatnonzero((far < 1e-4) & (expected > 0) & (expected < 255))
    other = np.flatnonzero((far > 0.01) & (expected > 0) & (expected < 255))
    assert len(near) > 0
    for where, passes in ((near[:1], True), (other[:1], False)):
        found = expected.astype("uint8")
        up = np.rint(made.made.data["F"][where] * 40.0) < made.made.data["F"][where] * 40.0
        found[where] += np.where(up, 1, -1).astype("int8").view("uint8")
        assert isinstance(made.error("E", found), float) == passes
    real = of(from_json({"axes": {"m": 4096}, "tensors": {"F": tensors["F"]},
                         "operators": [lines[0] + " - 0.25"]}))  # fmt: skip
    shifted = real.made.expected["E"].astype("float32")
    shifted[near[0]] += 1.0 if np.rint(real.made.data["F"][near[0]] * 40.0) < real.made.data["F"][
        near[0]] * 40.0 else -1.0  # fmt: skip
    assert isinstance(real.error("E", shifted), float)
