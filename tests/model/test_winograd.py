"""What convolutions by Winograd's algorithm are predicted to take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, rows_merged
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.model.sequential import core_seconds
from mcfuser.model.winograd import BACK, TURN, winograd_seconds
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.pictures import convolution
from tests.support.plans import at_peak, columns

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)


def plan_of(chain: Chain, dead: str) -> Plan:
    return Plan(program(chain), parse("mn.kst"), frozenset(dead))


def tiles_of(plan: Plan, **sizes: int) -> np.ndarray:
    return np.asarray([[sizes.get(a, 1) for a in plan.axes]], np.int64)


def more(plan: Plan, tiles: np.ndarray, out: int, cpu: Device = CPU) -> np.ndarray:
    """Than as sums over windows at the peak."""
    return winograd_seconds(plan, tiles, cpu, out, at_peak(plan, tiles, cpu))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("out", "pieces", "turn", "back"), [(2, 5, 2, 1.5), (4, 3, 22 / 6, 3)])
def test_one_convolution_by_hand(
    out: int, pieces: int, turn: float, back: float, last: bool
) -> None:
    """Blocks of `out` lines by two of 16 columns, each of two iterations over 4 channels. A number
    of F(2 x 2) has two terms, and one and a half of what it is turned back to."""
    plan = plan_of(rows_merged(convolution(12, 10, 32, channels=8, last=last)), "st")
    tiles = tiles_of(plan, m=10 * out, n=16, k=4, s=3, t=3)
    numbers = (out + 2) ** 2 * pieces
    terms = TURN[last] * turn * numbers * 4 + BACK[last] * back * numbers * 16
    each = 2 * numbers * 4 * 16 + terms
    visits, before = 12 // out * 2 * 2, 2 * 10 * out * 9 * 4 * 16
    weights = 4 * ((out + 2) ** 2 - 9) * 4 * 16 / 5e9  # a core has half of the bandwidth
    expected = visits * ((each - before) / 5e10 + weights)
    assert more(plan, tiles, out)[0] == pytest.approx(expected)


def test_many_channels_are_worth_it_and_few_are_not() -> None:
    found = []
    for channels in (4, 64):
        plan = plan_of(rows_merged(convolution(8, 32, channels, channels)), "kst")
        tiles = tiles_of(plan, m=64, n=channels, k=channels, s=3, t=3)
        found.append(more(plan, tiles, 2, replace(CPU, bandwidth=4e10))[0])
    assert found[0] > 0 > found[1]


def test_lines_that_are_half_a_pair_cost_as_much() -> None:
    """Of seven lines, and of eight."""
    odd, even = (
        more(p, tiles_of(p, m=10 * h, n=32, k=8, s=3, t=3), 2)[0]
        for h in (7, 8)
        for p in [plan_of(rows_merged(convolution(h, 10, 32, channels=8)), "mnkst")]
    )
    spared = 2 * 10 * 9 * 8 * 32 / 5e10  # what the eighth line costs as a sum over windows
    assert odd - even == pytest.approx(spared)


def test_other_tiles_and_settings_cost_what_they_did() -> None:
    plan = plan_of(rows_merged(convolution(6, 10, 32)), "kst")
    tiles = np.vstack([tiles_of(plan, m=m, n=16, k=5, s=3, t=3) for m in (16, 20, 20)])
    extra = more(plan, tiles, 2)
    assert extra[0] == 0.0 and extra[1] == extra[2] != 0.0
    plain, two = (TensorirKnobs(6, 2, 8, winograd=n) for n in (0, 2))
    before = core_seconds(plan, tiles, columns(CPU, plain, plain, plain), CPU)
    found = core_seconds(plan, tiles, columns(CPU, two, two, plain), CPU)
    assert found[0] == before[0] and found[2] == before[2]
    assert found[1] < before[1] + extra[1]  # a sum over windows takes longer than at the peak


def test_weights_are_read_again_for_each_tile_of_rows() -> None:
    """Of 256 x 256 channels and 14 x 14 positions: for all lines at once, and for each two."""
    plan = plan_of(rows_merged(convolution(14, 14, 256, 256)), "st")
    each = [tiles_of(plan, m=m, n=128, k=32, s=3, t=3) for m in (196, 28)]
    fast = replace(CPU, bandwidth=1e15)
    found, free = ([float(more(plan, tiles, 2, cpu)[0]) for tiles in each] for cpu in (CPU, fast))
    read = [a - b for a, b in zip(found, free, strict=True)]
    assert read[1] == pytest.approx(7 * read[0], rel=1e-3)
    assert read[0] == pytest.approx(4 * 7 * 256 * 256 / 5e9, rel=1e-3)


def test_weights_that_fill_memory_are_worth_no_larger_pieces() -> None:
    """Those of F(4 x 4), of 512 x 512 channels, are 38 MB, and 28 more than the windows'."""
    found = []
    for out in (2, 4):
        plan = plan_of(rows_merged(convolution(7, 7, 512, 512)), "mst")
        tiles = tiles_of(plan, m=49, n=128, k=64, s=3, t=3)
        found.append(more(plan, tiles, out)[0])
    assert found[0] < found[1]
