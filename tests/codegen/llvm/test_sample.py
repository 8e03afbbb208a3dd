"""Sampling at given places on a CPU: every element of the result is between its neighbours."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.sample import BLOCK, Sampling, sample, source
from tests.support.lifted import computed
from tests.support.one_call import one_call, written


def sampled(
    given: tuple[object, ...], places: tuple[int, ...], dtype: str = "float32",
    method: str = "bilinear", padding: str = "zeros", aligned: bool = False,
) -> tvm.IRModule:  # fmt: skip
    layout = "NCHW" if len(given) == 4 else "NCDHW"
    shapes = given, (given[0], len(given) - 2, *places)
    return one_call(
        [relax.TensorType(shape, dtype) for shape in shapes],
        lambda x, at: relax.op.image.grid_sample(x, at, method, layout, padding, aligned),
    )


def inside(place: float, extent: int, padding: str, aligned: bool) -> float:
    """By ONNX's definition: reflected at the ends until it is between them."""
    if padding == "border":
        return min(max(place, 0), extent - 1)
    if padding == "reflection":
        low, high = (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)
        while not low <= place <= high:
            place = 2 * low - place if place < low else 2 * high - place
        return min(max(place, 0), extent - 1)
    return place


def mixed(x: np.ndarray, at: np.ndarray, method: str, padding: str, aligned: bool) -> np.ndarray:
    """By the definition: each place by itself."""
    n, c, *extents = x.shape
    out = np.zeros((n, c, *at.shape[2:]))
    for b, where in product(range(n), np.ndindex(*at.shape[2:])):
        neighbours = []
        for axis, extent in enumerate(extents):
            given = at[(b, len(extents) - 1 - axis, *where)]
            place = (given + 1) * (extent - 1) / 2 if aligned else ((given + 1) * extent - 1) / 2
            place = inside(place, extent, padding, aligned)
            low = int(np.floor(place))
            near = [(low, low + 1 - place), (low + 1, place - low)]
            neighbours.append(near if method == "bilinear" else [(round(place), 1.0)])
        for corner in product(*neighbours):
            index = tuple(i for i, _ in corner)
            if all(0 <= i < extent for i, extent in zip(index, extents, strict=True)):
                weight = np.prod([w for _, w in corner])
                out[(b, slice(None), *where)] += weight * x[(b, slice(None), *index)]
    return out


def places(n: int, rank: int, *extents: int, far: float = 1.7) -> np.ndarray:
    """Places inside and outside, at least one of them far outside."""
    found = np.random.default_rng(1).uniform(-far, far, (n, rank, *extents))
    found[(0, 0, *(0 for _ in extents))] = 9.1
    return found.astype("float32")


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize(
    ("given", "extents"), [((2, 3, 5, 7), (9, BLOCK // 8)), ((1, 2, 3, 4, 5), (2, 3, 4))]
)
def test_every_element_is_between_its_neighbours(
    given: tuple[int, ...], extents: tuple[int, ...], method: str, padding: str, aligned: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    x = np.random.default_rng(0).standard_normal(given).astype("float32")
    at = places(given[0], len(given) - 2, *extents)
    module = sampled(given, extents, method=method, padding=padding, aligned=aligned)
    assert written(module, sample)
    (found,) = computed(module, [x, at], tmp_path)
    np.testing.assert_allclose(found, mixed(x, at, method, padding, aligned), atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_a_single_element_has_places_beside_it(padding: str, tmp_path: Path) -> None:
    x, at = np.full((1, 1, 1, 1), 3.0, "float32"), places(1, 2, 3, 4)
    (found,) = computed(sampled((1, 1, 1, 1), (3, 4), padding=padding), [x, at], tmp_path)
    np.testing.assert_allclose(found, mixed(x, at, "bilinear", padding, False), atol=1e-6)


def test_what_lies_outside_adds_nothing_even_to_infinite_neighbours(tmp_path: Path) -> None:
    """An element takes the place of what lies outside; it is read, and not added."""
    x = np.full((1, 1, 2, 2), np.inf, "float32")
    at = np.full((1, 2, 1, 3), -3.0, "float32")
    (found,) = computed(sampled((1, 1, 2, 2), (1, 3)), [x, at], tmp_path)
    assert found.tolist() == [[[[0.0, 0.0, 0.0]]]]


@pytest.mark.parametrize(
    "module",
    [
        sampled((1, 2, 3, 4), (6, 8), dtype="float16"),
        sampled((1, 2, 3, 4), (6, 8), method="bicubic"),
        sampled((1, 2, 1, 4), (6, 8), padding="reflection", aligned=True),
        sampled((1, 0, 3, 4), (6, 8)),
        sampled((tvm.tirx.Var("n", "int64"), 2, 3, 4), (6, 8)),
    ],
    ids=["half", "cubic", "no distance of the ends", "no elements", "run time"],
)
def test_others_are_tvm_s(module: tvm.IRModule) -> None:
    assert not written(module, sample)


def test_places_are_spread_over_the_cores_where_that_pays() -> None:
    few, many = (Sampling((1, c, 9, 9), (16, 16), "nearest", "zeros", True) for c in (4, 64))
    assert "T.parallel" not in source(few)
    assert source(many).count("T.parallel") == 1
