"""What kernels for CPUs are predicted to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from mcfuser.chain import Chain, from_json, to_json
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.model.sequential import FETCHED, LAUNCH, LINE, STEPS, core_seconds, sequential
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan, blocks, work
from mcfuser.space.program import program
from tests.support.chains import named
from tests.support.plans import candidates, columns

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)
STEP = 2 * 8 / 5e10
"""Seconds in which a core multiplies and adds a vector at its peak."""
SMALL, TALL = TensorirKnobs(6, 2, 8), TensorirKnobs(4, 3, 8)
LINEAR = named("linear", {"m": 64, "n": 64, "k": 64})


def linear(expression: str = "mn.k", chain: Chain = LINEAR, dead: str = "k") -> Plan:
    return Plan(program(chain), parse(expression), frozenset(dead))


def tiles_of(plan: Plan, **sizes: int) -> np.ndarray:
    return np.asarray([[sizes.get(a, 1) for a in plan.axes]], np.int64)


def core(plan: Plan, tiles: np.ndarray, knobs: TensorirKnobs = SMALL, cpu: Device = CPU) -> float:
    return float(core_seconds(plan, tiles, columns(cpu, *[knobs] * len(tiles)), cpu)[0])


def test_one_candidate_by_hand() -> None:
    """Four blocks of 30 rows times 32 columns: ten micro-tiles of six rows by two vectors, whose
    innermost loop takes as long as its arithmetic at least. They shift what they store: no pass
    over it reads it again."""
    chain = named("linear", {"m": 60, "n": 64, "k": 64})
    plan = linear(chain=chain)
    tiles = tiles_of(plan, m=30, n=32, k=64)
    inner = max(12 * STEPS["multiplied"] + (6 + 2) * STEPS["operand"], 12)
    product = 10 * (STEPS["run"] + 64 * inner + 2 * 12 * STEPS["summed"])
    zero = 30 * 32 / 8 * STEPS["vector"]
    shift = max((2 + 2 * 0.3) * 30 * 4 * STEPS["vector"], 2 * 30 * 32 / 16)
    stored = 4 * 30 * 32 / CPU.bandwidth
    each = STEP * (product + zero + shift) + stored
    read = STEP * STEPS["refilled"] * 4 * (60 * 64 + 64 * 64 + 64) / LINE
    assert blocks(plan, tiles)[0] == 4
    assert core(plan, tiles) == pytest.approx(4 * each + read)
    found = sequential(plan, tiles, columns(CPU, SMALL), CPU)[0]
    assert found == pytest.approx(2 * each + read / 2 + LAUNCH)


@settings(max_examples=80, deadline=None)
@given(candidates())
def test_no_candidate_beats_the_peak(found: tuple[Plan, np.ndarray]) -> None:
    plan, tiles = found
    knobs = columns(CPU, *[SMALL] * len(tiles))
    times = sequential(plan, tiles, knobs, CPU)
    assert np.all(np.isfinite(times))
    assert np.all(times >= (1 - 1e-12) * work(plan, tiles) / CPU.throughput("float32"))
    one = columns(CPU, SMALL)
    alone = [sequential(plan, tiles[i : i + 1], one, CPU)[0] for i in range(len(tiles))]
    assert times.tolist() == alone


@settings(max_examples=40, deadline=None)
@given(candidates())
def test_a_better_device_is_never_slower(found: tuple[Plan, np.ndarray]) -> None:
    plan, tiles = found
    knobs = columns(CPU, *[TALL] * len(tiles))
    times = sequential(plan, tiles, knobs, CPU)
    wider = replace(CPU, bandwidth=2 * CPU.bandwidth)
    faster = replace(CPU, peak=tuple((d, 2 * p) for d, p in CPU.peak))
    assert np.all(sequential(plan, tiles, knobs, wider) <= times)
    assert np.all(sequential(plan, tiles, knobs, faster) <= times)


def test_rows_that_fill_no_micro_tile_cost_as_much() -> None:
    """Of seven rows, two micro-tiles of four; of eight as well."""
    seven, eight = (
        core(linear(chain=named("linear", {"m": m, "n": 16, "k": 512})),
             np.asarray([[m, 16, 512]], np.int64))
        for m in (7, 8)
    )  # fmt: skip
    assert seven == pytest.approx(eight, rel=0.03)


@pytest.mark.parametrize(("m", "n"), [(60, 16), (6, 64)])
def test_operands_that_outgrow_the_first_cache_are_read_from_the_second(
    m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a depth of 4,096 fill it, and so do panels of 16 columns."""
    plan = linear(chain=named("linear", {"m": m, "n": n, "k": 4096}), dead="mnk")
    tiles = np.asarray([[m, n, 4096]], np.int64)
    found = core(plan, tiles)
    monkeypatch.setattr("mcfuser.model.sequential.FIRST", 1 << 30)
    rows, vectors = m * (n // 16), n // 8 * (m // 6)
    far = STEP * 4096 * (STEPS["left"] * rows + STEPS["right"] * vectors)
    assert found - core(plan, tiles) == pytest.approx(far, rel=0.05)


def test_what_is_fetched_ahead_for_wide_vectors_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """One micro-tile of eight rows and two vectors: its rows and its panel outgrow the cache."""
    wide, step = replace(CPU, bits=512), 2 * 16 / 5e10
    plan = linear(chain=named("linear", {"m": 8, "n": 32, "k": 4096}), dead="mnk")
    tiles, knobs = np.asarray([[8, 32, 4096]], np.int64), TensorirKnobs(8, 2, 16)
    found = core(plan, tiles, knobs, wide)
    monkeypatch.setattr("mcfuser.model.sequential.FIRST", 1 << 30)
    far = step * 4096 * (FETCHED["left"] * 8 + FETCHED["right"] * 2)
    assert found - core(plan, tiles, knobs, wide) == pytest.approx(far, rel=0.01)
    assert all(FETCHED[name] < STEPS[name] for name in ("left", "right", "refilled"))


def test_a_tile_that_outgrows_the_first_cache_is_far_and_worse_across_its_rows() -> None:
    """The epilogue of a product, whose tile has 64 or 16 KiB, along its rows and across them."""
    along = from_json({
        "axes": {"m": 256, "n": 64, "k": 8},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"], "constant": True}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]", "E[m, n] = C[m, n] + 1.0"],
    })  # fmt: skip
    document: dict[str, Any] = to_json(along)
    document["operators"][1] = "E[n, m] = C[m, n] + 1.0"
    del document["tensors"]["E"]
    across = from_json(document)
    found = {
        (name, m): core(linear(chain=chain), np.asarray([[m, 64, 8]], np.int64)) * m / 256
        for name, chain in (("along", along), ("across", across)) for m in (256, 64)
    }  # fmt: skip
    whole = 256 * 64
    turned = STEP * STEPS["turned"] * whole
    assert found["across", 256] - found["along", 256] > 0.8 * turned
    assert found["across", 64] == pytest.approx(found["along", 64], rel=0.5)


