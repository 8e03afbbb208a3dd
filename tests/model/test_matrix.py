"""What the matrix unit's products are predicted to take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.model.matrix import SPLIT, matrix_seconds
from mcfuser.model.sequential import STEPS, core_seconds
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import named
from tests.support.plans import at_peak, columns

CPU = Device(
    "cpu", "cpu", "some", 2, (("float32", 1e11), ("matrix", 2e12)), 1e10, 1 << 20, 512, matrix="amx"
)
LINEAR = named("linear", {"m": 128, "n": 64, "k": 64})


def plan_of(chain: Chain) -> Plan:
    return Plan(program(chain), parse("mn.k"), frozenset("k"))


def more(plan: Plan, tiles: np.ndarray) -> np.ndarray:
    """Than on vectors that are never idle."""
    return matrix_seconds(plan, tiles, CPU, at_peak(plan, tiles, CPU))


def test_one_product_by_hand() -> None:
    """Two blocks of 64 rows and two of 32 columns: six products of pieces of each, and both
    operands' three pieces."""
    tiles = np.asarray([[64, 32, 64]], np.int64)
    flops, elements = 2 * 64 * 32 * 64, 64 * 64 + 32 * 64
    unit, vectors = 1e12, 5e10
    expected = 4 * (flops * 6 / unit - flops / vectors + SPLIT * 3 * elements / vectors)
    assert more(plan_of(LINEAR), tiles)[0] == pytest.approx(expected)


def test_rows_are_padded_to_whole_tile_registers() -> None:
    ragged, whole = (
        more(plan_of(named("linear", {"m": m, "n": 64, "k": 64})),
             np.asarray([[m, 32, 64]], np.int64))[0]
        for m in (120, 128)
    )  # fmt: skip
    flops = 2 * 8 * 32 * 64  # of eight rows, that vectors would compute
    spared = 2 * (SPLIT * 3 * 8 * 64 - flops) / 5e10
    assert whole - ragged == pytest.approx(spared)


def test_a_product_that_is_too_small_costs_what_it_did() -> None:
    tiles = np.asarray([[4, 32, 64], [64, 4, 64]], np.int64)
    assert np.array_equal(more(plan_of(LINEAR), tiles), [0.0, 0.0])


def test_only_candidates_that_use_the_unit_are_priced_so() -> None:
    """Its seconds take the place of those on vectors."""
    plan, tiles = plan_of(LINEAR), np.asarray([[128, 64, 64]] * 2, np.int64)
    knobs = TensorirKnobs(8, 2, 16)
    settings = columns(CPU, knobs, replace(knobs, matrix=True))
    before = core_seconds(plan, tiles, columns(CPU, knobs, knobs), CPU)
    found = core_seconds(plan, tiles, settings, CPU)
    assert found[0] == before[0]
    none = {tile: np.zeros(2) for tile in at_peak(plan, tiles, CPU)}
    alone = matrix_seconds(plan, tiles, CPU, none)[1]
    steps = 16 * 2 * 64  # micro-tiles of 8 x 32, each of the depth
    vectors = steps * (16 * STEPS["multiplied"] + (8 + 2) * STEPS["operand"]) * 2 * 16 / 5e10
    assert before[1] - found[1] >= vectors - alone > 0
    slow = replace(CPU, peak=(("float32", 1e11), ("matrix", 1e11)))
    assert core_seconds(plan, tiles, settings, slow)[1] > before[1]
