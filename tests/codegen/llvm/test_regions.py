"""Means of regions of pictures on a CPU, beside onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.regions import Regions, regions, source
from mcfuser.graph.load import load
from tests.support.lifted import computed
from tests.support.one_call import one_call, written
from tests.support.one_node import one_node, run


def drawn(count: int, extent: float, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Regions, some of which lie partly or wholly outside, or have no extent."""
    ends = random.uniform(-0.4 * extent, 1.4 * extent, (count, 2, 2)).astype(np.float32)
    boxes = np.sort(ends, axis=1).reshape(count, 4)
    boxes[0, 2:] = boxes[0, :2]
    return boxes


@pytest.mark.parametrize("aligned", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(
    ("pictures", "parts", "samples", "scale"),
    [
        ((1, 5, 9, 11), (7, 7), 2, 0.25), ((3, 16, 6, 4), (2, 3), 1, 1.0),
        ((2, 33, 1, 8), (1, 1), 3, 0.5), ((1, 40, 30, 20), (14, 14), 2, 0.125),
    ],
)  # fmt: skip
def test_means_are_onnxruntime_s(
    pictures: tuple[int, ...], parts: tuple[int, int], samples: int, scale: float, aligned: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    random = np.random.default_rng(0)
    x = random.standard_normal(pictures).astype(np.float32)
    boxes = drawn(40, max(pictures[2:]) / scale, random)
    at = random.integers(0, pictures[0], 40)
    given = {"x": x, "boxes": boxes, "at": at}
    model = one_node(
        "RoiAlign", [*given], 1, given, output_height=parts[0], output_width=parts[1],
        sampling_ratio=samples, spatial_scale=scale, coordinate_transformation_mode=aligned,
    )  # fmt: skip
    loaded = load(model.SerializeToString(), {})
    (found,) = computed(loaded.module, [x, boxes, at], tmp_path)
    (expected,) = run(model, given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_places_that_are_no_numbers_read_inside(tmp_path: Path) -> None:
    x, at = np.ones((1, 3, 4, 4), np.float32), np.full((2, 5), np.nan, np.float32)
    at[1] = [9, -np.inf, 0, np.inf, 2]  # of a picture that there is not
    module = call(x.shape, 2)
    (found,) = computed(module, [x, at], tmp_path)
    assert found.shape == (2, 3, 2, 2)


def call(extents: tuple[object, ...], count: object, **given: object) -> tvm.IRModule:
    kinds = {"pooled_size": (2, 2), "spatial_scale": 1.0, "sample_ratio": 2, **given}
    shapes = [relax.TensorType(e, "float32") for e in (extents, (count, 5))]
    return one_call(shapes, lambda x, at: relax.op.vision.roi_align(x, at, **kinds))


@pytest.mark.parametrize(
    "given",
    [
        {"sample_ratio": -1}, {"mode": "max"}, {"layout": "NHWC"},
        {"count": tvm.tirx.Var("n", "int64")},
    ],
)  # fmt: skip
def test_others_are_left_to_tvm(given: dict[str, object]) -> None:
    assert not written(call((1, 3, 4, 4), given.pop("count", 2), **given), regions)


def test_regions_are_shared_by_the_cores() -> None:
    many, few = (Regions((1, 64, 32, 32), n, (7, 7), 2, 1.0, False) for n in (100, 1))
    assert "for k in T.parallel(100)" in source(many) and "for k in range(1)" in source(few)


def test_the_call_is_ours() -> None:
    assert written(call((1, 3, 4, 4), 2), regions)