@pytest.mark.parametrize(
    ("constant", "strides", "slow"),
    [(False, [1, 64], True), (True, [1, 64], False), (False, [64, 1], False), (False, None, False)],
)
def test_a_right_operand_that_lies_by_rows_of_the_sum_is_packed(
    constant: bool, strides: list[int] | None, slow: bool
) -> None:
    document: dict[str, Any] = to_json(LINEAR)
    document["tensors"]["B"] = {"shape": ["k", "n"], "constant": constant}
    if strides:
        document["tensors"]["B"]["strides"] = strides
    tiles = np.asarray([[32, 32, 64]], np.int64)
    extra = core(linear(chain=from_json(document)), tiles) - core(linear(), tiles)
    expected = 4 * STEP * STEPS["packed"] * 64 * 32 if slow else 0.0
    assert extra == pytest.approx(expected, abs=1e-18)


@pytest.mark.parametrize(("rows", "packed"), [(1, False), (2, True), (16, True)])
def test_one_row_reads_the_right_operand_where_it_lies(rows: int, packed: bool) -> None:
    """A decode step uses each key once: packing would cost more than the product."""
    document: dict[str, Any] = to_json(LINEAR)
    document["tensors"]["B"] = {"shape": ["k", "n"], "strides": [1, 64]}
    tiles = np.asarray([[rows, 32, 64]], np.int64)
    extra = core(linear(chain=from_json(document)), tiles) - core(linear(), tiles)
    assert (extra > 0) == packed


