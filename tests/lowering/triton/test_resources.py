"""Estimates of shared memory and registers, against what Triton makes."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import attention, gemm
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.resources import BASE, TritonCandidates
from mcfuser.model.feasible import GATHERED, HELD, feasible
from mcfuser.model.fitted import lowered
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.prune import distinct, parted, prune, space
from tests.support.chains import chain
from tests.support.gpu_candidates import every

H200 = CATALOGUE["nvidia/h200"]


def made(plan, tiles, warps, stages):
    rows = np.asarray([[tiles[a] for a in plan.axes]])
    w, s = np.asarray([warps]), np.asarray([stages])
    return lowered(plan, rows, w, s, w < 0, H200)


def plan_for(chain, tiles):
    """The first plan of the pruned space that has these tiles."""
    tables = distinct(prune(space(chain), H200)[0]).tables
    return next(p for p, t in tables if [tiles[a] for a in p.axes] in t.tolist())


@pytest.mark.parametrize(
    ("tiles", "warps", "stages", "allocated"),
    [  # as Triton 3.6 allocated them for sm_90
        ({"m": 64, "n": 64, "k": 64, "h": 16}, 4, 4, 49152),
        ({"m": 64, "n": 256, "k": 16, "h": 16}, 4, 4, 40960),
    ],
)
def test_pipelined_tiles_count_once_a_stage(tiles, warps, stages, allocated) -> None:
    chain = gemm(1, 512, 256, 64, 64, "float16")
    assert made(plan_for(chain, tiles), tiles, warps, stages).shared[0] == allocated


def test_without_group_instructions_a_stage_less_is_in_flight() -> None:
    chain = attention(1, 1024, 512, 64, 64, "float16")
    tiles = {"m": 16, "n": 128, "k": 64, "h": 64}
    plan = plan_for(chain, tiles)
    few, more = made(plan, tiles, 4, 3), made(plan, tiles, 4, 4)
    assert more.shared[0] - few.shared[0] == 2 * 128 * 64 * 2  # a tile of K and one of V
    assert more.shared[0] == 104448  # as Triton 3.6 allocates


def test_threads_share_the_registers_of_a_tile() -> None:
    """But for those that each has for itself."""
    c = chain({"m": 512, "n": 512}, {"X": "mn", "s": "m"}, ["Y[m, n] = X[m, n] * s[m]"])
    plan = Plan(program(c), parse("mn"), frozenset())
    warps = np.asarray([1, 2, 4, 8])
    tiles = np.full((4, 2), 64)
    found = TritonCandidates(plan, tiles, warps, np.ones_like(warps), warps < 0).registers - BASE
    loaded, computed = 0.13 * (64 * 64 + 64), 0.26 * 64 * 64
    np.testing.assert_allclose(found, (loaded + computed) / (32 * warps))


def test_estimates_agree_with_the_compiler() -> None:
    chain = gemm(1, 512, 256, 64, 64, "float16")
    found = every(distinct(prune(space(chain), H200)[0]), H200)
    order = np.random.default_rng(0).permutation(len(found))[:12]
    chosen = [found.candidate(i) for i in order]
    sources = []
    for c in chosen:
        plan, tiles = found.plan(c)
        sources.append(generate(plan.schedule(tiles), "kernel", found.settings(c)))
    near = 0
    with Compilers(2) as compilers:
        for i, binary in compilers.compile(sources, "sm_90"):
            assert isinstance(binary, Binary)
            plan, tiles = found.plan(chosen[i])
            asked = found.settings(chosen[i])
            one = made(plan, tiles, asked.warps * (1 + asked.groups), asked.stages)
            near += abs(one.shared[0] - binary.shared) <= 0.2 * binary.shared
            assert (binary.shared <= H200.fast) == (one.shared[0] <= H200.fast)
    assert near >= 7


def test_certain_spilling_and_idle_warps_are_left_out() -> None:
    chain = gemm(1, 512, 512, 64, 128, "float16")
    for plan, tiles in distinct(prune(space(chain), H200)[0]).tables:
        warps, stages = np.full(len(tiles), 8), np.full(len(tiles), 2)
        kept = feasible(plan, tiles, warps, stages, H200)
        one = lowered(plan, tiles[kept], warps[kept], stages[kept], warps[kept] < 0, H200)
        assert (one.registers <= HELD).all() and (one.shared <= H200.fast).all()


def test_group_instructions_have_two_stages_at_least() -> None:
    chain = gemm(1, 512, 256, 64, 64, "float16")
    found = every(distinct(prune(space(chain), H200)[0]), H200)
    axes = found.space.axes
    for row in found.rows:
        lowering = found.settings(row)
        if row[1 + axes.index("m")] >= 64 and lowering.warps % 4 == 0:
            assert lowering.stages > 1


def test_a_combining_thread_can_hold_all_parts() -> None:
    chain = gemm(1, 512, 512, 256, 256, "float16")
    whole = parted(distinct(prune(space(chain), H200)[0]), H200)
    split = [(p, t) for p, t in whole.tables if p.split is not None]
    assert split
    dropped = 0
    for plan, tiles in split:
        warps, stages = np.full(len(tiles), 1), np.full(len(tiles), 2)
        one = lowered(plan, tiles, warps, stages, warps < 0, H200)
        kept = feasible(plan, tiles, warps, stages, H200)
        assert not (kept & (one.gathered > GATHERED)).any()
        dropped += int((one.gathered > GATHERED).sum())
    assert dropped
