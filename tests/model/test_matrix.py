"""What the matrix unit's products are predicted to take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.model.matrix import SPLIT, matrix_seconds
from mcfuser.model.roofline import sequential
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import named

CPU = Device(
    "cpu", "cpu", "some", 2, (("float32", 1e11), ("matrix", 2e12)), 1e10, 1 << 20, 512, matrix="amx"
)
LINEAR = named("linear", {"m": 128, "n": 64, "k": 64})


def plan_of(chain: Chain) -> Plan:
    return Plan(program(chain), parse("mn.k"), frozenset("k"))


def test_one_product_by_hand() -> None:
    """Two blocks of 64 rows and two of 32 columns: six products of pieces of each, and both
    operands' three pieces."""
    tiles = np.asarray([[64, 32, 64]], np.int64)
    flops, elements = 2 * 64 * 32 * 64, 64 * 64 + 32 * 64
    unit, vectors = 1e12, 5e10
    expected = 4 * (flops * 6 / unit - flops / vectors + SPLIT * 3 * elements / vectors)
    assert matrix_seconds(plan_of(LINEAR), tiles, CPU)[0] == pytest.approx(expected)


def test_rows_are_padded_to_whole_tile_registers() -> None:
    ragged, whole = (
        matrix_seconds(plan_of(named("linear", {"m": m, "n": 64, "k": 64})),
                       np.asarray([[m, 32, 64]], np.int64), CPU)[0]
        for m in (120, 128)
    )  # fmt: skip
    flops = 2 * 8 * 32 * 64  # of eight rows, that vectors would compute
    spared = 2 * (SPLIT * 3 * 8 * 64 - flops) / 5e10
    assert whole - ragged == pytest.approx(spared)


def test_a_product_that_is_too_small_costs_what_it_did() -> None:
    tiles = np.asarray([[4, 32, 64], [64, 4, 64]], np.int64)
    assert np.array_equal(matrix_seconds(plan_of(LINEAR), tiles, CPU), [0.0, 0.0])


def test_only_candidates_that_use_the_unit_are_priced_so() -> None:
    plan, tiles = plan_of(LINEAR), np.asarray([[128, 64, 64]] * 2, np.int64)
    before = sequential(plan, tiles, CPU)
    found = sequential(plan, tiles, CPU, np.asarray([False, True]))
    assert found[0] == before[0]
    assert found[1] == pytest.approx(before[1] + matrix_seconds(plan, tiles, CPU)[1])
    slow = replace(CPU, peak=(("float32", 1e11), ("matrix", 1e11)))
    assert sequential(plan, tiles, slow, np.asarray([True, True]))[0] > before[0]