@pytest.mark.parametrize(("n", "tile", "filled"), [(64, 32, False), (20, 20, True), (40, 20, True)])
def test_columns_in_which_no_panels_lie_are_copied(n: int, tile: int, filled: bool) -> None:
    """Panels of 8 columns do not divide 20, nor begin where tiles of 20 of 40 columns do."""
    document: dict[str, Any] = to_json(named("linear", {"m": 6, "n": n, "k": 64}))
    chains = []
    for constant in (False, True):
        document["tensors"]["B"] = {"shape": ["k", "n"], "constant": constant}
        chains.append(from_json(document))
    plan, fixed = (linear(chain=c) for c in chains)
    tiles = np.asarray([[6, tile, 64]], np.int64)
    extra = core(plan, tiles) - core(fixed, tiles)
    columns = -(-n // tile) * tile
    expected = STEP * STEPS["filled"] * 64 * columns if filled else 0.0
    assert extra == pytest.approx(expected, abs=1e-18)


def test_padding_costs_the_copies_of_its_lines() -> None:
    """Windows over 6 x 10 elements of 5 channels, which are read with one more on each side."""
    document: dict[str, Any] = {
        "axes": {"m": 6, "i": 10, "n": 16, "k": 5, "s": 3, "t": 3},
        "tensors": {
            "A": {"shape": ["k", "m", "i", "s", "t"], "strides": [96, 12, 1, 12, 1]},
            "B": {"shape": ["k", "s", "t", "n"], "constant": True},
        },
        "operators": ["C[m, i, n] = sum[k, s, t] A[k, m, i, s, t] * B[k, s, t, n]"],
    }
    chains = [from_json(document)]
    document["tensors"]["A"] |= {"strides": [60, 10, 1, 10, 1], "padding": [
        {"dimensions": [1, 3], "extent": 6, "stride": 10, "before": 1},
        {"dimensions": [2, 4], "extent": 10, "stride": 1, "before": 1},
    ]}  # fmt: skip
    chains.append(from_json(document))
    found = []
    for chain in chains:
        plan = Plan(program(chain), parse("mn.kist"), frozenset("minkst"))
        found.append(core(plan, tiles_of(plan, **document["axes"])))
    copied = 5 * 8 * 12
    lines = STEP * (STEPS["copied"] * copied + STEPS["line"] * copied / 12)
    assert found[1] - found[0] == pytest.approx(lines)


def test_slow_functions_are_told_from_others() -> None:
    def chain(function: str) -> Chain:
        return from_json({"axes": {"m": 32, "n": 64}, "tensors": {"X": {"shape": ["m", "n"]}},
                          "operators": [f"Y[m, n] = {function}(X[m, n])"]})  # fmt: skip

    tiles = np.asarray([[32, 64]], np.int64)
    slow, quick = (
        core(Plan(program(chain(f)), parse("mn"), frozenset("mn")), tiles) for f in ("exp", "abs")
    )
    assert slow - quick == pytest.approx(STEP * STEPS["slow"] * 32 * 8)


@pytest.mark.parametrize(
    ("extent", "tile", "vectors", "single"),
    [(32, 32, 4, 0), (32, 16, 2, 0), (28, 28, 4, 0), (25, 25, 3, 1), (7, 7, 2, 0), (4, 4, 1, 0),
     (3, 3, 0, 3), (1, 1, 0, 1), (28, 16, 1.5, 2), (30, 16, 1.5, 3), (20, 12, 1, 2)],
)  # fmt: skip
def test_vectors_along_an_axis(extent: int, tile: int, vectors: float, single: float) -> None:
    """Of eight lanes; on average over tiles where the last one ends early. Of 28 elements in tiles
    of 16, the second tile has one vector and four elements alone."""
    chain = from_json({"axes": {"m": 4, "n": extent}, "tensors": {"X": {"shape": ["m", "n"]}},
                       "operators": ["Y[m, n] = abs(X[m, n])"]})  # fmt: skip
    plan = Plan(program(chain), parse("mn"), frozenset("mn" if tile >= extent else "m"))
    tiles = tiles_of(plan, m=4, n=tile)
    steps = 4 * (STEPS["run"] + 2.3 * (vectors * STEPS["vector"] + single * STEPS["single"]))
    trips = -(-extent // tile)
    read = STEPS["refilled"] * 4 * 4 * tile * trips / LINE
    stored = trips * 4 * 4 * tile / CPU.bandwidth
    assert core(plan, tiles) == pytest.approx(STEP * (trips * steps + read) + stored)


def test_a_window_that_no_rows_share_is_reduced() -> None:
    """Two vectors of four cover 7 elements of a line."""
    chain = from_json({
        "axes": {"b": 4, "m": 7, "i": 7, "k": 3, "s": 3},
        "tensors": {"A": {"shape": ["b", "m", "k", "i", "s"], "strides": [81, 9, 9, 1, 1]},
                    "B": {"shape": ["b", "k", "s"], "constant": True}},
        "operators": ["C[b, m, i] = sum[k, s] A[b, m, k, i, s] * B[b, k, s]"],
    })  # fmt: skip
    plan = Plan(program(chain), parse("mi.ks"), frozenset("miks"))
    zero = 49 / 8 * STEPS["vector"]
    summed = 7 * (STEPS["run"] + 9 * 2 * STEPS["reduced"])
    stored = 4 * 49 / CPU.bandwidth
    read = STEPS["refilled"] * 4 * (9 * 9 + 9) / LINE
    expected = 4 * (STEP * (zero + summed + read) + stored)
    assert core(plan, tiles_of(plan, m=7, i=7, k=3, s=3)) == pytest.approx(expected)


def test_combining_the_parts_of_a_split_is_a_second_launch() -> None:
    whole = Plan(program(LINEAR), parse("mn.k"), frozenset("mn"))
    tiles = tiles_of(whole, m=64, n=64, k=16)
    free = replace(CPU, bandwidth=1e30, peak=(("float32", 1e30),))
    knobs = columns(free, SMALL)
    split = replace(whole, split="k", parts=2)
    assert sequential(whole, tiles, knobs, free)[0] == pytest.approx(LAUNCH)
    assert sequential(split, tiles, knobs, free)[0] == pytest.approx(2 * LAUNCH)
