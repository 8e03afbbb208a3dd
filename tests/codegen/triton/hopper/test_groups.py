"""Warps with work of their own: what they compute whoever goes first, which schedules divide so."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.triton import TritonSource, generate, grid
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.gluon_emulated import Broken, emulate
from tests.support.hopper_chains import chain_of
from tests.support.triton_agree import TOLERANCE, error, memory_of
from tests.support.triton_cases import run_time, scheduled


@dataclass(frozen=True)
class Case:
    """A chain as an expression, sizes as words; `deferred` where products are issued an iteration
    late."""

    chain: str
    expression: str
    extents: str
    tiles: str
    stages: int = 2
    dtype: str = "float16"
    deferred: bool = True

    @cached_property
    def plain(self) -> Chain:
        return chain_of(self.chain, {**SMALL, **sizes(self.extents)}, self.dtype)

    @cached_property
    def schedule(self) -> Schedule:
        return scheduled(self.plain, self.expression, {**TILES, **sizes(self.tiles)})

    @cached_property
    def source(self) -> TritonSource:
        return written(self.schedule, self.stages)


SMALL = {"b": 2, "g": 2, "k": 32, "h": 32}
TILES = {"b": 1, "g": 1, "k": 32, "h": 32}
SEEDS = 2


def sizes(words: str) -> dict[str, int]:
    return {a: int(n) for a, n in (w.split("=") for w in words.split())}


def written(schedule: Schedule, stages: int = 2) -> TritonSource:
    return generate(schedule, "kernel", TritonKnobs(stages=stages, tma=True, groups=True))


@dataclass(frozen=True)
class Run:
    """A chain's kernel on one set of inputs, and what the chain means in float64."""

    chain: Chain
    source: TritonSource

    @cached_property
    def memory(self) -> dict[str, np.ndarray]:
        return memory_of(self.chain, self.source, 0)

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:
        inputs = {n: logical(self.chain, n, self.memory[n]) for n in self.chain.inputs}
        return evaluate(self.chain, inputs)

    def wrong(self, source: TritonSource, seed: int) -> float:
        """How far the worst output of a source is, in tolerances, where warps take turns so."""
        memory = {n: array.copy() for n, array in self.memory.items()}
        emulate(source, memory, seed)
        every = ((n, TOLERANCE[self.chain.tensor(n).dtype]) for n in self.chain.outputs)
        return max(error(self.chain, n, memory, self.expected) / most for n, most in every)


def agree(case: Case) -> TritonSource:
    assert case.source.gluon
    run = Run(case.plain, case.source)
    for seed in range(SEEDS):
        assert run.wrong(case.source, seed) < 1, case.source.text
    return case.source


