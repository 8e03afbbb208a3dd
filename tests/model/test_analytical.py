"""Equations (2) to (5) by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import attention, gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.analytical import estimate, storage
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan, blocks, traffic, work
from mcfuser.space.program import program
from tests.support.chains import named

A100 = CATALOGUE["nvidia/a100"]


def test_one_candidate_of_the_papers_chain_on_the_a100() -> None:
    """mh.nk for gemm:1,1024,1024,512,512 in float16, with tiles 128, 64, 32, 128."""
    plan = Plan(program(gemm(1, 1024, 1024, 512, 512, "float16")), parse("mh.nk"), frozenset())
    m, h, n, k = 1024 // 128, 512 // 128, 1024 // 64, 512 // 32  # trips
    loads = (
        128 * 32 * (m * h * n * k)  # A, inside k
        + 32 * 64 * (m * h * n * k)  # B, inside k
        + 64 * 128 * (m * h * n)  # D, inside n
    )
    stores = 128 * 128 * (m * h)  # E, outside n
    t_mem = 2 * (loads + stores) / 1.555e12
    flops = 2 * 128 * 64 * 32 * (m * h * n * k) + 2 * 128 * 64 * 128 * (m * h * n)
    t_comp = flops / 312e12
    alpha = (m * h + 108) / (m * h)
    found = estimate(plan, np.asarray([[128, 64, 32, 128]], np.int64), A100)
    assert plan.axes == ("m", "n", "k", "h")
    assert found.shape == (1,)
    assert found[0] == pytest.approx((t_mem + t_comp) * alpha, rel=1e-12)


def test_a_dead_loop_saves_its_bytes() -> None:
    of = program(gemm(1, 512, 512, 64, 64, "float16"))
    plan = Plan(of, parse("mh.nk"), frozenset("kh"))
    m, n = 512 // 128, 512 // 64
    elements = 128 * 64 * m + (64 * 64) * m * n + (64 * 64) * m * n + 128 * 64 * m
    flops = 2 * 2 * 512 * 512 * 64
    expected = (2 * elements / 1.555e12 + flops / 312e12) * (m + 108) / m
    found = estimate(plan, np.asarray([[128, 64, 64, 64]], np.int64), A100)[0]
    assert found == pytest.approx(expected)


def test_the_throughput_is_that_of_the_stored_type() -> None:
    tiles = np.asarray([[128, 64, 32, 128]], np.int64)
    times = {}
    for dtype in ("float16", "bfloat16", "float32"):
        plan = Plan(program(gemm(1, 512, 512, 512, 512, dtype)), parse("mh.nk"), frozenset())
        assert storage(plan) == dtype
        times[dtype] = estimate(plan, tiles, A100)[0]
    assert times["float16"] == pytest.approx(times["bfloat16"])
    assert times["float32"] > 2 * times["float16"]  # twice the bytes, a sixteenth of the rate


EXPRESSIONS = st.sampled_from(["mh.nk", "m.n(k,h)", "mh.kn", "mhnk"])
TILES = st.lists(st.tuples(*[st.sampled_from([16, 32, 64])] * 4), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(TILES, EXPRESSIONS, st.sampled_from(sorted(CATALOGUE)))
def test_rows_are_estimated_apart_and_obey_the_equations(rows, expression, name) -> None:
    device = CATALOGUE[name]
    of = program(attention(2, 128, 128, 128, 128, "float16"))
    plan = Plan(of, parse(expression), frozenset())
    tiles = np.asarray(rows, np.int64)
    found = estimate(plan, tiles, device)
    alone = [estimate(plan, tiles[i : i + 1], device)[0] for i in range(len(tiles))]
    assert found.tolist() == alone
    t_comp = work(plan, tiles) / device.throughput("float16")
    roof = traffic(plan, tiles) / device.bandwidth + t_comp
    assert np.all(found > roof)  # alpha > 1
    np.testing.assert_allclose(found / roof - 1, device.units / blocks(plan, tiles))


def test_a_faster_device_is_never_slower() -> None:
    plan = Plan(program(named("mlp", dict.fromkeys("mnkh", 256))), parse("mh.nk"), frozenset())
    tiles = np.asarray([[64, 64, 64, 64]], np.int64)
    base = estimate(plan, tiles, A100)[0]
    assert estimate(plan, tiles, replace(A100, bandwidth=2 * A100.bandwidth))[0] < base
    assert estimate(plan, tiles, replace(A100, peak=(("float32", 1e15),)))[0] < base
    assert estimate(plan, tiles, replace(A100, units=2 * A100.units))[0] > base  # harder to fill
