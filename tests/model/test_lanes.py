"""Where lanes are: in threads, in warps; against the layouts that Triton's rules give."""

from __future__ import annotations

import re

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mcfuser.chain import from_json
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.lanes import lanes_of
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program


@triton.jit
def sums_of_rows(X_ptr, S_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, COLUMNS)
    X = tl.load(X_ptr + m[:, None] * COLUMNS + n[None, :]).to(tl.float32)
    tl.store(S_ptr + m, tl.sum(X, 1))


def spread(
    tiles: tuple[int, int], warps: int, stored: str = "mn", extents: tuple[int, int] = (512, 512)
) -> dict[str, tuple[float, float]]:
    """Threads and warps along each axis of a sum over rows, m, of n numbers of two bytes."""
    c = from_json({
        "axes": {"m": extents[0], "n": extents[1]},
        "tensors": {"X": {"shape": [*stored], "dtype": "float16"}},
        "operators": [f"S[m] = sum[n] float32(X[{', '.join(stored)}])"],
    })  # fmt: skip
    one = np.asarray([warps])
    plan = Plan(program(c), parse("mn"), frozenset())
    found = TritonCandidates(plan, np.asarray([tiles]), one, np.ones_like(one), one < 0)
    (sum_of_rows,) = c.operators
    return {
        a: (float(s.threads[0]), float(s.warps[0])) for a, s in lanes_of(found, sum_of_rows).items()
    }


CASES = [
    # 8 numbers of 2 bytes a thread: 16 threads along 128, and two rows a warp
    ((16, 128), 4, (16, 1), (2, 4)),
    # a warp has 256; three more follow it
    ((1, 1024), 4, (32, 4), (1, 1)),
    ((2, 128), 1, (16, 1), (2, 1)),
    # vectors no longer than leaves each thread one: 256 numbers over 256 threads
    ((1, 256), 8, (32, 8), (1, 1)),
    ((4, 256), 8, (32, 2), (1, 4)),
    ((64, 16), 1, (2, 1), (16, 1)),
]
"""Tiles of m and n, warps; threads and warps along n, and along m."""


@pytest.mark.parametrize(("tiles", "warps", "n", "m"), CASES)
def test_threads_and_then_warps_follow_each_other_along_what_is_contiguous(
    tiles: tuple[int, int], warps: int, n: tuple[int, int], m: tuple[int, int]
) -> None:
    assert spread(tiles, warps) == {"n": n, "m": m}


@pytest.mark.parametrize(("tiles", "warps", "n", "m"), CASES)
def test_triton_distributes_a_loaded_tile_so(
    tiles: tuple[int, int], warps: int, n: tuple[int, int], m: tuple[int, int]
) -> None:
    source = ASTSource(
        sums_of_rows,
        {"X_ptr": "*fp16", "S_ptr": "*fp32"},
        {"ROWS": tiles[0], "COLUMNS": tiles[1]},
        attrs={(0,): [["tt.divisibility", 16]]},
    )
    lines = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
    ).asm["ttgir"].splitlines()  # fmt: skip
    (load,) = (line for line in lines if "tt.load" in line)
    name = re.search(r"#blocked\d*", load)[0]
    (layout,) = (line for line in lines if line.startswith(f"{name} ="))
    assert f"threadsPerWarp = [{m[0]}, {n[0]}], warpsPerCTA = [{m[1]}, {n[1]}]" in layout


def test_what_is_contiguous_is_told_by_the_strides() -> None:
    assert spread((128, 16), 4, "nm") == {"m": (16, 1), "n": (2, 4)}


def test_vectors_are_as_long_as_rows_are_aligned() -> None:
    """Rows of 510 numbers begin at multiples of four bytes."""
    assert spread((16, 64), 1, extents=(512, 510)) == {"n": (32, 1), "m": (1, 1)}
