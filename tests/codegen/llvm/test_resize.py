"""Bilinear resizing on a CPU: lines first, then lines of these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.resize import PLACES, neighbours, resize, source
from tests.support.lifted import computed
from tests.support.one_call import one_call, written


def resized(
    given: tuple[object, ...], size: tuple[int, int], dtype: str = "float32", layout: str = "NCHW",
    method: str = "linear", mode: str = "half_pixel",
) -> tvm.IRModule:  # fmt: skip
    return one_call(
        [relax.TensorType(given, dtype)],
        lambda x: relax.op.image.resize2d(
            x, relax.ShapeExpr(size), layout=layout, method=method,
            coordinate_transformation_mode=mode,
        ),
    )  # fmt: skip


def mixed(x: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """By the definition: each element of the result by itself."""
    out = np.zeros((*x.shape[:2], *size))

    def at(i: int, given: int, made: int) -> float:
        if mode == "asymmetric":
            return i * given / made
        if mode == "align_corners":
            return i * (given - 1) / (made - 1) if made > 1 else 0.0
        if mode == "pytorch_half_pixel" and made == 1:
            return 0.0
        return (i + 0.5) * given / made - 0.5

    for i in range(size[0]):
        for j in range(size[1]):
            places = []
            for n, given, made in ((i, x.shape[2], size[0]), (j, x.shape[3], size[1])):
                p = at(n, given, made)
                low = int(np.floor(p))
                near = [min(max(k, 0), given - 1) for k in (low, low + 1)]
                places.append(((near[0], low + 1 - p), (near[1], p - low)))
            out[:, :, i, j] = sum(a * b * x[:, :, u, v] for u, a in places[0] for v, b in places[1])
    return out


@pytest.mark.parametrize("mode", PLACES)
@pytest.mark.parametrize(
    ("given", "size"),
    [
        ((1, 3, 5, 7), (10, 21)),
        ((2, 2, 9, 8), (3, 5)),
        ((1, 1, 4, 4), (1, 9)),
        ((1, 2, 1, 3), (4, 1)),
        ((1, 40, 6, 10), (20, 33)),
    ],
)
def test_every_element_is_between_its_neighbours(
    given: tuple[int, ...], size: tuple[int, int], mode: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal(given).astype("float32")
    module = resized(given, size, mode=mode)
    assert written(module, resize)
    (found,) = computed(module, [x], tmp_path)
    np.testing.assert_allclose(found, mixed(x, size, mode), atol=2e-6)


def test_positions_outside_are_the_nearest() -> None:
    first, second, share = neighbours(PLACES["half_pixel"], 2, 8)
    assert first.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert second.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    np.testing.assert_allclose(share, np.asarray([5, 7, 1, 3, 5, 7, 1, 3]) / 8)


@pytest.mark.parametrize(
    "module",
    [
        resized((1, 2, 3, 4), (6, 8), dtype="float16"),
        resized((1, 3, 4, 2), (6, 8), layout="NHWC"),
        resized((1, 2, 3, 4), (6, 8), method="nearest_neighbor"),
        resized((1, 2, 3, 4), (6, 8), method="cubic"),
        resized((tvm.tirx.Var("n", "int64"), 2, 3, 4), (6, 8)),
        resized((1, 2, 3, 4), (6, 8), mode="tf_half_pixel_for_nn"),
    ],
    ids=["half", "channels last", "nearest", "cubic", "run time", "another mode"],
)
def test_others_are_tvm_s(module: tvm.IRModule) -> None:
    assert not written(module, resize)


def test_lines_are_spread_over_the_cores_where_that_pays() -> None:
    assert source((1, 8, 30, 30), (1, 8, 60, 60)).count("T.parallel") == 2
    assert "T.parallel" not in source((1, 1, 3, 3), (1, 1, 60, 60))
