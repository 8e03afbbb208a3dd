"""Blocks that copy the same: along which axes they lie, how many they are, what they share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.backends.cpu.backend import CPU
from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.devices.cpu import unmeasured_cpu
from mcfuser.lowering.tensorir.neighbours import (
    STEP,
    groups,
    have_neighbours,
    neighbours,
    shared_by,
    sharing,
)
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.matrices import matrix
from tests.support.pictures import Windows, padded
from tests.support.schedules import schedules

HEADS = attention(3, 64, 64, 16, 16, "float32")
REPEATED = {
    "axes": {"g": 2, "r": 3, "m": 32, "n": 32, "k": 16},
    "tensors": {"Q": {"shape": ["g", "r", "m", "k"]}, "K": {"shape": ["g", "n", "k"]}},
    "operators": ["C[g, r, m, n] = sum[k] Q[g, r, m, k] * K[g, n, k]"],
}


def shared(chain: Chain, expression: str, **tiles: int) -> tuple[tuple[str, ...], list[str]]:
    """The axes along which blocks copy the same, and what they share."""
    schedule = schedules(chain, parse(expression), tiles)
    found = sharing(schedule.chain, {b.name: b for b in schedule.buffers}, schedule.body)
    return found.axes, [s.read.tensor for s in found.loads]


def test_rows_of_a_head_share_keys_and_values() -> None:
    tiles = {"m": 16, "n": 64, "k": 16, "h": 16}
    assert shared(HEADS, "mh.nk", **tiles) == (("m",), ["K", "V"])
    assert shared(HEADS, "mh.nk", **{**tiles, "h": 8}) == (("m",), ["K", "V"])
    assert shared(HEADS, "m.n(k,h)", **{**tiles, "h": 8}) == (("m",), ["K"]), "a loop copies V"


def test_heads_of_a_group_share_keys() -> None:
    found = shared(from_json(REPEATED), "gr.mn.k", g=1, r=1, m=8, n=32, k=16)
    assert found == (("r", "m"), ["K"])


def test_what_a_loop_inside_a_block_copies_is_not_shared() -> None:
    assert shared(HEADS, "mh.nk", m=16, n=32, k=16, h=16) == ((), [])


def test_blocks_that_copy_nothing_have_no_neighbours() -> None:
    """A constant is packed before, and one row reads its keys where they lie."""
    assert shared(matrix(64, 64, 16), "mn.k", m=16, n=32, k=16) == ((), [])
    assert shared(matrix(64, 32, 16, constant=False), "mn.k", m=16, n=32, k=16)[0] == ("m",)
    row = attention(3, 1, 64, 16, 16, "float32")
    assert shared(row, "mh.nk", m=1, n=64, k=16, h=16) == ((), [])


def test_extents_that_are_known_at_run_time_have_none() -> None:
    document = {
        "axes": {"b": 2, "m": [1, 64], "n": 32, "k": 16},
        "tensors": {"A": {"shape": ["b", "m", "k"]}, "B": {"shape": ["b", "k", "n"]}},
        "operators": ["C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]"],
    }
    assert shared(from_json(document), "mn.k", m=16, n=32, k=16) == ((), [])


def test_columns_of_a_picture_share_its_box() -> None:
    lines = Windows(14, 3, before=1, after=1)
    chain = padded(lines, lines, columns=64)
    tiles = {a.name: chain.size(a.name) for a in chain.axes} | {"m": 7, "n": 16}
    assert shared(chain, "mn.ikst", **tiles) == (("n",), ["A"])
    assert shared(chain, "mn.kist", **{**tiles, "k": 1}) == ((), []), "a box for every channel"


@given(st.integers(1, 200), st.integers(1, 32))
def test_groups_are_as_even_as_can_be(blocks: int, most: int) -> None:
    count = int(groups(np.asarray(blocks), np.asarray(most)))
    each = -(-blocks // count)
    assert each <= most
    assert (count - 1) * most < blocks, "one less would not do"


@pytest.mark.parametrize(("m", "many"), [(16, 4), (24, 3), (64, 1)])
def test_neighbours_are_the_blocks_of_a_head(m: int, many: int) -> None:
    tiles = {"m": m, "n": 64, "k": 16, "h": 16}
    plan = Plan(program(HEADS), parse("mh.nk"), frozenset("nkh"))
    rows = np.asarray([[tiles[a] for a in plan.axes]])
    assert neighbours(plan, rows).tolist() == [many]
    assert have_neighbours(plan, rows, unmeasured_cpu()).tolist() == [many > 1]
    assert [s.read.tensor for s in shared_by(plan).loads] == ["K", "V"]
    numbers = np.asarray([1, STEP, STEP**2, STEP**3])
    settings = {"neighbours": numbers, "winograd": numbers * 0}
    enough = CPU.feasible(plan, rows.repeat(4, axis=0), settings, unmeasured_cpu())
    assert enough.tolist() == [n < STEP * many for n in numbers], "of enough one is enough"


def test_parts_share_nothing() -> None:
    plan = Plan(program(gemm(1, 64, 64, 64, 64, "float32")), parse("mh.nk"), frozenset("k"))
    assert shared_by(plan).loads == ()
    split = replace(plan, split="n", parts=2)
    assert shared_by(split).loads == ()
