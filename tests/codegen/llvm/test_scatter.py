"""Slices scattered on a CPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.scatter import REDUCTIONS, scatter, source
from mcfuser.codegen.llvm.written import LANES, PIECE, PIECES
from tests.support.lifted import computed
from tests.support.one_call import one_call, written
from tests.support.scattered import slices_put


def scattered(
    data: tuple[object, ...], places: tuple[int, ...], slices: tuple[int, ...],
    dtype: str = "float32", index: str = "int64", reduction: str = "add",
) -> tvm.IRModule:  # fmt: skip
    types = [relax.TensorType(s, t) for s, t in ((data, dtype), (places, index), (slices, dtype))]
    return one_call(types, lambda x, i, u: relax.op.scatter_nd(x, i, u, reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("data", "places", "dtype", "index"),
    [
        ((5, 7), (9, 1), "float32", "int64"),  # places that repeat
        ((5, 7), (3, 4, 2), "float32", "int32"),  # single elements
        ((6, 5, 3 * LANES), (20, 2), "float64", "int64"),
        ((9, PIECE * PIECES), (30, 1), "float32", "int64"),
        ((50, 40, 16), (2, 600, 1), "int32", "int64"),
        ((4,), (1, 1), "int64", "int32"),
        ((300, 70), (9, 1), "float32", "int64"),  # rows that are no vectors
    ],
)
def test_slices_are_where_numpy_puts_them(
    data: tuple[int, ...], places: tuple[int, ...], dtype: str, index: str, reduction: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    rng, k = np.random.default_rng(0), places[-1]
    slices = (*places[:-1], *data[k:])
    module = scattered(data, places, slices, dtype, index, reduction)
    assert written(module, scatter)
    x, updates = (rng.integers(-2, 3, s).astype(dtype) for s in (data, slices))
    at = np.stack([rng.integers(0, e, places[:-1]) for e in data[:k]], axis=-1).astype(index)
    (found,) = computed(module, [x, at, updates], tmp_path)
    np.testing.assert_array_equal(found, slices_put(x, at, updates, reduction))


def test_a_place_outside_writes_inside(tmp_path: Path) -> None:
    """As no array is left by it."""
    module = scattered((3, 2), (2, 1), (2, 2))
    at, ones = np.asarray([[7], [-5]]), np.ones((2, 2), np.float32)
    (found,) = computed(module, [np.zeros((3, 2), np.float32), at, ones], tmp_path)
    assert found.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_long_slices_are_shared_by_the_cores() -> None:
    def text(columns: int) -> str:
        return source((500, columns), (3000, 1), (3000, columns), "float32", "int64", "add")

    assert "T.parallel(4)" in text(64) and f"T.vectorized({LANES})" in text(64)
    assert "T.parallel" not in text(LANES), "a small array"
    large = source((5000, 10), (3, 1), (3, 10), "float32", "int64", "add")
    assert "T.parallel(5000)" in large, "it is copied by all cores"


@pytest.mark.parametrize(
    ("data", "dtype", "index"),
    [(("n", 4), "float32", "int64"), ((3, 4), "float16", "int64"), ((0, 4), "float32", "int64"),
     ((3, 4), "float32", "uint8")],
)  # fmt: skip
def test_others_are_left_to_tvm(data: tuple[object, ...], dtype: str, index: str) -> None:
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in data)
    assert not written(scattered(shape, (2, 1), (2, 4), dtype, index), scatter)
