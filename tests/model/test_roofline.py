"""The roofline by waves of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import from_json, gemm, to_json
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.roofline import (
    GATHER,
    OVERLAPPED_LAUNCH,
    SEQUENTIAL_LAUNCH,
    VISIT,
    overlapped,
    sequential,
    touched,
)
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.plan import Plan, blocks, traffic, work
from mcfuser.space.program import program
from tests.support.chains import LINES, named

A100 = CATALOGUE["nvidia/a100"]
CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)
LINEAR = named("linear", {"m": 64, "n": 64, "k": 64})


def test_one_candidate_on_a_gpu_by_hand() -> None:
    """Two waves of 128 blocks over 108 multiprocessors, each block bound by its bytes."""
    plan = Plan(program(gemm(4, 1024, 64, 64, 64, "float16")), parse("mh.nk"), frozenset("nkh"))
    tiles = np.asarray([[32, 64, 64, 64]], np.int64)
    assert blocks(plan, tiles)[0] == 4 * 32
    moved = 2 * (32 * 64 + 64 * 64 + 64 * 64 + 32 * 64)
    flops = 2 * 2 * 32 * 64 * 64
    t_mem, t_comp = moved / (1.555e12 / 108), flops / (312e12 / 108)
    assert t_mem > t_comp
    expected = 2 * t_mem + OVERLAPPED_LAUNCH
    assert overlapped(plan, tiles, A100)[0] == pytest.approx(expected, rel=1e-12)


def test_one_candidate_on_a_cpu_by_hand() -> None:
    plan = Plan(program(LINEAR), parse("mn.k"), frozenset("k"))
    tiles = np.asarray([[32, 32, 64]], np.int64)
    assert plan.axes == ("m", "n", "k")
    c, e = 32 * 32, 32
    per_block = (
        (4 * c)  # C = 0
        + (2 * 4 * c)  # C accumulated
        + (2 * 4 * c + 4 * c + 4 * e)  # Y written, C and e read
        + (4 * c)  # Y stored
    ) / CPU.bandwidth + 4 * VISIT
    assert blocks(plan, tiles)[0] == 4
    assert touched(plan, tiles, CPU)[0] == pytest.approx(4 * per_block)
    flops = (2 * 64 + 2) * c
    expected = 2 * (flops / (1e11 / 2) + per_block) + SEQUENTIAL_LAUNCH
    assert sequential(plan, tiles, CPU)[0] == pytest.approx(expected)


@st.composite
def candidates(draw: st.DrawFn):
    c = named(draw(st.sampled_from(sorted(LINES))), dict.fromkeys("bmnkhpc", 32))
    of = program(c)
    expression = draw(st.sampled_from(tilings(of.chain)))
    if draw(st.booleans()):
        expression = bind(of.chain, expression)
    plan = Plan(of, expression, frozenset())
    rows = draw(st.lists(st.tuples(*[st.sampled_from([4, 8, 16])] * len(plan.axes)), min_size=1,
                         max_size=4))  # fmt: skip
    return plan, np.asarray(rows, np.int64)


@settings(max_examples=80, deadline=None)
@given(candidates(), st.sampled_from([(overlapped, A100), (sequential, CPU)]))
def test_no_candidate_beats_the_roofs(found, model) -> None:
    (plan, tiles), (estimate, device) = found, model
    times = estimate(plan, tiles, device)
    assert np.all(np.isfinite(times))
    slack = 1 - 1e-12
    assert np.all(times >= slack * work(plan, tiles) / device.throughput("float32"))
    if estimate is overlapped:
        assert np.all(times >= slack * traffic(plan, tiles) / device.bandwidth)
    else:
        assert np.all(times >= slack * touched(plan, tiles, device) / device.units)
    alone = [estimate(plan, tiles[i : i + 1], device)[0] for i in range(len(tiles))]
    assert times.tolist() == alone


@settings(max_examples=40, deadline=None)
@given(candidates(), st.sampled_from([(overlapped, A100), (sequential, CPU)]))
def test_more_bandwidth_or_more_peak_is_never_slower(found, model) -> None:
    (plan, tiles), (estimate, device) = found, model
    times = estimate(plan, tiles, device)
    wider = replace(device, bandwidth=2 * device.bandwidth)
    faster = replace(device, peak=tuple((d, 2 * p) for d, p in device.peak))
    assert np.all(estimate(plan, tiles, wider) <= times)
    assert np.all(estimate(plan, tiles, faster) <= times)


def test_one_block_more_than_the_units_is_a_second_wave() -> None:
    of = program(gemm(1, 32 * 109, 64, 64, 64, "float16"))
    plan = Plan(of, parse("mh.nk"), frozenset("nkh"))
    tiles = np.asarray([[32, 64, 64, 64]], np.int64)
    full = replace(A100, units=109, bandwidth=A100.bandwidth / 108 * 109,
                   peak=tuple((d, p / 108 * 109) for d, p in A100.peak))  # fmt: skip
    one, two = overlapped(plan, tiles, full)[0], overlapped(plan, tiles, A100)[0]
    assert two - OVERLAPPED_LAUNCH == pytest.approx(2 * (one - OVERLAPPED_LAUNCH))


@pytest.mark.parametrize("parts", [2, 4])
def test_combining_the_parts_of_a_split_is_a_second_launch(parts: int) -> None:
    """All that is left on a device on which nothing else takes time."""
    free = replace(A100, bandwidth=1e30, peak=tuple((d, 1e30) for d, _ in A100.peak))
    whole = Plan(program(gemm(1, 64, 512, 64, 64)), parse("mh.nk"), frozenset("hk"))
    tiles = np.asarray([[64, 16, 64, 64]], np.int64)
    assert overlapped(whole, tiles, free)[0] == pytest.approx(OVERLAPPED_LAUNCH)
    split = replace(whole, split="n", parts=parts)
    assert overlapped(split, tiles, free)[0] == pytest.approx(2 * OVERLAPPED_LAUNCH)


@pytest.mark.parametrize(
    ("constant", "strides", "slow"),
    [(False, [1, 64], True), (True, [1, 64], False), (False, [64, 1], False), (False, None, False)],
)
def test_a_right_operand_that_lies_by_rows_of_the_sum_is_packed(constant, strides, slow) -> None:
    document = to_json(LINEAR)
    tensor: dict[str, object] = {"shape": ["k", "n"], "constant": constant}
    if strides:
        tensor["strides"] = strides
    document["tensors"]["B"] = tensor  # type: ignore[index]
    plan = Plan(program(from_json(document)), parse("mn.k"), frozenset("k"))
    tiles = np.asarray([[32, 32, 64]], np.int64)
    plain = Plan(program(LINEAR), parse("mn.k"), frozenset("k"))
    extra = touched(plan, tiles, CPU)[0] - touched(plain, tiles, CPU)[0]
    expected = 4 * (GATHER * 4 * 64 * 32 / CPU.bandwidth + VISIT) if slow else 0.0
    assert extra == pytest.approx(expected, abs=1e-18)


@pytest.mark.parametrize(("rows", "packed"), [(1, False), (2, True), (16, True)])
def test_one_row_reads_the_right_operand_where_it_lies(rows: int, packed: bool) -> None:
    """A decode step uses each key once: packing would cost more than the product."""
    document = to_json(LINEAR)
    document["tensors"]["B"] = {"shape": ["k", "n"], "strides": [1, 64]}  # type: ignore[index]
    tiles = np.asarray([[rows, 32, 64]], np.int64)
    across = Plan(program(from_json(document)), parse("mn.k"), frozenset("k"))
    along = Plan(program(LINEAR), parse("mn.k"), frozenset("k"))
    extra = touched(across, tiles, CPU)[0] - touched(along, tiles, CPU)[0]
    assert (extra > 0) == packed
