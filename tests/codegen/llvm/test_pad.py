"""Padding on a CPU copies rows and fills what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.pad import PLANES, source
from mcfuser.codegen.llvm.written import SMALL
from tests.support.lifted import computed
from tests.support.one_call import one_call


def padding(
    shape: Sequence[int], width: Sequence[int], dtype: str = "float32", **options: object
) -> tvm.IRModule:
    types = [relax.TensorType(shape, dtype)]
    return one_call(types, lambda x: relax.op.nn.pad(x, width, **options))


@pytest.mark.parametrize(
    ("shape", "width", "value"),
    [
        ((7,), [1, 2], 0.0),
        ((3, 4), [1, 2, 0, 0], 1.5),
        ((2, 3, 5), [0, 0, 1, 0, 2, 1], float("-inf")),
        ((2, 3, 5), [1, 1, 0, 0, 0, 3], -3.4028234663852886e38),
        ((1, 16, 30, 40), [0, 0, 0, 0, 1, 1, 1, 1], 0.0),
        ((2, 2, 3, 4, 5), [0, 0, 0, 0, 0, 0, 0, 1, 0, 2], 0.0),
    ],
)
def test_a_padded_tensor_is_numpy_s(
    shape: tuple[int, ...], width: list[int], value: float, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (found,) = computed(padding(shape, width, pad_value=value), [x], tmp_path)
    pairs = list(zip(width[::2], width[1::2], strict=True))
    np.testing.assert_array_equal(found, np.pad(x, pairs, constant_values=value))


def test_other_modes_are_tvm_s(tmp_path: Path) -> None:
    x = np.arange(6.0, dtype="float32")
    (found,) = computed(padding((6,), [2, 1], pad_mode="reflect"), [x], tmp_path)
    np.testing.assert_array_equal(found, np.pad(x, [(2, 1)], mode="reflect"))


def test_rows_are_spread_over_the_cores_where_that_pays() -> None:
    assert "T.parallel" in source((SMALL, 2), [1, 1, 0, 0], 0.0, "float32")
    assert "T.parallel" not in source((8, 2), [1, 1, 0, 0], 0.0, "float32")


def test_no_row_is_looked_at_where_planes_are_padded() -> None:
    text = source((PLANES, 30, 30), [0, 0, 1, 1, 1, 1], 0.0, "float32")
    assert "if " not in text and f"({PLANES}):" in text
    rows = [line.strip() for line in text.splitlines() if "x_flat[" in line and " = x_flat" in line]
    assert len(rows) == 4, "of 30 elements 16, 8, 4 and the last two"


def test_no_element_is_looked_at_for_being_padding() -> None:
    """Of few planes, cores write rows; one row asks once where it is."""
    text = source((PLANES - 1, 30, 30), [0, 0, 1, 1, 1, 1], 0.0, "float32")
    assert text.count("if ") == 1 and f"({32 * (PLANES - 1)}):" in text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int64", "bool"])
@pytest.mark.parametrize("planes", [PLANES, 2])
def test_elements_of_every_type(dtype: str, planes: int, tmp_path: Path) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = (np.arange(planes * 5 * 30) % 7).reshape(planes, 5, 30).astype(kind)
    width = [0, 0, 1, 2, 1, 20]
    (found,) = computed(padding(x.shape, width, dtype=dtype), [x], tmp_path)
    np.testing.assert_array_equal(found, np.pad(x, [(0, 0), (1, 2), (1, 20)]))


@pytest.mark.parametrize("row", [1, 3, 4, 7, 13, 31, 48])
@pytest.mark.parametrize("planes", [(4, 4), (PLANES, 1), (2, 3)])
def test_rows_of_every_length(row: int, planes: tuple[int, int], tmp_path: Path) -> None:
    x = np.random.default_rng(row).standard_normal((*planes, 5, row)).astype("float32")
    (found,) = computed(padding(x.shape, [0, 0, 0, 0, 2, 1, 0, 17]), [x], tmp_path)
    np.testing.assert_array_equal(found, np.pad(x, [(0, 0), (0, 0), (2, 1), (0, 17)]))
