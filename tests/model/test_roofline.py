"""The roofline by waves of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from mcfuser.chain import gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.roofline import OVERLAPPED_LAUNCH, overlapped
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan, blocks, traffic, work
from mcfuser.space.program import program
from tests.support.plans import candidates

A100 = CATALOGUE["nvidia/a100"]


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


@settings(max_examples=80, deadline=None)
@given(candidates())
def test_no_candidate_beats_the_roofs(found) -> None:
    plan, tiles = found
    times = overlapped(plan, tiles, A100)
    assert np.all(np.isfinite(times))
    slack = 1 - 1e-12
    assert np.all(times >= slack * work(plan, tiles) / A100.throughput("float32"))
    assert np.all(times >= slack * traffic(plan, tiles) / A100.bandwidth)
    alone = [overlapped(plan, tiles[i : i + 1], A100)[0] for i in range(len(tiles))]
    assert times.tolist() == alone


@settings(max_examples=40, deadline=None)
@given(candidates())
def test_more_bandwidth_or_more_peak_is_never_slower(found) -> None:
    plan, tiles = found
    times = overlapped(plan, tiles, A100)
    wider = replace(A100, bandwidth=2 * A100.bandwidth)
    faster = replace(A100, peak=tuple((d, 2 * p) for d, p in A100.peak))
    assert np.all(overlapped(plan, tiles, wider) <= times)
    assert np.all(overlapped(plan, tiles, faster) <= times)


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
