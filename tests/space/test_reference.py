"""The plain meaning of a chain, against NumPy."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import LOWEST, Digit, Padding, from_json
from mcfuser.expr import ARITY, Call, Const, Index, parse
from mcfuser.measure.rounding import allowed
from mcfuser.space import reference
from mcfuser.space.reference import as_dtype, contract, decode, encode, evaluate, logical, value
from tests.support.chains import chain, inputs, named
from tests.support.pictures import Windows, drawn_windows, padded

PLAIN = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "max": max, "min": min, "pow": lambda a, b: a**b,
    "neg": lambda a: -a, "abs": abs, "exp": math.exp, "exp2": lambda a: 2.0**a, "log": math.log,
    "sqrt": math.sqrt, "tanh": math.tanh, "erf": math.erf, "floor": math.floor, "round": round,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b, "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b),
    "not": lambda a: not a, "select": lambda c, a, b: a if c else b,
    "shift_right": lambda a, b: int(a) >> int(b), "bit_and": lambda a, b: int(a) & int(b),
}  # fmt: skip


@pytest.mark.parametrize("op", ARITY)
def test_every_operator_means_what_python_means(op: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        args = rng.choice([0.25, 0.5, 1.0, 2.0, 3.0], ARITY[op])
        e = Call(op, tuple(Index(f"a{i}") for i in range(len(args))))
        found = value(e, lambda r: None, lambda a, args=args: args[int(a[1])])
        assert found == pytest.approx(PLAIN[op](*args.tolist()))


@pytest.mark.parametrize(
    ("op", "said"), [("add", 2), ("sub", 0), ("mul", 1), ("div", 1.0), ("max", 1), ("neg", -1)]
)
def test_a_condition_counts_as_a_number(op: str, said: float) -> None:
    holds = Call("lt", (Const(1.0), Const(2.0)))
    found = value(Call(op, (holds,) * ARITY[op]), lambda r: None, lambda a: None)
    assert found == said and found.dtype != np.bool_


# --- operators ------------------------------------------------------------------------------


def masked_softmax(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
    scores = np.where(keep, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 5), st.integers(0, 99))
def test_attention_with_a_mask_a_cap_and_a_bias(extents, seed) -> None:
    c = named("attention", dict(zip("bmnkh", extents, strict=True)))
    x = inputs(c, seed)
    scores = x["Q"] @ x["K"].transpose(0, 2, 1)
    m, n = np.ogrid[: extents[1], : extents[2]]
    scores = 5 * np.tanh(scores / 5) + x["M"] - 0.1 * n
    expected = masked_softmax(scores, n <= m) @ x["V"]
    np.testing.assert_allclose(evaluate(c, x)["O"], expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(0, 99))
def test_products_norms_and_gates(extents, seed) -> None:
    sizes = dict(zip("mnkh", extents, strict=True))
    gated = named("gated", sizes)
    x = inputs(gated, seed)
    g, u = x["X"] @ x["W"], x["X"] @ x["V"]
    np.testing.assert_allclose(evaluate(gated, x)["E"], (g / (1 + np.exp(-g)) * u) @ x["D"])
    norm = named("rms_norm_projection", sizes)
    x = inputs(norm, seed)
    y = x["X"] / np.sqrt((x["X"] ** 2).sum(1, keepdims=True) + 0.5) * x["g"]
    np.testing.assert_allclose(evaluate(norm, x)["C"], y @ x["B"], rtol=1e-9)


def test_a_window_reads_at_sums_of_axes() -> None:
    c = named("convolution", {"m": 30, "k": 5, "c": 3, "h": 4})
    x = inputs(c)
    expected = sum(x["A"][k : k + 30] @ x["B"][k] for k in range(5))
    np.testing.assert_allclose(evaluate(c, x)["Y"], expected)


def test_a_sum_over_two_axes_with_casts() -> None:
    c = chain({"m": 3, "n": 4, "k": 5}, {"A": "mnk", "B": "kn"},
              ["C[m] = sum[n, k] float16(A[m, n, k]) * B[k, n]"])  # fmt: skip
    x = inputs(c)
    np.testing.assert_allclose(evaluate(c, x)["C"], np.einsum("mnk,kn->m", x["A"], x["B"]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-3, 12))
def test_outside_the_domain_stands_the_identity(m, n, gap) -> None:
    heads = ["T[m] = max[n]", "Z[m] = sum[n]", "Y[m, n] ="]
    lines = [f"{head} X[m, n] where n + {gap} <= m" for head in heads]
    c = chain({"m": m, "n": n}, {"X": "mn"}, lines, ["T", "Z", "Y"])
    x = inputs(c)["X"]
    found = evaluate(c, {"X": x})
    keep = np.arange(n) + gap <= np.arange(m)[:, None]
    np.testing.assert_allclose(found["Z"], np.where(keep, x, 0).sum(1))
    np.testing.assert_array_equal(found["Y"], np.where(keep, x, 0))
    np.testing.assert_array_equal(found["T"], np.where(keep, x, LOWEST).max(1))


def test_a_mask_of_infinities_leaves_no_nan_in_the_maximum() -> None:
    c = chain({"m": 2, "n": 3}, {"X": "mn"}, ["R[m] = max[n] X[m, n]"])
    found = evaluate(c, {"X": np.full((2, 3), -np.inf)})["R"]
    assert found.tolist() == [LOWEST, LOWEST]


def test_bodies_may_read_positions() -> None:
    c = chain({"m": 3, "n": 4}, {"X": "mn"}, ["Y[n, m] = X[m, n] * (m - 2 * n)"])
    x = inputs(c)["X"]
    m, n = np.ogrid[:3, :4]
    np.testing.assert_allclose(evaluate(c, {"X": x})["Y"], (x * (m - 2 * n)).T)


def test_results_are_float64() -> None:
    c = named("linear", {"m": 3, "n": 3, "k": 3})
    found = evaluate(c, {n: a.astype(np.float32) for n, a in inputs(c).items()})
    assert {a.dtype for a in found.values()} == {np.dtype(np.float64)}


def test_a_product_keeps_single_precision_and_widens_what_is_narrower() -> None:
    """Errors are in float32, which is twice as fast; a sum of ones in float16 ends at 2,048."""
    c = named("linear", {"m": 1, "n": 1, "k": 4096})
    (o,) = [o for o in c.operators if o.reduce == "sum"]
    roles = o.product
    assert roles is not None
    for narrow, wanted in ((np.float32, np.float32), (np.float16, np.float64)):
        known = {n: np.ones(c.shape(n), narrow) for n in c.inputs}
        found = contract(c, o, roles, known, roles.left)
        assert found.dtype == wanted and found.ravel().tolist() == [4096.0]


@pytest.mark.parametrize("columns", [2, 300])
@pytest.mark.parametrize("where", ["", " where m < n + 2"])
def test_a_product_in_parts_is_the_product(
    columns: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever operand is the larger one, and has the domain."""
    monkeypatch.setattr(reference, "BLOCK", 64)
    line = f"Y[b, m, h] = sum[n] P[b, m, n] * V[b, n, h]{where}"
    c = chain({"b": 3, "m": 17, "n": 11, "h": columns}, {"P": "bmn", "V": "bnh"}, [line])
    given = inputs(c)
    m, n = np.ogrid[:17, :11]
    kept = np.where(m < n + 2, given["P"], 0.0) if where else given["P"]
    found = evaluate(c, given)["Y"]
    np.testing.assert_allclose(found, np.einsum("bmn,bnh->bmh", kept, given["V"]), atol=1e-12)


