"""Random inputs: defined, positions where they are compared with some, of many signs and scales."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import from_json
from mcfuser.measure.inputs import (
    BLOCK,
    SMALL,
    DrawStyle,
    InputKind,
    draw_style,
    draw_values,
    input_kinds,
    positives,
)
from tests.support.chains import chain, named


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["Y[m, n] = U[m, n] / Z[m, n]"], {"Z"}),
        (["T[m, n] = U[m, n] + 1.0", "Y[m, n] = log(T[m, n]) * Z[m, n]"], {"U"}),
        (["S[m] = sum[n] U[m, n] * Z[m, n]", "Y[m] = sqrt(S[m])"], {"U", "Z"}),
        (["Y[m, n] = pow(U[m, n], 0.3) + pow(Z[m, n], 2.0)"], {"U"}),
        (["Y[m, n] = sqrt(pow(U[m, n], 2.0)) + sqrt(pow(Z[m, n], 3.0))"], {"Z"}),
        (["Y[m, n] = U[m, n] / (1.0 + exp(-Z[m, n]))"], set()),
        (["Q[m] = sum[n] U[m, n] * U[m, n]", "Y[m, n] = Z[m, n] / sqrt(Q[m] + 0.5)"], set()),
    ],
)
def test_what_must_not_be_negative_is_known(lines: list[str], found: set[str]) -> None:
    c = chain({"m": 8, "n": 8}, {"U": "mn", "Z": "mn"}, lines)
    assert positives(c) == found


def test_the_operands_of_an_attention_have_both_signs() -> None:
    assert not positives(named("attention", dict.fromkeys("bmnkh", 8)))


def test_whole_inputs_that_meet_positions_are_positions() -> None:
    c = from_json({
        "axes": {"m": 8, "n": 50},
        "tensors": {
            "X": {"shape": ["m", "n"]}, "t": {"shape": ["m"], "dtype": "int32"},
            "L": {"shape": ["m"], "dtype": "int64"}, "c": {"shape": ["n"], "dtype": "int32"},
        },
        "operators": ["Y[m] = sum[n] select(n == t[m], X[m, n], 0.0) * c[n] where n < L[m]"],
    })  # fmt: skip
    found = input_kinds(c, {})
    assert (found["t"].most, found["L"].most, found["c"].most) == (50, 50, None)
    rng = np.random.default_rng(0)
    values = draw_values(rng, found["L"], 1000, draw_style(rng, found["L"], False))
    assert values.min() == 0 and values.max() == 50
    values = draw_values(rng, found["c"], 1000, draw_style(rng, found["c"], False))
    assert values.min() < -2 and values.max() > 2


def test_varied_inputs_differ_in_sign_and_scale() -> None:
    kind, signs, sizes = InputKind("float32"), set(), list[float]()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = draw_values(rng, kind, 4096, draw_style(rng, kind, True))
        signs.add((bool((values > 0).any()), bool((values < 0).any())))
        each = np.abs(values).reshape(-1, BLOCK).max(1)
        assert (each == 0).sum() < len(each) / 4
        sizes += [float(each[each > 0].max() / each[each > 0].min())]
    assert signs == {(True, True), (True, False), (False, True)}
    assert min(sizes) > 8


def test_plain_inputs_are_normal_and_far_ones_stay_far() -> None:
    rng = np.random.default_rng(0)
    values = draw_values(
        rng, InputKind("float32"), 100_000, draw_style(rng, InputKind("float32"), False)
    )
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    far = InputKind("float32", offset=1e4)
    values = draw_values(rng, far, 1000, draw_style(rng, far, True))
    assert abs(values.mean() - 1e4) < 1 and values.std() < 2


def test_constants_of_products_are_as_small_as_a_models_weights() -> None:
    """Two float16 layers of depth 4,096 would overflow otherwise, now and then."""
    c = from_json({
        "axes": {"m": 4, "n": 2048, "k": 4096, "h": 64},
        "tensors": {
            "X": {"shape": ["m", "k"], "dtype": "float16"},
            "A": {"shape": ["k", "n"], "dtype": "float16", "constant": True},
            "B": {"shape": ["n", "h"], "dtype": "float16", "constant": True},
            "g": {"shape": ["n"], "dtype": "float16", "constant": True},
            "U": {"shape": ["m", "n"], "dtype": "float16"},
        },
        "operators": [
            "U[m, n] = sum[k] X[m, k] * A[k, n]", "V[m, n] = U[m, n] * g[n]",
            "Y[m, h] = sum[n] V[m, n] * B[n, h]",
        ],
    })  # fmt: skip
    kinds = input_kinds(c, {})
    assert [kinds[n].scale for n in ("X", "A", "B", "g")] == [1, 1 / 64, 2048**-0.5, 1]
    rng = np.random.default_rng(0)
    drawn = {n: draw_values(rng, kinds[n], 4096, draw_style(rng, kinds[n], False)) for n in "XA"}
    assert abs(drawn["A"].std() * 64 - 1) < 0.05 and abs(drawn["X"].std() - 1) < 0.05
    far = input_kinds(c, {"A": 1e4})["A"]
    values = draw_values(rng, far, 1000, draw_style(rng, far, False))
    assert 0.5 < values.std() < 2


def test_half_of_all_conditions_hold_and_of_varied_ones_some_share_does() -> None:
    kind, plain, shares = InputKind("bool"), InputKind("float32"), set[float]()
    rng = np.random.default_rng(0)
    assert abs(draw_values(rng, kind, 10_000, draw_style(rng, kind, False)).mean() - 0.5) < 0.03
    for seed in range(30):
        rng = np.random.default_rng(seed)
        shares.add(
            round(float(draw_values(rng, kind, 10_000, draw_style(rng, plain, True)).mean()), 1)
        )
    assert shares == {0.2, 0.5, 0.9}


def test_varied_inputs_are_halved_and_doubled_and_of_either_sign() -> None:
    rng, kind = np.random.default_rng(0), InputKind("float32")
    styles = [draw_style(rng, kind, True) for _ in range(200)]
    assert {s.scale for s in styles} == {0.5, 1.0, 2.0}
    assert {s.sign for s in styles} == {-1, 0, 1}
    assert {draw_style(rng, kind, True, 1).sign for _ in range(20)} == {1}


def test_whole_numbers_are_small_and_those_of_bytes_are_all() -> None:
    rng = np.random.default_rng(0)
    drawn = {d: draw_values(rng, InputKind(d), 4000, DrawStyle())
             for d in ("int32", "int8", "uint8")}  # fmt: skip
    assert {d: (a.min(), a.max()) for d, a in drawn.items()} == {
        "int32": (-SMALL, SMALL), "int8": (-128, 127), "uint8": (0, 255)
    }  # fmt: skip
    assert draw_values(rng, InputKind("int8", "positive"), 4000, DrawStyle()).min() == 1