# --- what they compute ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case("attention", "mh.nk", "m=256 n=256", "m=128 n=32", 4),
        Case("attention", "mh.nk", "m=200 n=200 k=16 h=64", "m=128 n=64 h=64", 3, "bfloat16"),
        Case("attention", "mh.nk", "m=128 n=64", "m=128 n=32"),
        Case("attention", "mh.nk", "m=192 n=64 b=1", "m=192 n=32", 1),
        Case("attention", "mh.nk", "m=300 n=96 h=48", "m=192 n=32 h=16"),
        Case("attention", "mh.nk", "m=300 n=96 b=1", "m=256 n=32", 3),
        Case("attention", "mh.nk", "m=197 n=197 k=24 h=40", "m=128 n=64 k=24 h=40", 3),
        Case("causal", "mh.nk", "m=197 n=197 k=40 h=24", "m=128 n=64 k=40 h=24"),
        Case("window", "mh.nk", "m=197 n=197", "m=128 n=32"),
        Case("cap", "mh.nk", "m=128 n=100", "m=128 n=32"),
        Case("causal", "mh.nk", "m=512 n=300", "m=256 n=64", 4, "bfloat16"),
        Case("causal", "mh.nk", "m=300 n=300", "m=192 n=64"),
        Case("causal", "mh.nk", "m=200 n=256 h=64", "m=128 n=32", 3, "bfloat16"),
        Case("alibi", "mh.nk", "m=256 n=200", "m=128 n=64", 3),
        Case("window", "mh.nk", "m=400 n=256", "m=128 n=32"),
        Case("around", "mh.nk", "m=300 n=256", "m=192 n=16", 3, "bfloat16"),
        Case("cap", "mh.nk", "m=200 n=128 k=64", "m=128 n=32 k=64"),
        Case("masked", "mh.nk", "m=200 n=200", "m=128 n=64"),
        Case("grouped", "gmh.nk", "m=200 n=128", "m=128 n=64", 3),
        Case("grouped_causal", "gmh.nk", "m=300 n=128", "m=192 n=32", 4, "bfloat16"),
        Case("gemm", "mh.nk", "m=200 n=256", "m=128 n=64"),
        Case("mlp", "mh.nk", "m=300 n=128", "m=192 n=32", 3),
        Case("long_before", "mh.nk", "m=400 n=256", "m=128 n=32"),
        Case("empty_rows", "mh.nk", "m=600 n=256", "m=128 n=32"),
        Case("scores", "mh.nk", "i=2 m=256 n=128", "m=128 n=32"),
        Case("two", "mh.nk", "m=256 n=256", "m=128 n=64"),
        Case("lower", "mh.nk", "m=256 n=256 h=64", "m=128 n=64 h=64"),
        Case("again", "mh.nk", "m=200 n=128", "m=128 n=32"),
        Case("outer", "mh.nk", "m=200 n=128", "m=128 n=32", 3),
        Case("weighted", "mh.nk", "m=200 n=128", "m=128 n=32", deferred=False),
        Case("lower", "mh.nk", "m=512 n=512 h=128", "m=192 n=128 h=128", deferred=False),
        Case("gemm", "mh.kn", "m=200 n=64 k=128", "m=128 n=64 k=32", 3, deferred=False),
        Case("linear", "mn.k", "m=200 n=128 k=128", "m=128 n=64", 3, deferred=False),
        Case("linear", "mn.k", "m=130 n=40 k=200", "m=128 n=16", deferred=False),
        Case("linear", "mn.k", "m=300 n=136 k=256", "m=192 n=128", 4, "bfloat16", deferred=False),
        Case("linear_flipped", "mn.k", "m=200 n=128 k=200", "m=128 n=64 k=64", deferred=False),
        Case("gated", "mn.k", "m=300 n=136 k=256", "m=192 n=64", 3, deferred=False),
        Case("gated", "mn.k", "m=200 n=64 k=128", "m=128 n=32", 2, "bfloat16", deferred=False),
    ],
    ids=lambda case: f"{case.chain} {case.extents}",
)
def test_chains_agree(case: Case) -> None:
    assert bool(WarpGroups(case.schedule, case.stages).deferred) == case.deferred
    agree(case)


CAUSAL = Case("causal", "mh.nk", "m=256 n=256 b=1", "m=128 n=32")
GATED = Case("gated", "mn.k", "m=200 n=64 k=256", "m=128 n=64", deferred=False)


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("chain", ["causal", "window", "gemm", "mlp"])
def test_products_that_are_issued_in_their_own_iteration_agree(
    monkeypatch: pytest.MonkeyPatch, chain: str, stages: int
) -> None:
    monkeypatch.setattr(WarpGroups, "deferred", frozenset())
    source = agree(replace(CAUSAL, chain=chain, extents="m=200 n=256", stages=stages))
    assert "slot_before" not in source.text


def test_a_deferred_product_may_stand_before_the_other() -> None:
    """With one tile a ring, its loader would wait for a tile that the late product still has."""
    case = Case("outer", "mh.nk", "m=200 n=128", "m=128 n=32")
    assert [s.buffer for s in WarpGroups(case.schedule, 2).dots] == ["U", "S"]
    assert WarpGroups(case.schedule, 2).deferred == {"U"}
    assert "slot_before" in agree(case).text
    single = replace(case, stages=1)
    assert not WarpGroups(single.schedule, 1).deferred
    assert "slot_before" not in agree(single).text


def test_products_that_do_not_fit_in_registers_are_not_late() -> None:
    case = Case("attention", "mh.nk", "m=192 n=256 k=16 h=128 b=1", "m=192 n=128 h=128")
    assert not WarpGroups(case.schedule, 2).deferred
    assert WarpGroups(replace(case, tiles="m=128 n=128 h=128").schedule, 2).deferred
    agree(case)


def test_a_product_whose_sum_its_own_iteration_reads_is_not_late() -> None:
    """Triton has no layout for the maximum's tile of m, n and h, but that is not why."""
    case = Case("below", "mh.nk", "m=128 n=128 b=1", "m=128 n=32")
    assert not WarpGroups(case.schedule, 2).deferred
    run = Run(case.plain, case.source)
    assert all(run.wrong(case.source, seed) < 1 for seed in range(SEEDS))


def test_heads_in_groups_that_share_the_cache_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    head = 256 * (32 + 32) * 2
    monkeypatch.setattr(grid, "CACHED", 2 * head)
    for chain, expression in (("causal", "mh.nk"), ("grouped_causal", "gmh.nk")):
        source = agree(
            replace(CAUSAL, chain=chain, expression=expression, extents="m=256 n=256 b=4")
        )
        assert re.search(r"\n    b = pid // \d+ \* 2 \+ ", source.text)


