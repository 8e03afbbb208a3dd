"""Candidates that are not worth a look, each for one reason."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.feasible import SPILLED, feasible, spills_too_much
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import chain

H200, A100 = CATALOGUE["nvidia/h200"], CATALOGUE["nvidia/a100"]
GEMM = gemm(1, 1024, 1024, 256, 64, "float16")
GOOD = {"m": 64, "n": 64, "k": 64, "h": 64}


def looked_at(warps: int = 4, stages: int = 2, device=H200, c=GEMM, **tiles: int) -> bool:
    plan = Plan(program(c), parse("mh.nk"), frozenset())
    rows = np.asarray([[(GOOD | tiles)[a] for a in plan.axes]])
    found = feasible(plan, rows, np.asarray([warps]), np.asarray([stages]), device)
    assert found.dtype == bool and found.shape == (1,)
    return bool(found[0])


def test_a_good_candidate_is_worth_a_look() -> None:
    assert looked_at()


def test_shared_memory_that_no_block_has_is_not() -> None:
    assert not looked_at(m=256, n=256, k=256, stages=4)


def test_registers_that_no_thread_has_are_not() -> None:
    assert not looked_at(m=256, n=256, k=64, warps=4)


def test_warps_without_work_are_not() -> None:
    assert looked_at(m=16, n=16, k=16, h=16, warps=1, device=A100)
    assert not looked_at(m=16, n=16, k=16, h=16, warps=8, device=A100)


def test_many_multiplications_of_a_thread_are_not() -> None:
    """The tensor cores take float16, and threads float32: 64 * 64 * (32 + 32) / 128 are allowed."""
    deep, narrow = {"m": 64, "n": 64, "h": 32}, gemm(1, 1024, 1024, 256, 32)
    assert looked_at(c=narrow, k=32, **deep)
    assert not looked_at(c=narrow, k=48, **deep), "lanes that pad a tile are multiplied, too"
    assert looked_at(c=narrow, k=64, warps=8, **deep)
    assert looked_at(c=gemm(1, 1024, 1024, 256, 32, "float16"), k=64, **deep)


SUM, DIFFERENCE = "M[m] = sum[n] X[m, n]", "Y[m, n] = X[m, n] - M[m]"


@pytest.mark.parametrize(("lines", "tile", "warps", "taken"), [
    ([SUM], 8192, 4, True), ([SUM], 32_768, 4, True), ([SUM], 32_784, 4, False),
    ([SUM], 65_536, 8, True), ([SUM], 131_072, 8, False),
    ([SUM, DIFFERENCE], 16_384, 4, True), ([SUM, DIFFERENCE], 16_400, 4, False),
    ([SUM, DIFFERENCE], 32_768, 8, True), ([SUM, DIFFERENCE], 65_536, 8, False),
])  # fmt: skip
def test_elements_that_no_thread_holds_are_not(
    lines: list[str], tile: int, warps: int, taken: bool
) -> None:
    """A thread's 256 of a sum, and 128 of what is written, with those that pad a tile."""
    norm = chain({"m": 16, "n": 131_072}, {"X": "mn"}, lines)
    plan = Plan(program(norm), parse("m.n"), frozenset())
    tiles = np.asarray([[1, tile]])
    assert feasible(plan, tiles, np.asarray([warps]), np.asarray([1]), H200) == [taken]


def test_more_stages_than_iterations_are_not() -> None:
    assert looked_at(stages=4)  # four iterations of k
    assert not looked_at(stages=5)


def test_group_instructions_need_two_stages() -> None:
    assert not looked_at(stages=1, warps=4)
    assert looked_at(stages=1, warps=4, device=A100)


def test_without_a_product_more_stages_than_iterations_are_not() -> None:
    plan = Plan(program(chain({"m": 64, "n": 64}, {"X": "mn"}, ["R[m] = max[n] X[m, n]"])),
                parse("m.n"), frozenset())  # fmt: skip
    rows, stages = np.asarray([[16, 16]] * 3), np.asarray([1, 4, 5])
    found = feasible(plan, rows, np.asarray([4] * 3), stages, H200)
    assert found.tolist() == [True, True, False]


@pytest.mark.parametrize(("spills", "gone"), [(0, False), (SPILLED, False), (SPILLED + 1, True)])
def test_what_spills_far_too_much_is_hopeless(spills: int, gone: bool) -> None:
    assert spills_too_much(spills) is gone
