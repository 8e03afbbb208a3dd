"""Estimates of shared memory and registers, against what Triton makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from mcfuser.chain import attention, gemm
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.loops import innermost
from mcfuser.lowering.triton.resources import ALONE, BRANCHES, TritonCandidates
from mcfuser.model.feasible import GATHERED, HELD, feasible
from mcfuser.model.fitted import lowered
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.prune import distinct, parted, prune, space
from mcfuser.space.statement import Load
from tests.support.chains import chain
from tests.support.gpu_candidates import every
from tests.support.hopper_chains import chain_of
from tests.support.triton_cases import chain_named

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


def test_a_loop_without_a_product_reads_no_tile_that_another_still_uses() -> None:
    """One of three stages is computed on while two are in flight; a product of group instructions
    may still read a third."""
    tiles = {"m": 64, "n": 64, "k": 64, "h": 16}
    product = made(plan_for(gemm(1, 512, 256, 64, 64, "float16"), tiles), tiles, 4, 3)
    loads = [outer for s, outer in product.facts.points if isinstance(s, Load)]
    loop = next(x for outer in loads if (x := innermost(outer)) is not None)
    assert product.copies(loop).tolist() == [3.0]
    norm = Plan(program(chain_named("layernorm", {"m": 64, "n": 96})), parse("m.n"), frozenset())
    assert made(norm, {"b": 1, "m": 4, "n": 16}, 4, 3).copies(loop).tolist() == [2.0]


def test_without_group_instructions_a_stage_less_is_in_flight() -> None:
    chain = attention(1, 1024, 512, 64, 64, "float16")
    tiles = {"m": 16, "n": 128, "k": 64, "h": 64}
    plan = plan_for(chain, tiles)
    few, more = made(plan, tiles, 4, 3), made(plan, tiles, 4, 4)
    assert more.shared[0] - few.shared[0] == 2 * 128 * 64 * 2  # a tile of K and one of V
    assert more.shared[0] == 104448  # as Triton 3.6 allocates


def test_threads_multiply_float32_one_by_one() -> None:
    """So no group of warps holds a tile longer, and each thread writes its multiplications out."""
    tiles = {"m": 64, "n": 64, "k": 32, "h": 32}
    for dtype, multiplied in (("float32", (64 * 64 * 32 + 64 * 64 * 32) / 128), ("float16", 0.0)):
        chain = gemm(1, 512, 512, 512, 32, dtype)
        found = made(plan_for(chain, tiles), tiles, 4, 4)
        assert found.multiplied.tolist() == [multiplied]
        assert {bool(d.grouped[0]) for d in found.dots.values()} == {dtype == "float16"}


def test_a_copy_is_asynchronous_where_each_thread_has_four_bytes_of_it() -> None:
    c = gemm(1, 512, 256, 64, 64, "float16")
    plan = Plan(program(c), parse("mh.nk"), frozenset())
    warps, tiles = np.asarray([4, 8]), {"m": 64, "n": 16, "k": 16, "h": 16}
    rows = np.asarray([[tiles[a] for a in plan.axes]] * 2)
    found = TritonCandidates(plan, rows, warps, np.full(2, 3), warps < 0)
    points = {s.buffer: (s, outer) for s, outer in found.facts.points if isinstance(s, Load)}
    assert found.asynchronous(*points["A"]).tolist() == [True, True]  # 2,048 bytes
    assert found.asynchronous(*points["B"]).tolist() == [True, False]  # 512 bytes


def test_threads_share_the_registers_of_a_tile() -> None:
    """But for those that each has for itself. Without a product they hold what they compute."""
    c = chain({"m": 512, "n": 512}, {"X": "mn", "s": "m"}, ["Y[m, n] = X[m, n] * s[m]"])
    plan = Plan(program(c), parse("mn"), frozenset())
    warps = np.asarray([1, 2, 4, 8])
    tiles = np.full((4, 2), 64)
    found = TritonCandidates(plan, tiles, warps, np.ones_like(warps), warps < 0).registers - ALONE
    np.testing.assert_allclose(found, 64 * 64 / (32 * warps))


def test_functions_that_are_computed_in_two_ways_take_more_registers() -> None:
    plain, erf = (
        chain({"m": 512, "n": 512}, {"X": "mn"}, [f"Y[m, n] = {call}(X[m, n])"])
        for call in ("exp", "erf")
    )
    one = np.asarray([4])
    each = [
        TritonCandidates(Plan(program(c), parse("mn"), frozenset()), np.full((1, 2), 64), one, one,
                         one < 0).registers - ALONE
        for c in (plain, erf)
    ]  # fmt: skip
    assert each[1] == pytest.approx(BRANCHES * each[0])


SIZES = {"b": 2, "m": 256, "n": 256, "k": 64, "h": 64}
CHAINS = {
    "gemm": gemm(*SIZES.values(), "float16"),
    "float32": gemm(*SIZES.values()),
    "attention": chain_of("attention", SIZES, "float16"),
    "causal": chain_of("causal", SIZES, "float16"),
}


@dataclass(frozen=True)
class Case:
    """A candidate by its name, expression, tiles of m, n, k and h, warps and stages."""

    name: str
    said: str
    tiles: tuple[int, ...]
    warps: int
    stages: int
    dead: str = ""
    hopper: bool = True
    tma: bool = False
    split: str | None = None
    parts: int = 1

    def made(self) -> TritonCandidates:
        dead = frozenset(self.dead)
        plan = Plan(program(CHAINS[self.name]), parse(self.said), dead, self.split, self.parts)
        tiles = dict(zip("mnkh", self.tiles, strict=True))
        rows = np.asarray([[tiles[a] for a in plan.axes]])
        one, tma = np.ones(1, np.int64), np.ones(1, bool) if self.tma else None
        last = np.zeros(1, bool)
        warps, stages = self.warps * one, self.stages * one
        return TritonCandidates(plan, rows, warps, stages, last, self.hopper, tma)


@pytest.mark.parametrize(
    ("case", "registers", "shared", "gathered"),
    [
        (Case("gemm", "mh.nk", (64, 64, 32, 32), 4, 3), 81.2, 24576, 0),
        (Case("gemm", "mh.nk", (64, 64, 32, 32), 4, 3, tma=True), 68.14, 24576, 0),
        (Case("gemm", "mh.nk", (32, 64, 32, 32), 4, 2), 77.92, 6144, 0),
        (Case("gemm", "mh.nk", (16, 128, 32, 32), 8, 1), 76.53, 12288, 0),
        (Case("gemm", "m.n(k,h)", (64, 64, 32, 32), 4, 3), 95.92, 24576, 0),
        (Case("gemm", "mh.nk", (64, 64, 64, 32), 2, 2, "k", hopper=False, split="n", parts=4),
         161.12, 20480, 128),
        (Case("float32", "mh.nk", (64, 32, 32, 32), 4, 3), 77.36, 24576, 0),
        (Case("causal", "mh.nk", (128, 64, 64, 64), 8, 3, "kh"), 118.08, 65536, 0),
        (Case("causal", "mh.nk", (64, 32, 64, 64), 2, 4, "kh", hopper=False), 188.32, 32768, 0),
        (Case("attention", "mh.nk", (16, 64, 64, 64), 4, 2, "kh", tma=True, split="n", parts=2),
         62.83, 20480, 16),
        (Case("attention", "m.n(k,h)", (64, 64, 32, 32), 4, 2), 104.24, 16384, 0),
    ],
    ids=lambda x: f"{x.name} {x.said} {x.tiles}" if isinstance(x, Case) else "",
)  # fmt: skip
def test_estimates_are_those_that_were_fitted(
    case: Case, registers: float, shared: int, gathered: int
) -> None:
    """The model's constants were fitted on top of these: who changes one fits them anew."""
    made = case.made()
    assert made.registers[0] == pytest.approx(registers, abs=0.005)
    assert (made.shared[0], made.gathered[0]) == (shared, gathered)


@pytest.mark.thorough
def test_estimates_agree_with_the_compiler() -> None:
    chain = gemm(1, 512, 256, 64, 64, "float16")
    found = every(distinct(prune(space(chain), H200)[0]), H200)
    order = np.random.default_rng(0).permutation(len(found))[:8]
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
    assert near >= 5


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