def test_windows_that_overlap_are_multiplied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    c = padded(Windows(9, 3, before=1, after=1), Windows(7, 3, 2, before=1), columns=4)
    given = inputs(c)
    whole = evaluate(c, given)
    monkeypatch.setattr(reference, "BLOCK", 32)
    np.testing.assert_allclose(evaluate(c, given)["E"], whole["E"], atol=1e-12)
    expected = np.einsum("pkmsit,kstn->pmin", given["A"], given["B"])
    np.testing.assert_allclose(whole["C"], expected, atol=1e-12)


@pytest.mark.parametrize("reduce", ["", "sum[n] ", "max[n] "])
@pytest.mark.parametrize("extents", [(7, 40), (40, 7)])
def test_operators_in_runs_have_the_same_results(
    reduce: str, extents: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads at positions of other axes, positions themselves, and domains, in parts of each."""
    axes = "m" if reduce else "m, n"
    line = f"Y[{axes}] = {reduce}(X[m + 2 * n] * W[n, m] + m - 2 * n + b[m]) where n < m + 3"
    m, n = extents
    lines = [line, f"Z[{axes}] = Y[{axes}] * Y[{axes}]"]
    c = chain({"m": m, "n": n}, {"X": (m + 2 * n,), "W": "nm", "b": "m"}, lines, ["Y", "Z"])
    given = inputs(c)
    whole, errors = evaluate(c, given), allowed(c, given, evaluate(c, given), 1e-3)
    runs = list[object]()
    monkeypatch.setattr(reference, "CACHED", 16)
    some = reference._one_by_one
    monkeypatch.setattr(reference, "_one_by_one", lambda *a: runs.append(a[3]) or some(*a))
    found = evaluate(c, given)
    assert len(runs) > 7 and None not in runs[:7]
    for name in ("Y", "Z"):
        np.testing.assert_array_equal(found[name], whole[name])
        np.testing.assert_array_equal(allowed(c, given, found, 1e-3)[name], errors[name])


# --- how tensors lie ------------------------------------------------------------------------


def laid_out(strides: list[int] | None, offset: int):
    tensor: dict[str, object] = {"shape": ["m", "n"], "offset": offset}
    if strides is not None:
        tensor["strides"] = strides
    return from_json({"axes": {"m": 3, "n": 4}, "tensors": {"X": tensor},
                      "operators": ["Y[m, n] = X[m, n]"]})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_strides_count_elements(row, column, offset) -> None:
    array = np.arange(200.0).reshape(10, 20)
    found = logical(laid_out([row, column], offset), "X", array)
    expected = [[offset + m * row + n * column for n in range(4)] for m in range(3)]
    assert found.tolist() == expected


def test_without_strides_a_tensor_is_dense() -> None:
    array = np.arange(24.0)
    found = logical(laid_out(None, 5), "X", array)
    assert found.tolist() == np.arange(5.0, 17.0).reshape(3, 4).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_windows_of_padding(seed: int) -> None:
    """As numpy pads an array and looks through windows at it."""
    rng = Random(seed)
    down, across = drawn_windows(rng), drawn_windows(rng)
    value = rng.choice((0.0, -2.5))
    chain = padded(down, across, 0, 3, 2, value=value)
    if not chain.tensor("A").padding:
        value = 0.0
    array = np.random.default_rng(seed).standard_normal((2, 3, down.extent, across.extent))
    width = [(0, 0), (0, 0), *((w.before, w.after) for w in (down, across))]
    seen = np.lib.stride_tricks.sliding_window_view(
        np.pad(array, width, constant_values=value),
        [w.apart * (w.taps - 1) + 1 for w in (down, across)],
        (2, 3),
    )[:, :, :: down.step, :: across.step, :: down.apart, :: across.apart]
    expected = seen.transpose(0, 1, 2, 4, 3, 5)
    np.testing.assert_array_equal(logical(chain, "A", array), expected)


def test_padding_of_narrow_types_is_stored_as_they_are() -> None:
    chain = padded(Windows(2, 3, before=1, after=1), Windows(1, 1), value=-2.5, dtype="bfloat16")
    found = logical(chain, "A", np.full(6, 0x3F80, np.uint16))
    assert found.dtype == np.uint16
    assert found[0, 0, :, :, 0, 0].tolist() == [[0xC020, 0x3F80, 0x3F80], [0x3F80, 0x3F80, 0xC020]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_padding_of_converted_values_is_rounded_as_it_is_stored(dtype: str) -> None:
    chain = padded(Windows(2, 3, before=1, after=1), Windows(1, 1), value=0.1, dtype=dtype)
    stored = encode(np.full(6, 0.1), dtype)
    found = logical(chain, "A", as_dtype(decode(stored, dtype), dtype))
    assert found.dtype == np.float64
    assert (found == float(decode(stored, dtype)[0])).all() and found.flat[0] != 0.1


def test_windows_that_see_padding_alone() -> None:
    chain = padded(Windows(1, 1, 4, before=4, after=4), Windows(2, 1), 0, 1)
    found = logical(chain, "A", np.array([5.0, 6.0]))
    assert found[0, 0, :, 0, :, 0].tolist() == [[0, 0], [5, 6], [0, 0]]
    digits = [Digit(2, 1, 0)]
    nothing = reference._padded(np.array([5.0]), digits, [Padding(1, 1, 4, 3.0)], np.array(3.0))
    assert nothing.tolist() == [3.0, 3.0]


def test_a_transposed_tensor_is_a_view() -> None:
    array = np.arange(12.0).reshape(4, 3)
    found = logical(laid_out([1, 3], 0), "X", array)
    np.testing.assert_array_equal(found, array.T)
    assert np.shares_memory(found, array)


def test_parsing_and_evaluating_agree_on_precedence() -> None:
    e = parse("2 + 3 * 4 - 6 / 4 < 10 and not_(1 == 2)")
    assert bool(value(e, lambda r: None, lambda a: None)) is (2 + 3 * 4 - 6 / 4 < 10)
    assert value(parse("-2 - 3 * -(4 - 1)"), lambda r: None, lambda a: None) == 7


@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize(
    ("where", "inside"),
    [
        ("n <= m", lambda m, n, h: n <= m),
        ("h < n", lambda m, n, h: h < n),
        ("n < 4", lambda m, n, h: n < 4),
        ("h <= m", lambda m, n, h: h <= m),
        ("n <= m and h < n", lambda m, n, h: (n <= m) & (h < n)),
        ("n < L[b]", None),
    ],
)
def test_a_products_domain(where: str, inside, b: int) -> None:
    """Of its left operand, its right one, both, and neither."""
    c = from_json({
        "axes": {"b": b, "m": 5, "n": 7, "h": 6},
        "tensors": {"P": {"shape": list("bmn")}, "V": {"shape": list("bnh")},
                    "L": {"shape": ["b"]}},
        "operators": [f"U[b, m, h] = sum[n] float16(P[b, m, n]) * V[b, n, h] where {where}"],
    } if inside is None else {
        "axes": {"b": b, "m": 5, "n": 7, "h": 6},
        "tensors": {"P": {"shape": list("bmn")}, "V": {"shape": list("bnh")}},
        "operators": [f"U[b, m, h] = sum[n] float16(P[b, m, n]) * V[b, n, h] where {where}"],
    })  # fmt: skip
    x = inputs(c, 0)
    i, m, n, h = np.ogrid[:b, :5, :7, :6]
    if inside is None:
        x["L"] = np.asarray([0.0, 3.0, 9.0])[:b]
        kept = n < x["L"][i]
    else:
        kept = inside(m, n, h)
    every = x["P"][:, :, :, None] * x["V"][:, None]
    expected = np.where(kept, every, 0.0).sum(2)
    np.testing.assert_allclose(evaluate(c, x)["U"], expected, rtol=1e-12, atol=1e-14)


def test_what_a_domain_leaves_out_may_be_infinite() -> None:
    c = from_json({
        "axes": {"m": 4, "n": 4, "h": 2},
        "tensors": {"P": {"shape": ["m", "n"]}, "V": {"shape": ["n", "h"]}},
        "operators": ["U[m, h] = sum[n] P[m, n] * V[n, h] where n <= m"],
    })  # fmt: skip
    x = inputs(c, 0)
    x["P"][np.triu_indices(4, 1)] = np.inf
    assert np.isfinite(evaluate(c, x)["U"]).all()


def test_what_meets_what_a_domain_leaves_out_may_be_infinite_too() -> None:
    """The domain masks P; zero times what V has there would be no number."""
    c = from_json({
        "axes": {"m": 4, "n": 4, "h": 2},
        "tensors": {"P": {"shape": ["m", "n"]}, "V": {"shape": ["n", "h"]}},
        "operators": ["U[m, h] = sum[n] P[m, n] * V[n, h] where n <= m"],
    })  # fmt: skip
    x = inputs(c, 0)
    x["V"][2] = np.inf
    found = evaluate(c, x)["U"]
    np.testing.assert_allclose(found[:2], (np.tril(x["P"])[:2, :2] @ x["V"][:2]))
    assert not np.isfinite(found[2:]).any()


def quotient(divisor: str) -> np.ndarray:
    """X / D, where X is all zeros and so is D, whatever it reads."""
    lines = [divisor, "Y[m, n] = X[m, n] / D[m]"]
    of = chain({"m": 2, "n": 3}, {"X": "mn", "V": "m"}, lines)
    return evaluate(of, {"X": np.zeros((2, 3), np.float32), "V": np.zeros(2, np.float32)})["Y"]


def test_nothing_over_a_sum_of_nothing_is_nothing() -> None:
    assert not quotient("D[m] = sum[n] X[m, n]").any()


@pytest.mark.parametrize("divisor", ["D[m] = V[m] * 2.0", "D[m] = max[n] X[m, n]"])
def test_nothing_over_nothing_that_is_no_sum_is_not_a_number(divisor: str) -> None:
    assert np.isnan(quotient(divisor)).all()
