"""What counts in kernels that multiply no matrices: events of single candidates."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.fitted import NAMES, counted, predicted
from mcfuser.model.plain import PLAIN
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program

H200 = CATALOGUE["nvidia/h200"]


def rows(m: int, n: int, lines: list[str], dtype: str = "float16") -> Chain:
    """A chain that reads X, may read a vector F, and may write Y, all of one type."""
    shapes = {"X": ["m", "n"], "Y": ["m", "n"], "F": ["n"]}
    tensors = {t: {"shape": shape, "dtype": dtype} for t, shape in shapes.items()}
    return from_json({
        "axes": {"m": m, "n": n},
        "tensors": {t: d for t, d in tensors.items() if any(f"{t}[" in x for x in lines)},
        "operators": lines,
    })  # fmt: skip


def candidates(
    chain: Chain, tiles: list[tuple[int, int]], warps: list[int], split: int = 1, last: bool = False
) -> TritonCandidates:
    expression = parse("m.n" if any(o.reduce != "none" for o in chain.operators) else "mn.")
    plan = Plan(program(chain), expression, frozenset(), "n" if split > 1 else None, split)
    one = np.ones(len(tiles), np.int64)
    return TritonCandidates(plan, np.asarray(tiles), np.asarray(warps), one, (one > 0) & last)


def events(
    chain: Chain, tiles: list[tuple[int, int]], warps: list[int], split: int = 1, last: bool = False
) -> dict[str, list[float]]:
    """The events of candidates that are not none, by name."""
    table, _ = counted(candidates(chain, tiles, warps, split, last), H200)
    return {n: c.tolist() for n, c in zip(NAMES, table.T, strict=True) if c.any()}


def seconds(chain: Chain, tiles: list[tuple[int, int]], warps: list[int]) -> list[float]:
    return predicted(*counted(candidates(chain, tiles, warps), H200), dict(H200.costs)).tolist()


SUM = ["S[m] = sum[n] float32(X[m, n])"]
DOUBLE = ["Y[m, n] = X[m, n] + X[m, n]"]


def test_only_terms_of_kernels_without_products_are_counted() -> None:
    assert events(rows(1024, 1024, SUM), [(8, 256)], [4]).keys() <= set(PLAIN)


def test_every_block_starts() -> None:
    found = events(rows(1320, 64, DOUBLE), [(10, 64), (1, 64)], [1, 1])
    assert found["plain_block"] == [1.0, 10.0], "132 blocks, and 1320, on 132 multiprocessors"


def test_a_reduction_over_lanes_of_several_warps_passes_through_shared_memory() -> None:
    """A warp has a row of 256 numbers; eight warps have eight rows, or one row together."""
    found = events(rows(1024, 1024, SUM), [(8, 256), (1, 256)], [8, 8])
    apart, together = found["plain_crossed"]
    assert apart == 0
    assert together == 8 * 4 * np.ceil(1024 / (132 * 8)), "warps, iterations, waves"


def test_threads_of_a_warp_halve_what_they_have_to_reduce() -> None:
    (found,) = events(rows(132, 256, SUM), [(1, 256)], [1])["plain_shuffled"]
    assert found == np.log2(32)


def test_a_thread_loads_vector_after_vector() -> None:
    """2,048 numbers of two bytes, eight a vector: eight vectors a thread of one warp."""
    found = events(rows(132, 2048, DOUBLE), [(1, 2048)] * 3, [1, 2, 8])
    assert found["plain_vector"] == [8.0, 4.0, 1.0]
    assert found["plain_written"] == found["plain_vector"]


def test_a_sector_is_moved_whole() -> None:
    found = events(rows(132, 64, DOUBLE), [(1, 64), (1, 4)], [1, 1])
    bytes_of_row, bytes_of_four = 64 * 2.0, 16 * 32.0
    assert found["plain_sector"] == [bytes_of_row, bytes_of_four]
    assert found["plain_stored"] == found["plain_sector"]


def test_lanes_beyond_the_tensor_move_nothing() -> None:
    """1,152 numbers lie in 2,048 lanes of one tile, or in 1,280 of five."""
    found = events(rows(132, 1152, DOUBLE), [(1, 1152), (1, 256)], [1, 1])
    for term in ("plain_sector", "plain_stored", "plain_distinct"):
        assert found[term] == [1152 * 2.0] * 2
    assert found["plain_vector"][0] == 1152 / (32 * 8)


def test_warps_hand_each_other_what_is_loaded_for_some_axes() -> None:
    """A vector for four rows; not that for one row, and within a warp threads have it at once."""
    scaled = rows(1056, 1024, ["S[m] = sum[n] X[m, n] * F[n]"])
    found = events(scaled, [(4, 256), (1, 256), (4, 256), (8, 256)], [4, 4, 1, 4])
    assert found["plain_handed"] == [4.0, 0, 0, 4.0], "once an iteration"
    assert "plain_handed" not in events(rows(1056, 1024, SUM), [(4, 256)], [4])


def test_bytes_are_those_in_memory() -> None:
    half, whole = (
        events(rows(132, 64, DOUBLE, dtype), [(1, 64)], [1]) for dtype in ("float16", "float32")
    )
    for term in ("plain_sector", "plain_stored", "plain_distinct"):
        assert 2 * half[term][0] == whole[term][0]


@pytest.mark.parametrize("last", [True, False])
def test_parts_are_combined_by_the_last_block_or_a_second_kernel(last: bool) -> None:
    found = events(rows(64, 4096, SUM), [(1, 256)], [1], 4, last)
    assert found["plain_ended" if last else "plain_second"] == [1.0]
    assert ("plain_second" if last else "plain_ended") not in found
    assert found["plain_combined"] == [4 * 4.0], "four parts of a number of four bytes"


def test_more_operations_take_longer() -> None:
    few, many = (
        seconds(rows(4096, 1024, [f"Y[m, n] = {body}"]), [(4, 256)], [4])
        for body in ("X[m, n] + 1.0", "exp(X[m, n]) / (X[m, n] + 1.0)")
    )
    assert many > few


def test_eight_rows_over_eight_warps_take_less_time_than_one_row_after_the_other() -> None:
    """As measured: 1.7 us and 3.5 us for 512 rows of 1,280 in tiles of 256 (H200)."""
    apart, together = seconds(rows(4096, 1024, SUM), [(8, 256), (1, 256)], [8, 8])
    assert apart < together
