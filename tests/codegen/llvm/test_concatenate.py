"""Concatenation on a CPU copies parts in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.concatenate import FEW, PIECE, SHORT, SMALL, concatenate, source
from tests.support.lifted import computed
from tests.support.one_call import one_call, written


def concatenation(
    shapes: Sequence[Sequence[int]], axis: int | None, dtype: str = "float32"
) -> tvm.IRModule:
    types = [relax.TensorType(s, dtype) for s in shapes]
    return one_call(types, lambda *parts: relax.op.concat(relax.Tuple(parts), axis))


def copied(shapes: Sequence[Sequence[int]], axis: int | None, dtype: str = "float32") -> bool:
    """Whether parts of these shapes are copied, and TVM has nothing to do."""
    return written(concatenation(shapes, axis, dtype), concatenate)


def drawn(shapes: Sequence[Sequence[int]], dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [rng.integers(0, 200 if dtype != "bool" else 2, s).astype(kind) for s in shapes]


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(1, 64, 28, 28), (1, 32, 28, 28), (1, 32, 28, 28)], 1),
        ([(3, 5, 700), (3, 1, 700), (3, 9, 700)], 1),
        ([(70, 300), (70, 301), (70, 299)], -1),
        ([(9001,), (1,), (PIECE * 2 + 1,), (PIECE * 3,)], 0),
        ([(7, 3001), (3, 3001)], 0),
        ([(2, 4000 + i, 3) for i in range(40)], -2),
        ([(200, i % 3 + 1, 5) for i in range(20)], 1),
    ],
)
def test_parts_lie_behind_each_other(
    shapes: list[tuple[int, ...]], axis: int, tmp_path: Path
) -> None:
    assert copied(shapes, axis)
    values = drawn(shapes)
    (found,) = computed(concatenation(shapes, axis), values, tmp_path)
    np.testing.assert_array_equal(found, np.concatenate(values, axis))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
def test_elements_of_every_type(dtype: str, tmp_path: Path) -> None:
    shapes = [(2, 5, 999), (2, 20, 999), (2, 1, 999)]
    assert copied(shapes, 1, dtype)
    values = drawn(shapes, dtype)
    (found,) = computed(concatenation(shapes, 1, dtype), values, tmp_path)
    np.testing.assert_array_equal(found.view("uint8"), np.concatenate(values, 1).view("uint8"))


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(1, SMALL // 2 - 1), (1, SMALL // 2)], 1),
        ([(400, SHORT - 1)] * FEW, 1),
        ([(400, 0), (400, 300), (400, 300)], 1),
    ],
    ids=["small", "short rows", "an empty part"],
)
def test_others_are_tvm_s(shapes: list[tuple[int, ...]], axis: int, tmp_path: Path) -> None:
    assert not copied(shapes, axis)
    values = drawn(shapes)
    (found,) = computed(concatenation(shapes, axis), values, tmp_path)
    np.testing.assert_array_equal(found, np.concatenate(values, axis))


def test_short_rows_of_many_parts_are_copied() -> None:
    assert copied([(400, SHORT - 1)] * (FEW + 1), 1)


def test_an_extent_that_is_known_at_run_time_is_tvm_s() -> None:
    n = tvm.tirx.Var("n", "int64")
    assert not copied([(n, 3000), (n, 3000)], 1)


def test_every_piece_is_copied_once() -> None:
    """Two rows of three pieces, and a part of which nine rows are a piece."""
    text = source([(18, 3 * PIECE), (18, PIECE // 9)], 1, "float32")
    assert "T.parallel(56):" in text and text.count("memcpy") == 2
