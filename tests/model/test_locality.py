"""Where loaded tiles lie: bytes side by side, and different tiles of blocks that run together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json, gemm
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.locality import contiguous_bytes, distinct_tiles, spacing
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.statement import Load, Loop, statements

TILES = {"m": 16, "n": 32, "k": 8, "h": 64}
GEMM = gemm(1, 64, 64, 64, 128, "float16")


def made(c: Chain = GEMM) -> TritonCandidates:
    plan = Plan(program(c), parse("mh.nk"), frozenset())
    rows = np.asarray([[TILES[a] for a in plan.axes]])
    one = np.asarray([1])
    return TritonCandidates(plan, rows, 4 * one, one, one < 0)


def load(found: TritonCandidates, tensor: str) -> tuple[Load, tuple[Loop, ...]]:
    return next(
        (s, outer)
        for s, outer in statements(found.facts.body)
        if isinstance(s, Load) and s.read.tensor == tensor
    )


def side_by_side(found: TritonCandidates, tensor: str) -> list[float]:
    read = load(found, tensor)[0].read
    return contiguous_bytes(found, read.tensor, read.indices).tolist()


@pytest.mark.parametrize(("tensor", "elements"), [("A", 8), ("B", 32), ("D", 64)])
def test_a_tile_lies_side_by_side_along_its_last_dimension(tensor: str, elements: int) -> None:
    found = made()
    assert side_by_side(found, tensor) == [2.0 * elements]


def test_strides_say_along_which_dimension_it_lies() -> None:
    turned = tuple(replace(t, strides=(0, 1, 64)) if t.name == "B" else t for t in GEMM.tensors)
    found = made(replace(GEMM, tensors=turned))
    assert side_by_side(found, "B") == [2.0 * TILES["k"]]
    gaps = tuple(replace(t, strides=(0, 128, 2)) if t.name == "B" else t for t in GEMM.tensors)
    found = made(replace(GEMM, tensors=gaps))
    assert side_by_side(found, "B") == [2.0], "no two elements lie side by side"


PAIRS = from_json({
    "axes": {"m": 64, "j": 32, "l": 2},
    "tensors": {
        "X": {"shape": list("mjl"), "dtype": "float16"},
        "F": {"shape": list("mj"), "dtype": "float16", "strides": [64, 2]},
        "G": {"shape": ["m"]},
    },
    "operators": ["E[m, j, l] = X[m, j, l] * F[m, j] + G[m]"],
})  # fmt: skip


@pytest.mark.parametrize(
    ("tiles", "expected"),
    [
        ((4, 32, 2), {"X": (256, 1), "F": (128, 2), "G": (4, 1)}),
        ((4, 8, 2), {"X": (16, 1), "F": (8, 2), "G": (4, 1)}),
        ((4, 8, 1), {"X": (8, 2), "F": (8, 2), "G": (4, 1)}),
        ((4, 1, 1), {"X": (4, 64), "F": (4, 64), "G": (4, 1)}),
        ((1, 1, 1), {"X": (1, 1), "F": (1, 1), "G": (1, 1)}),
    ],
)
def test_elements_of_a_tile_are_evenly_spaced_in_memory(
    tiles: tuple[int, ...], expected: dict[str, tuple[int, int]]
) -> None:
    plan = Plan(program(PAIRS), parse("mjl."), frozenset())
    one = np.asarray([1])
    found = TritonCandidates(plan, np.asarray([tiles]), 4 * one, one, one < 0)
    for tensor, (count, apart) in expected.items():
        read = load(found, tensor)[0].read
        counted, between = spacing(found, read.tensor, read.indices)
        assert (counted.item(), between.item()) == (count, apart), tensor


@pytest.mark.parametrize(
    ("tensor", "together", "tiles"),
    [
        ("A", 8.0, 4.0),  # h iterations fastest: eight blocks are two of h by four of m
        ("A", 2.0, 1.0),
        ("D", 8.0, 2.0),
        ("D", 1.0, 1.0),
        ("B", 8.0, 1.0),  # neither m nor h is in it
    ],
)
def test_blocks_that_run_together_share_tiles(tensor: str, together: float, tiles: float) -> None:
    found = made()
    s, outer = load(found, tensor)
    assert distinct_tiles(found, s, outer, np.asarray([together])).tolist() == [tiles]
