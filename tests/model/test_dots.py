"""What products of whole numbers are predicted to take, of short dot products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.device import Device
from mcfuser.lowering.tensorir.dots import PAIR, QUAD
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.model.dots import COPY, PACE, dot_seconds
from mcfuser.model.sequential import core_seconds
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.plans import at_peak, columns

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)


def product(left: str, zero: bool) -> Chain:
    lines = ["C[m, n] = sum[k] float32(X[m, k]) * float32(W[k, n])"]
    if zero:
        lines = [
            "P[m, k] = float32(X[m, k]) - 3.0",
            lines[0].replace("float32(X[m, k])", "P[m, k]"),
        ]
    tensors = {"X": {"shape": ["m", "k"], "dtype": left},
               "W": {"shape": ["k", "n"], "dtype": "int8", "constant": True}}  # fmt: skip
    return from_json({"axes": {"m": 128, "n": 64, "k": 64}, "tensors": tensors,
                      "operators": lines})  # fmt: skip


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("left", "length"), [("uint8", PAIR), ("uint8", QUAD), ("int8", QUAD)])
def test_one_product_by_hand(zero: bool, left: str, length: int) -> None:
    """Two blocks of 64 rows by two of 32 columns, each of two iterations of 32. Bytes without a
    sign are read where they lie, where four are multiplied at once."""
    device = replace(CPU, vnni=length == QUAD)
    plan = Plan(program(product(left, zero)), parse("mn.k"), frozenset())
    tiles = np.asarray([[{"m": 64, "n": 32, "k": 32}[a] for a in plan.axes]], np.int64)
    visits, flops = 2 * 2 * 2, 2 * 64 * 32 * 32
    copied = 0 if length == QUAD and left == "uint8" else visits * COPY * 64 * 32 / 5e10
    expected = copied - visits * flops * (1 - 1 / PACE[length]) / 5e10
    found = dot_seconds(plan, tiles, device, at_peak(plan, tiles, device))
    assert found[0] == pytest.approx(expected)
    settings = (TensorirKnobs(6, 2, 8, dots=d) for d in (0, length))
    plain, whole = (core_seconds(plan, tiles, columns(device, k), device)[0] for k in settings)
    assert whole < plain + expected  # more is saved than at the peak
    assert whole > (plain + copied) / PACE[length]


def test_products_of_floats_cost_what_it_did() -> None:
    plan = Plan(program(product("float32", False)), parse("mn.k"), frozenset())
    tiles = np.asarray([[{"m": 64, "n": 32, "k": 32}[a] for a in plan.axes]], np.int64)
    assert dot_seconds(plan, tiles, CPU, at_peak(plan, tiles, CPU))[0] == 0
