"""The best elements of rows on a GPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.top import LONGEST, best
from tests.support.cuda_blocks import computed, numpy_type
from tests.support.cuda_on_host import needs_compiler
from tests.support.one_call import the_call


def of_call(
    extents: tuple[object, ...], k: int, dtype: str = "float32", index: str = "int64",
    largest: bool = True, axis: int = -1, kind: str = "both",
) -> SourceOperator | None:  # fmt: skip
    """The kernel of a call, if there is one."""
    call = the_call(
        [relax.TensorType(extents, dtype)],
        lambda x: relax.op.topk(x, k, axis=axis, ret_type=kind, largest=largest, dtype=index),
    )
    return best(call)


@needs_compiler
@pytest.mark.parametrize(
    ("extents", "k", "dtype", "index", "largest"),
    [
        ((9,), 1, "float32", "int64", True), ((3, 5), 5, "float16", "int32", False),
        ((2, 3, 40), 7, "int32", "int64", True), ((10, 100), 100, "float32", "int64", False),
        ((4, 1), 1, "uint8", "int64", True), ((2, LONGEST), 3, "bfloat16", "int64", False),
        ((2, 33), 33, "int8", "int32", True), ((3, 300), 20, "int32", "int64", False),
    ],
)  # fmt: skip
def test_the_best_are_numpy_s_and_of_equal_ones_the_first(
    extents: tuple[int, ...], k: int, dtype: str, index: str, largest: bool, tmp_path: Path
) -> None:
    made = of_call(extents, k, dtype, index, largest)
    assert made is not None
    low = 0 if dtype.startswith("u") else -20
    x = np.random.default_rng(0).integers(low, 20, extents)  # many are equal
    values, places = computed(made, [x.astype(numpy_type(dtype))], tmp_path)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, order.astype(index))
    np.testing.assert_array_equal(values.astype(x.dtype), np.take_along_axis(x, order, -1))


@needs_compiler
@pytest.mark.parametrize("k", [2, 8])
def test_zeros_are_equal_and_what_is_no_number_is_above_all(k: int, tmp_path: Path) -> None:
    x = np.asarray([[0.0, -0.0, np.nan, -np.inf, np.inf, -1.0, -0.0, 0.0]], np.float32)
    made = of_call((1, 8), k)
    assert made is not None
    _, places = computed(made, [x], tmp_path)
    assert places[0].tolist() == [2, 4, 0, 1, 6, 7, 5, 3][:k]


def test_what_is_cheaper_is_done() -> None:
    assert "better" in made_of((8192, 64), 64) and "most" in made_of((8192, 64), 2)
    assert "most" in made_of((8192, 1024), 20)


def made_of(extents: tuple[int, ...], k: int) -> str:
    made = of_call(extents, k)
    assert made is not None
    return made.text("kernel")


@pytest.mark.parametrize(
    "given",
    [
        {"extents": (3, "n"), "k": 2}, {"extents": (3, LONGEST + 1), "k": 2},
        {"extents": (3, 4), "k": 2, "dtype": "int64"}, {"extents": (3, 4), "k": 2, "axis": 0},
        {"extents": (3, 4), "k": 2, "kind": "values"},
    ],
)  # fmt: skip
def test_others_are_left_to_tvm(given: dict[str, object]) -> None:
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in given["extents"])
    assert of_call(**(given | {"extents": shape})) is None
