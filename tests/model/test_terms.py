"""Events that a GPU kernel's time is made of, counted for small plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import from_json, gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.terms import LIMIT, LINE, NEIGHBOURS, ONE_BY_ONE, Terms, resident, terms
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import depthwise

H200, A100 = CATALOGUE["nvidia/h200"], CATALOGUE["nvidia/a100"]
TILES = {"m": 64, "n": 64, "k": 64, "h": 64}
GEMM = gemm(1, 512, 256, 256, 64, "float16")


def made(c=GEMM, warps: int = 4, stages: int = 2, hopper: bool = True, split: str | None = None,
         parts: int = 1, last: bool = False, **tiles: int) -> TritonCandidates:  # fmt: skip
    sizes = TILES | tiles
    dead = frozenset(a for a, n in sizes.items() if n >= c.size(a))
    plan = Plan(program(c), parse("mh.nk"), dead, split, parts)
    rows = np.asarray([[sizes[a] for a in plan.axes]])
    one = np.asarray([1])
    return TritonCandidates(plan, rows, warps * one, stages * one, np.asarray([last]), hopper)


def events(found: TritonCandidates, name: str, device=H200) -> float:
    return float(terms(found, device).of(name)[0])


def test_blocks_are_those_of_the_grid() -> None:
    assert terms(made(), H200).blocks.tolist() == [8.0]
    assert terms(made(m=128), H200).blocks.tolist() == [4.0]
    assert terms(made(split="n", parts=2), H200).blocks.tolist() == [16.0]


def test_an_output_is_stored_once_a_block() -> None:
    assert events(made(), "stored") == 2 * 64 * 64


def test_products_go_to_groups_of_warps_where_they_can_and_else_to_warps() -> None:
    """Four iterations of n, each of four iterations of k and one product of the second kind: 16
    steps of 64 rows and columns, and 4."""
    hopper, older = made(), made(hopper=False)
    assert events(hopper, "group") == (16 + 4) * 4 and events(hopper, "mma") == 0
    assert events(older, "chain", A100) == (16 + 4) * 4 and events(older, "group", A100) == 0


def test_threads_multiply_float32_one_by_one() -> None:
    """As a map does, but that they load what they multiply: no instruction of the tensor cores, and
    64 times 64 in each of 16 + 4 steps of 64."""
    exact = made(gemm(1, 512, 256, 256, 64))
    for name in ("group", "group_all", "mma", "chain", "operands"):
        assert events(exact, name) == 0
    assert events(exact, "simple_all") == events(made(), "simple_all") + ONE_BY_ONE * 20 * 64**3


def test_more_warps_than_a_schedulers_worth_wait_for_it() -> None:
    few, many = (made(hopper=False, warps=w, m=128) for w in (4, 8))
    assert events(many, "mma", A100) == events(few, "mma", A100)  # half each, twice


def test_lines_come_whole_where_rows_are_short() -> None:
    """Eight halves side by side take a line of 128 bytes as 64 of them would."""
    wide, narrow = made(), made(k=8)
    a, b = events(wide, "lines"), events(narrow, "lines")
    assert b > a
    assert LINE == 128


def product(expression: str, columns: int = 128, tma: bool = False) -> TritonCandidates:
    """A product of 512 x 4096 by 64 steps of 64, in tiles of 64 rows."""
    c = from_json({
        "axes": {"m": 512, "n": 4096, "k": 4096},
        "tensors": {"A": {"shape": ["m", "k"], "dtype": "float16"},
                    "B": {"shape": ["k", "n"], "dtype": "float16"}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    plan = Plan(program(c), parse(expression), frozenset())
    sizes = {"m": 64, "n": columns, "k": 64}
    one = np.asarray([1])
    rows = np.asarray([[sizes[a] for a in plan.axes]])
    return TritonCandidates(plan, rows, 4 * one, 3 * one, one == 0, True, np.asarray([tma]))


def test_neighbours_are_faster_that_load_the_larger_tile_together() -> None:
    """Of 16 blocks all load other columns, and the same rows; or there are 8 blocks of rows, and so
    two of columns."""
    a, b = 64 * 64 * 2, 64 * 128 * 2
    assert NEIGHBOURS == 16
    assert events(product("mn.k"), "near") == 64 * (a / 16 + b)
    assert events(product("nm.k"), "near") == 64 * (a * 8 / 16 + b * 2 / 16)


def test_a_tensor_map_takes_longer_for_rows_of_less_than_a_line() -> None:
    assert events(product("nm.k", 64, tma=True), "narrow") == 0
    columns = product("nm.k", 16, tma=True)
    assert events(columns, "narrow") == 3 * 64 * 64 * 16 * 2, "rows of 32 bytes; those of A are 128"
    assert events(product("nm.k", 16), "narrow") == 0


def test_a_pipelined_loop_waits_for_less_with_more_stages() -> None:
    two, four = made(stages=2), made(stages=4)
    assert events(four, "turn") == pytest.approx(events(two, "turn") / 3)
    assert events(four, "fill") == 2 * events(two, "fill")
    assert events(two, "arrive") > 0 == events(four, "arrive")


def test_without_stages_every_load_is_waited_for() -> None:
    assert events(made(stages=1), "load") > events(made(stages=2), "load")


def test_loads_of_a_walk_along_a_window_are_in_flight_at_once_element_by_element() -> None:
    c, found = depthwise(), {}
    for k in (1, 7):
        tiles = {"m": 4, "i": 20, "k": k, "s": k}
        dead = frozenset(a for a in tiles if tiles[a] == c.size(a))
        plan, one = Plan(program(c), bind(c, tilings(c)[0]), dead), np.asarray([1])
        rows = np.asarray([[tiles[a] for a in plan.axes]])
        found[k] = TritonCandidates(plan, rows, one, one, one == 0)
    assert events(found[1], "load") == events(found[7], "load") == 2
    window = 2 * 4 * 32, 2
    issued = [max(1, nbytes / (32 * 2)) for nbytes in window]
    assert events(found[1], "issue") == 49 * sum(issued)
    assert events(found[1], "lines") > 10 * events(found[1], "distinct")


def test_parts_end_in_a_second_kernel_or_in_the_last_block() -> None:
    second, ended = made(split="n", parts=2), made(split="n", parts=2, last=True)
    assert (events(second, "second"), events(second, "ended")) == (1, 0)
    assert (events(ended, "second"), events(ended, "ended")) == (0, 1)
    assert events(second, "parts") == events(ended, "parts") == 2
    assert events(second, "combined") == 2 * 4 * 64 * 64
    assert events(made(), "parts") == 0


def test_spilled_registers_count_every_iteration() -> None:
    large = made(gemm(1, 512, 256, 256, 256, "float16"), m=128, n=128, h=256)
    assert large.registers[0] > LIMIT
    assert events(large, "spill") == (large.registers[0] - LIMIT) * 8  # iterations of n and k
    assert events(made(), "spill") == 0


def test_blocks_share_a_multiprocessor_by_what_is_scarcest() -> None:
    one, many = made(m=256, n=256, k=256), made(m=16, n=16, k=16, h=16, warps=1)
    assert resident(one, H200)[0] == 1.0
    assert 1.0 < resident(many, H200)[0] <= H200.blocks


def test_memory_counts_only_where_the_tensors_outgrow_the_cache() -> None:
    assert terms(made(), H200).dram_seconds.tolist() == [0.0]
    large = gemm(64, 2048, 2048, 512, 512, "float16")
    assert terms(made(large), H200).dram_seconds[0] > 0


def test_constants_come_from_memory_however_small_they_are() -> None:
    chain = gemm(1, 64, 4096, 64, 64, "float16")
    fixed = [replace(t, constant=t.name == "D") for t in chain.tensors]
    weighed = replace(chain, tensors=tuple(fixed))
    found, plain = (terms(made(c, m=64, n=64), H200) for c in (weighed, chain))
    assert found.dram_seconds.tolist() == [4096 * 64 * 2 / H200.bandwidth]
    assert plain.dram_seconds.tolist() == [0.0]
    assert found.of("far_fill").tolist() == [0.0], "the keys are as many, and lie in the cache"
    only = replace(chain, tensors=tuple(replace(t, constant=t.name in "BD") for t in chain.tensors))
    assert terms(made(only, m=64, n=64), H200).of("far_fill")[0] > 0


def test_blocks_queue_for_places_in_whole_rounds_unless_they_are_unequal() -> None:
    found = Terms(1)
    found.blocks, found.peak = np.asarray([10.0]), np.asarray([1.0])
    assert found.queue(4).tolist() == [3.0]
    found.peak = np.asarray([2.0])
    assert found.queue(4).tolist() == [2.5]
    assert found.queue(100).tolist() == [2.0], "the longest block alone"


def test_a_term_must_be_known() -> None:
    found = Terms(1)
    found.add("turn", np.asarray([1.0]))
    found.add("turn", np.asarray([2.0]))
    assert found.of("turn").tolist() == [3.0] and found.of("mma").tolist() == [0.0]
    with pytest.raises(AssertionError, match="nothing"):
        found.add("nothing", np.asarray([1.0]))