def test_iterations_inside_a_domain_have_no_mask() -> None:
    """The first iteration, which stands before the loop, always compares positions; later ones do
    past those that lie inside."""
    text = CAUSAL.source.text
    bare, masked = "S_inside = S", "S_inside = gl.where(n[None, :] <= m[:, None], S, LOWEST)"
    assert text.count(masked) == 2
    either = f"if n_start < n_inside:\n            {bare}\n        else:\n            {masked}"
    assert text.count(either) == 1
    assert text.count("    for n_start in") == 2  # one of them loads


def test_no_compiler_knows_which_tile_an_iteration_reads() -> None:
    """Several groups would share the address of a tile that all of them know (see `UNKNOWN`)."""
    case = Case("attention", "mh.nk", "m=512 n=256 k=64 h=64", "m=256 n=64 k=64 h=64", 4)
    loads, rows = case.source.text.split("def kernel_rows(")
    assert "    iteration = 0\n" in loads
    assert "iteration = 0" not in rows
    assert rows.count("    iteration = gl.program_id(2)  # 0, which no compiler knows\n") == 1
    assert all(launch.blocks({})[2] == 1 for launch in case.source.launches)


def test_scores_past_the_end_are_masked_in_the_last_iteration_and_nothing_else_is() -> None:
    text = replace(CAUSAL, chain="attention", extents="m=197 n=197", tiles="m=128 n=64").source.text
    before, last = text.split("    n = 192 + gl.arange(0, 64, COLUMNS)\n")
    assert "    for n_start in range(64, 192, 64):\n" in before
    assert "n_in" not in before
    assert last.count("    S = gl.where(n_in[None, :], S, LOWEST)\n") == 1
    causal = replace(CAUSAL, extents="m=197 n=197").source.text
    assert "n_in[" not in causal, "n <= m ends there"


# --- whoever goes first -----------------------------------------------------------------------

BAD = {
    "a tile of V is given back before its product has ended": (
        CAUSAL,
        r"( +U, U_left = hopper\.warpgroup_mma_wait.*\n)( +mbarrier\.arrive\(V_empty.*\n)",
        r"\2\1",
    ),
    "tiles are given back before their products have ended": (
        GATED,
        r"( +(?:G, )?U = hopper\.warpgroup_mma_wait.*\n)((?: +(?:slot|mbarrier\.arrive).*\n)+)",
        r"\2\1",
    ),
    "a tile is filled when it is full": (CAUSAL, r"1 - phase", "phase"),
    "nobody waits for Q": (CAUSAL, r" +mbarrier\.wait\(Q_full.*\n", ""),
    "nobody waits for K": (CAUSAL, r" +mbarrier\.wait\(K_full.*\n", ""),
    "nobody waits for V": (CAUSAL, r" +mbarrier\.wait\(V_full.*\n", ""),
    "nobody waits for X": (GATED, r" +mbarrier\.wait\(X_full.*\n", ""),
    "nobody waits for W": (GATED, r" +mbarrier\.wait\(W_full.*\n", ""),
    "K is filled at once": (CAUSAL, r" +mbarrier\.wait\(K_empty.*\n", ""),
    "V is filled at once": (CAUSAL, r" +mbarrier\.wait\(V_empty.*\n", ""),
    "V is of this iteration": (CAUSAL, r"V_tile\.index\(slot_before", "V_tile.index(slot"),
    "another V is waited for": (CAUSAL, r"V_full\.index\(slot_before", "V_full.index(slot"),
    "V is waited for by this iteration's phase": (CAUSAL, r"phase_before\)", "phase)"),
    "another V is given back": (CAUSAL, r"V_empty\.index\(slot_before", "V_empty.index(slot"),
    "V is not given back": (CAUSAL, r" +mbarrier\.arrive\(V_empty.*\n", ""),
    "one group is enough": (CAUSAL, r"(K_empty\.index\(each\), count=)2", r"\g<1>1"),
    "three groups are awaited": (CAUSAL, r"(K_empty\.index\(each\), count=)2", r"\g<1>3"),
    "phases change each iteration": (
        CAUSAL,
        r"phase = iteration // 2 % 2",
        "phase = iteration % 2",
    ),
    "more bytes are expected": (CAUSAL, r"(K_full\.index\(slot\), )2048", r"\g<1>4096"),
    "fewer bytes are expected": (CAUSAL, r"(K_full\.index\(slot\), )2048", r"\g<1>1024"),
    "S is used early": (CAUSAL, r"mma_wait\(1", "mma_wait(2"),
    "U is used early": (CAUSAL, r"mma_wait\(0, deps=\(U", "mma_wait(1, deps=(U"),
    "groups share their rows": (CAUSAL, r"Q_tile\.index\(group", "Q_tile.index(0"),
    "groups share a ring": (GATED, r"slot \* 2 \+ group", "slot * 2"),
    "the tile that leaves is not fenced": (CAUSAL, r" +hopper\.fence.*\n(?= +put)", ""),
    "barriers are not fenced": (CAUSAL, r" +hopper\.fence.*\n(?= +gl)", ""),
    "a tile has not left": (CAUSAL, r" +tma\.store_wait.*\n", ""),
}


