"""Micro-kernels that store what a map makes of their accumulators."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.tensorir import generate
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate
from tests.support.host import WIDE_QUADS, needs_wide_quads
from tests.support.pairs import paired
from tests.support.pictures import convolution
from tests.support.schedules import random_inputs, schedules
from tests.support.tensorir_agree import WIDE, drawn_arrays, error, run


def linear(m: int, n: int, dtype: str = "float32") -> Chain:
    """A product with a bias, a residual and a gate by row, of which several steps cost time."""
    tensors = {
        "A": {"shape": ["m", "k"]},
        "B": {"shape": ["k", "n"], "constant": True},
        "D": {"shape": ["n"]},
        "R": {"shape": ["m", "n"]},
        "G": {"shape": ["m"]},
        "E": {"shape": ["m", "n"], "dtype": dtype},
    }
    lines = [
        "C[m, n] = sum[k] A[m, k] * B[k, n]",
        "E[m, n] = max(C[m, n] * sqrt(abs(G[m])) + D[n] + R[m, n], 0.0 - 1.0)",
    ]
    return from_json({"axes": {"m": m, "n": n, "k": 24}, "tensors": tensors, "operators": lines})


@paired(
    rows=[(1, 1), (5, 5), (20, 16), (32, 16), (35, 35)],
    dtype=["float32", "float16", "int8"],
    knobs=[WIDE, TensorirKnobs(6, 4, 16), TensorirKnobs(4, 3, 8)],
)
def test_rows_past_the_extent_are_not_stored(
    rows: tuple[int, int], dtype: str, knobs: TensorirKnobs
) -> None:
    """Nor is a row of the residual read there: it may be memory's end."""
    m, tile = rows
    chain = linear(m, 96, dtype)
    schedule = schedules(chain, parse("mn.k"), {"m": tile, "n": 96, "k": 24})
    assert "C_tile" not in generate(schedule, "kernel", knobs).text
    inputs = random_inputs(chain, 0)
    most = {"float32": 1e-5, "float16": 2e-3, "int8": 1.01}[dtype]
    assert error(run(schedule, chain, knobs, inputs), evaluate(chain, inputs)) < most


def test_columns_past_the_extent_need_the_tile() -> None:
    chain = linear(20, 70)
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 70, "k": 24})
    assert "C_tile" in generate(schedule, "kernel", WIDE).text
    inputs = random_inputs(chain, 0)
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-5


@paired(picture=[(8, 8), (7, 9)], out=[0, 2, 4], last=[False, True])
def test_of_convolutions_as_well(picture: tuple[int, int], out: int, last: bool) -> None:
    """By windows, and by Winograd's algorithm, of whose pieces some are cut."""
    chain = convolution(*picture, 32, channels=8, last=last)
    knobs = TensorirKnobs(8, 2, 16, winograd=out)
    tiles = {a.name: chain.size(a.name) for a in chain.axes} | {"p": 1, "g": 1}
    schedule = schedules(chain, parse("mn.kist"), tiles)
    text = generate(schedule, "kernel", knobs).text
    assert ("C_numbers" in text) == bool(out)
    assert "C_tile" not in text
    flat, known = drawn_arrays(chain)
    assert error(run(schedule, chain, knobs, flat), evaluate(chain, known)) < 1e-5


@needs_wide_quads
@pytest.mark.parametrize("m", [16, 21])
def test_of_products_of_bytes_as_well(m: int) -> None:
    """Scaled, shifted, rounded and stored as bytes again."""
    chain = from_json({
        "axes": {"m": m, "n": 64, "k": 32},
        "tensors": {
            "A": {"shape": ["m", "k"], "dtype": "uint8"},
            "B": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
            "D": {"shape": ["n"]}, "E": {"shape": ["m", "n"], "dtype": "uint8"},
        },
        "operators": [
            "C[m, n] = sum[k] float32(A[m, k]) * float32(B[k, n])",
            "E[m, n] = min(max(round(C[m, n] * 0.0013 + D[n]) + 128.0, 0.0), 255.0)",
        ],
    })  # fmt: skip
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 64, "k": 32})
    text = generate(schedule, "kernel", WIDE_QUADS).text
    assert "vpdpbusd" in text
    assert "C_tile" not in text
    rng = np.random.default_rng(0)
    inputs = random_inputs(chain, 0)
    inputs["A"] = rng.integers(0, 256, (m, 32)).astype("float64")
    inputs["B"] = rng.integers(-128, 128, (32, 64)).astype("float64")
    assert error(run(schedule, chain, WIDE_QUADS, inputs), evaluate(chain, inputs)) < 1e-6
