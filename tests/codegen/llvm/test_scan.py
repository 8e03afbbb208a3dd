"""Cumulative sums on a CPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.scan import cumulate, source
from mcfuser.codegen.llvm.written import LANES, PIECE, PIECES
from tests.support.lifted import computed
from tests.support.one_call import one_call, written


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(
    ("extents", "axis"),
    [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((1, 4), 0), ((4, 1, 3), 1), ((2, 9, 3 * LANES), 1),
     ((2, 3, PIECE * PIECES), -2), ((40, 50, 70), 0), ((33, 600), -1)],
)  # fmt: skip
def test_sums_are_numpy_s(
    extents: tuple[int, ...], axis: int, dtype: str, exclusive: bool, tmp_path: Path
) -> None:
    module = one_call(
        [relax.TensorType(extents, dtype)],
        lambda x: relax.op.cumsum(x, axis=axis, exclusive=exclusive),
    )
    assert written(module, cumulate)
    x = np.random.default_rng(0).integers(-9, 9, extents).astype(dtype)
    (found,) = computed(module, [x], tmp_path)
    wanted = np.cumsum(x, axis=axis, dtype=dtype) - (x if exclusive else np.zeros_like(x))
    np.testing.assert_array_equal(found, wanted)


def test_lines_are_added_in_vectors_and_pieces_of_them_on_all_cores() -> None:
    text = source((2, 64, 64, 64), 1, "float32", False)
    assert "T.parallel(32)" in text and f"T.vectorized({LANES})" in text
    assert "T.parallel" not in source((2, 4, 16), 1, "float32", False), "few elements"
    assert "T.parallel" not in source((1 << 20,), 0, "float32", False), "one line"


@pytest.mark.parametrize(
    ("extents", "dtype", "given"),
    [((3, "n"), "float32", {"axis": 0}), ((3, 4), "float16", {"axis": 0}),
     ((3, 0), "int32", {"axis": 0}), ((3, 4), "float32", {}),
     ((3, 4), "int32", {"axis": 0, "dtype": "int64"})],
)  # fmt: skip
def test_others_are_left_to_tvm(
    extents: tuple[int | str, ...], dtype: str, given: dict[str, object]
) -> None:
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in extents)
    module = one_call([relax.TensorType(shape, dtype)], lambda x: relax.op.cumsum(x, **given))
    assert not written(module, cumulate)


def test_what_is_left_to_tvm_is_built(tmp_path: Path) -> None:
    module = one_call([relax.TensorType((3, 9), "float16")], lambda x: relax.op.cumsum(x, 1))
    x = np.arange(27, dtype=np.float16).reshape(3, 9)
    (sums,) = computed(module, [x], tmp_path)
    np.testing.assert_array_equal(sums, np.cumsum(x, 1))
