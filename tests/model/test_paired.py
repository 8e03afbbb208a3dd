"""What products in pairs are predicted to take."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.model.paired import COPY, PACE, paired_seconds
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
def test_one_product_by_hand(zero: bool) -> None:
    """Two blocks of 64 rows by two of 32 columns, each of two iterations of 32."""
    plan = Plan(program(product("uint8", zero)), parse("mn.k"), frozenset())
    tiles = np.asarray([[{"m": 64, "n": 32, "k": 32}[a] for a in plan.axes]], np.int64)
    visits, flops = 2 * 2 * 2, 2 * 64 * 32 * 32
    expected = visits * (COPY * 64 * 32 - flops * (1 - 1 / PACE)) / 5e10
    found = paired_seconds(plan, tiles, CPU, at_peak(plan, tiles, CPU))
    assert found[0] == pytest.approx(expected)
    settings = (TensorirKnobs(6, 2, 8, paired=p) for p in (False, True))
    plain, both = (core_seconds(plan, tiles, columns(CPU, k), CPU)[0] for k in settings)
    copied = visits * COPY * 64 * 32 / 5e10
    assert both < plain + expected  # more is saved than at the peak
    assert both > (plain + copied) / PACE


def test_what_is_not_paired_costs_what_it_did() -> None:
    plan = Plan(program(product("float32", False)), parse("mn.k"), frozenset())
    tiles = np.asarray([[{"m": 64, "n": 32, "k": 32}[a] for a in plan.axes]], np.int64)
    assert paired_seconds(plan, tiles, CPU, at_peak(plan, tiles, CPU))[0] == 0
