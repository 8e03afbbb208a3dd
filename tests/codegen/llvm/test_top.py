"""The best elements of rows on a CPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.top import MOST, SHORT, source, top
from tests.support.lifted import computed
from tests.support.one_call import one_call, written


def best(
    extents: tuple[object, ...], k: int, dtype: str = "float32", index: str = "int64",
    largest: bool = True, axis: int = -1, kind: str = "both",
) -> tvm.IRModule:  # fmt: skip
    return one_call(
        [relax.TensorType(extents, dtype)],
        lambda x: relax.op.topk(x, k, axis=axis, ret_type=kind, largest=largest, dtype=index),
    )


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("extents", "k", "dtype", "index"),
    [
        ((9,), 1, "float32", "int64"), ((3, 5), 5, "float64", "int32"),
        ((2, 3, 40), 7, "int32", "int64"), ((300, 200), MOST, "float32", "int64"),
        ((4, 1), 1, "int64", "int64"), ((2, SHORT), MOST, "float32", "int64"),
        ((2, SHORT + 1), 1, "float64", "int64"), ((5, SHORT + 1), 9, "int32", "int32"),
    ],
)  # fmt: skip
def test_the_best_are_numpy_s_and_of_equal_ones_the_first(
    extents: tuple[int, ...], k: int, dtype: str, index: str, largest: bool, tmp_path: Path
) -> None:
    module = best(extents, k, dtype, index, largest)
    assert written(module, top)
    x = np.random.default_rng(0).integers(-20, 20, extents).astype(dtype)  # many are equal
    values, places = computed(module, [x], tmp_path)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, order.astype(index))
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("n", [6, SHORT + 6])
def test_places_are_positions_whatever_the_elements_are(n: int, tmp_path: Path) -> None:
    x = np.full((2, n), np.nan, np.float32)
    x[1, 2:4] = [-np.inf, np.inf]
    _, places = computed(best((2, n), 6), [x], tmp_path)
    assert places.min() >= 0 and places.max() < n


def test_rows_are_shared_by_the_cores() -> None:
    assert "T.parallel(512)" in source((512, 512), 20, True, "float32", "int64")
    assert "T.parallel" not in source((8, 16), 2, True, "float32", "int64"), "few elements"
    assert "T.parallel" not in source((1 << 20,), 2, True, "float32", "int64"), "one row"


@pytest.mark.parametrize(
    "given",
    [
        {"extents": (3, "n"), "k": 2}, {"extents": (3, 200), "k": MOST + 1},
        {"extents": (3, 4), "k": 2, "dtype": "float16"}, {"extents": (3, 4), "k": 2, "axis": 0},
        {"extents": (3, 4), "k": 2, "kind": "values"},
    ],
)  # fmt: skip
def test_others_are_left_to_tvm(given: dict[str, object]) -> None:
    extents = given.pop("extents")
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in extents)
    assert not written(best(shape, **given), top)


@pytest.mark.parametrize(
    "given",
    [
        {"extents": (3, 200), "k": MOST + 1}, {"extents": (3, 4), "k": 2, "axis": 0},
        {"extents": (3, 4), "k": 2, "dtype": "float16"},
        {"extents": (3, 4), "k": 2, "kind": "values"},
    ],
)  # fmt: skip
def test_what_is_left_to_tvm_is_built(given: dict[str, object], tmp_path: Path) -> None:
    module = best(**given)  # type: ignore[arg-type]
    extents, dtype, axis = given["extents"], given.get("dtype", "float32"), given.get("axis", -1)
    x = np.random.default_rng(0).permutation(int(np.prod(extents))).reshape(extents).astype(dtype)  # type: ignore[call-overload]
    values, *_ = computed(module, [x], tmp_path)
    most = np.flip(np.sort(x, axis=axis), axis)  # type: ignore[call-overload]
    np.testing.assert_array_equal(values, np.take(most, range(int(given["k"])), axis))  # type: ignore[call-overload]