@cache
def run_of(case: Case) -> Run:
    return Run(case.plain, case.source)


@pytest.mark.parametrize("name", BAD)
def test_a_race_or_a_deadlock_is_found(name: str) -> None:
    case, old, new = BAD[name]
    text, count = re.subn(old, new, case.source.text)
    assert count
    source = replace(case.source, text=text)
    assert any(broken(run_of(case), source, seed) for seed in range(10))


def broken(run: Run, source: TritonSource, seed: int) -> bool:
    try:
        return run.wrong(source, seed) > 1
    except Broken:
        return True


# --- which divide so --------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        Case("grouped_causal", "gmh.nk", "m=384 n=256 k=64 h=64", "m=128 n=64 k=64 h=64"),
        Case("attention", "mh.nk", "m=512 n=256 k=64 h=64", "m=256 n=64 k=64 h=64", 4),
        Case("gated", "mn.k", "m=384 n=128 k=256", "m=192 n=64 k=64", 3, "bfloat16"),
    ],
    ids=lambda case: case.chain,
)
def test_kernels_compile(case: Case) -> None:
    """Of two, three and four groups."""
    source = case.source
    binary = compile_source(source, "sm_90")
    groups = sizes(case.tiles)["m"] // 64
    assert binary.threads == source.threads == 128 * (groups + 1)
    assert not binary.spills


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CAUSAL, tiles="m=64 n=32"), "64 rows are not those of 2 to 4 warp groups"),
        (replace(CAUSAL, tiles="m=160 n=32"), "160 rows are not those of 2 to 4 warp groups"),
        (
            Case("attention", "mh.nk", "m=512 n=512 k=64 h=64", "m=256 n=128 k=64 h=64"),
            "a thread of 4 warp groups has no 126 registers",
        ),
        (replace(CAUSAL, tiles="m=128 n=32 k=16"), "want one loop, and there are 2"),
        (replace(CAUSAL, tiles="m=128 n=256"), "want one loop, around everything"),
        (replace(CAUSAL, expression="m.n(k,h)", tiles="m=128 n=32 h=16"), "want one loop, around"),
        (replace(CAUSAL, chain="wide"), "'V' is changed before it enters a product"),
        (replace(GATED, chain="norm"), "'X' is loaded in a loop, and not as an operand"),
        (
            Case("rows", "b.k", "m=128 n=64 k=256", "m=128 n=64", deferred=False),
            "something is reduced over 'm'",
        ),
        (replace(GATED, chain="lengths"), "'A' is read by a product and by something else"),
        (replace(CAUSAL, dtype="float32"), "is no matrix in half precision"),
        (replace(CAUSAL, chain="gemm", extents="m=256 n=132"), "'B' cannot be loaded through"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_divide_is_refused(case: Case, reason: str) -> None:
    with pytest.raises(Illegal, match=re.escape(reason)):
        written(case.schedule)


def test_parts_of_a_split_are_refused() -> None:
    tiles = {**TILES, **sizes(CAUSAL.tiles)}
    schedule = scheduled(CAUSAL.plain, CAUSAL.expression, tiles, "n", 4)
    with pytest.raises(Illegal, match="warp groups do not run parts of a split"):
        written(schedule)


@pytest.mark.parametrize("axis", ["b", "m", "n"])
def test_extents_known_at_run_time_are_refused(axis: str) -> None:
    tiles = {**TILES, **sizes(CAUSAL.tiles)}
    schedule = scheduled(run_time(CAUSAL.plain, axis), CAUSAL.expression, tiles)
    with pytest.raises(Illegal, match="cannot be loaded through a tensor map"):
        written(schedule)


def test_a_tile_that_does_not_begin_with_the_rows_has_no_layout_in_a_warp_group() -> None:
    groups = WarpGroups(CAUSAL.schedule, CAUSAL.stages)
    assert groups.arrangement(("m", "n")) == "TILE"
    for space in (("n", "m"), ("n", "h"), ("m", "n", "h")):
        with pytest.raises(Illegal, match="not laid out row by row"):
            groups.arrangement(space)
