"""Slices and elements scattered on a GPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.scatter import REDUCTIONS, scattered
from tests.support.cuda_blocks import computed, numpy_type
from tests.support.cuda_on_host import needs_compiler
from tests.support.one_call import the_call
from tests.support.scattered import put, slices_put


def of_call(
    data: tuple[object, ...], places: tuple[int, ...], changes: tuple[int, ...],
    dtype: str = "float32", index: str = "int64", reduction: str = "add", axis: int | None = None,
) -> SourceOperator | None:  # fmt: skip
    """The kernel of a call of scatter_elements along an axis, or of scatter_nd, if there is one."""
    types = [relax.TensorType(s, t) for s, t in ((data, dtype), (places, index), (changes, dtype))]
    made = relax.op.scatter_nd if axis is None else relax.op.scatter_elements
    given = (reduction,) if axis is None else (axis, reduction)
    return scattered(the_call(types, lambda x, i, u: made(x, i, u, *given)))


@needs_compiler
@pytest.mark.parametrize(
    ("data", "places", "dtype", "index", "reduction"),
    [
        *(((5, 7), (90, 1), "float32", "int64", r) for r in REDUCTIONS),  # places that repeat
        ((5, 7), (3, 4, 2), "float16", "int32", "add"),  # single elements
        ((6, 5, 30), (20, 2), "bfloat16", "int64", "max"), ((4,), (1, 1), "int64", "int32", "add"),
        ((3, 2), (40, 1), "float64", "int64", "mul"),
    ],
)  # fmt: skip
def test_slices_are_where_numpy_puts_them(
    data: tuple[int, ...], places: tuple[int, ...], dtype: str, index: str, reduction: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    rng, k = np.random.default_rng(0), places[-1]
    slices = (*places[:-1], *data[k:])
    made = of_call(data, places, slices, dtype, index, reduction)
    assert made is not None
    kind = numpy_type(dtype)
    x, updates = (
        rng.choice([-1, 1, 2] if reduction != "mul" else [-1, 1], s) for s in (data, slices)
    )
    at = np.stack([rng.integers(0, e, places[:-1]) for e in data[:k]], axis=-1).astype(index)
    if reduction == "update":  # of several it may be any: all are the same
        updates = np.full_like(updates, 5)
    wanted = slices_put(x.astype(np.float64), at, updates, reduction)
    (found,) = computed(made, [x.astype(kind), at, updates.astype(kind)], tmp_path)
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


@needs_compiler
@pytest.mark.parametrize(
    ("data", "places", "axis", "dtype", "reduction"),
    [
        ((5, 7, 3), (4, 7, 2), 0, "float32", "add"), ((5, 7, 3), (5, 9, 3), 1, "int32", "max"),
        ((6, 4), (6, 20), -1, "float16", "min"), ((9,), (30,), 0, "uint32", "add"),
        ((5, 7), (2, 7), 0, "bool", "update"), ((5, 7), (3, 7), 0, "int8", "update"),
    ],
)  # fmt: skip
def test_elements_are_where_numpy_puts_them(
    data: tuple[int, ...], places: tuple[int, ...], axis: int, dtype: str, reduction: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    made = of_call(data, places, places, dtype, "int64", reduction, axis)
    assert made is not None
    rng, kind = np.random.default_rng(1), numpy_type(dtype)
    x, updates = (rng.integers(0, 9, s).astype(kind) for s in (data, places))
    at = rng.integers(0, data[axis], places)
    if reduction == "update":
        order = [
            rng.permutation(data[axis])[: places[axis]] for _ in range(at.size // places[axis])
        ]
        at = np.moveaxis(np.stack(order).reshape(*np.delete(places, axis), -1), -1, axis)
    wanted = x.astype(np.float64)
    for position in np.ndindex(*places):
        place = list(position)
        place[axis] = at[position]
        put(wanted, tuple(place), updates[position].astype(np.float64), reduction)
    (found,) = computed(made, [x, at.astype(np.int64), updates], tmp_path)
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


@needs_compiler
def test_a_place_outside_writes_inside(tmp_path: Path) -> None:
    """As no array is left by it."""
    made = of_call((3, 2), (2, 1), (2, 2))
    assert made is not None
    at, ones = np.asarray([[7], [-5]]), np.ones((2, 2), np.float32)
    (found,) = computed(made, [np.zeros((3, 2), np.float32), at, ones], tmp_path)
    assert found.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("data", "dtype", "index", "reduction"),
    [
        (("n", 4), "float32", "int64", "add"), ((0, 4), "float32", "int64", "add"),
        ((3, 4), "float32", "uint8", "add"), ((3, 4), "int8", "int64", "add"),
        ((3, 4), "float32", "int64", "mean"),
    ],
)  # fmt: skip
def test_others_are_left_to_tvm(
    data: tuple[object, ...], dtype: str, index: str, reduction: str
) -> None:
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in data)
    axis = 0 if reduction == "mean" else None
    places = (2, 1) if axis is None else (2, 4)
    assert of_call(shape, places, (2, 4), dtype, index, reduction, axis) is None
