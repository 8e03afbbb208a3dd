"""What TVM would resize, align or convolve wrongly is written out or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.lifted import computed
from tests.support.one_node import agree, one_node, run

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


X = {"x": drawn(1, 2, 4, 5)}


@pytest.mark.parametrize(
    ("size", "more"),
    [
        ([1.0, 1.0, 0.6, 0.6], {"mode": "linear"}),
        ([1.0, 1.0, 1.7, 0.9], {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}),
        ([1.0, 1.0, 0.8, 0.5], {"mode": "cubic"}),
        (
            [1.0, 1.0, 2.3, 1.5],
            {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
        ),
        ([1.0, 1.0, 0.5, 0.2], {"mode": "linear", "antialias": 1}),
        ([1, 2, 3, 2], {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5}),
        ([1, 2, 3, 5], {"mode": "linear", "antialias": 1}),
        ([1.0, 1.0, 2.0, 2.0], {"mode": "cubic", "exclude_outside": 1}),
        ([7, 3], {"mode": "linear", "antialias": 1, "axes": [2, 3]}),
        ([3, 7], {"mode": "linear", "antialias": 1, "axes": [-1, -2]}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_interpolation_that_tvm_lacks_is_products(
    size: list[float], more: dict[str, object], dtype: type
) -> None:
    given = {"x": X["x"].astype(dtype)}
    sized = all(isinstance(n, int) for n in size)
    inputs = ["x", "", "", "size"] if sized else ["x", "", "size"]
    constants = {"size": np.array(size, np.int64 if sized else np.float32)}
    model = one_node("Resize", inputs, 1, given, constants, opset=19, **more)
    expected = None
    if dtype is np.float16:  # onnxruntime rounds within
        wide = one_node("Resize", inputs, 1, {"x": X["x"]}, constants, opset=19, **more)
        expected = [a.astype(np.float16) for a in run(wide, {"x": given["x"].astype(np.float32)})]
    made = agree(model, given, 1e-5 if expected is None else 2e-3, expected)
    products = [n for n in made.graph.node if n.op_type == "MatMul"]
    assert len(products) == sum(n not in (1.0, e) for n, e in zip(size[-2:], (4, 5), strict=True))


@pytest.mark.parametrize("places", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("rounded", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("size", [[1.0, 1.0, 0.6, 1.7], [1.0, 2.5, 2.0, 1.0], [1, 3, 7, 3]])
def test_elements_that_are_chosen_otherwise_than_tvm_does_are_gathered(
    size: list[float], places: str, rounded: str
) -> None:
    """TVM takes the quotient of the sizes for the factor: of 253 elements and a factor of 0.4 it
    chose the fourth instead of the third."""
    sized = all(isinstance(n, int) for n in size)
    inputs = ["x", "", "", "size"] if sized else ["x", "", "size"]
    constants = {"size": np.array(size, np.int64 if sized else np.float32)}
    model = one_node(
        "Resize", inputs, 1, X, constants, opset=19, mode="nearest", nearest_mode=rounded,
        coordinate_transformation_mode=places,
    )  # fmt: skip
    made = agree(model, X, 0.0)
    assert {n.op_type for n in made.graph.node} == {"Gather", "Identity"}


@pytest.mark.parametrize(
    "more",
    [
        {"coordinate_transformation_mode": "half_pixel_symmetric"},
        {"coordinate_transformation_mode": "align_corners"},
    ],
)
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_places_that_tvm_lacks_are_written_out(mode: str, more: dict[str, str]) -> None:
    constants = {"size": np.array([1, 2, 8, 1], np.int64)}
    model = one_node("Resize", ["x", "", "", "size"], 1, X, constants, opset=19, mode=mode, **more)
    assert "Resize" not in {n.op_type for n in agree(model, X).graph.node}


def test_elements_are_chosen_in_an_opset_that_wants_every_input() -> None:
    constants = {"roi": np.zeros(0, np.float32), "size": np.array([1, 1, 1.5, 3.1], np.float32)}
    model = one_node("Resize", ["x", "roi", "size"], 1, X, constants, opset=11, mode="nearest")
    assert {n.op_type for n in agree(model, X, 0.0).graph.node} == {"Gather", "Identity"}


@pytest.mark.parametrize(
    ("factors", "more"),
    [
        ([1, 1, 2, 2], {"mode": "linear"}),
        ([1, 1, 0.5, 3], {"mode": "nearest"}),
        ([1, 1, 1.5, 1.2], {"mode": "linear"}),
    ],
)
def test_an_interpolation_that_tvm_knows_stays(
    factors: list[float], more: dict[str, object]
) -> None:
    constants = {"factors": np.array(factors, np.float32)}
    model = one_node("Resize", ["x", "", "factors"], 1, X, constants, opset=19, **more)
    rewrite(model)
    assert [n.op_type for n in model.graph.node] == ["Resize"]


@pytest.mark.parametrize("antialias", [0, 1])
def test_a_size_that_keeps_the_aspect_ratio_is_refused(antialias: int) -> None:
    constants = {"size": np.array([7, 7], np.int64)}
    model = one_node(
        "Resize", ["x", "", "", "size"], 1, X, constants, opset=19, mode="linear",
        antialias=antialias, axes=[2, 3], keep_aspect_ratio_policy="not_larger",
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"'Resize'.*'the_node'.*'keep_aspect_ratio_policy'"):
        rewrite(model)


def test_the_maximum_of_a_region_is_refused() -> None:
    constants = {"rois": np.array([[0, 0, 3, 3]], np.float32), "batch": np.array([0])}
    for mode in ("avg", "max"):
        model = one_node("RoiAlign", ["x", *constants], 1, X, constants, mode=mode)
        if mode == "avg":
            rewrite(model)
            continue
        with pytest.raises(ModelError, match=r"'RoiAlign'.*'the_node'.*'max'"):
            rewrite(model)


@pytest.mark.parametrize("opset", [10, 15, 16, 22])
def test_a_region_s_places_are_as_its_opset_says(opset: int, tmp_path: Path) -> None:
    """Until opset 15 a region begins at an element's middle, later half an element before."""
    rows = np.array([[0, 0, 9, 5], [4, 2, 30, 20]], np.float32)
    constants = {"rois": rows, "batch": np.array([0, 0])}
    shape = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.25}
    model = one_node("RoiAlign", ["x", *constants], 1, X, constants, opset=max(opset, 10), **shape)
    loaded = load(model.SerializeToString(), {})
    (found,) = computed(loaded.module, [X["x"]], tmp_path)
    if opset <= 21:  # onnxruntime 1.31 has no newer one
        np.testing.assert_allclose(found, run(model, X)[0], rtol=1e-5, atol=1e-6)
    words = "output_half_pixel" if opset < 16 else "half_pixel"
    named = one_node(
        "RoiAlign", ["x", *constants], 1, X, constants, opset=16,
        coordinate_transformation_mode=words, **shape,
    )  # fmt: skip
    np.testing.assert_allclose(found, run(named, X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [[10, 12], [9, 11], [11, 13]])
def test_a_convolution_with_the_shape_of_its_result(shape: list[int], pad: str) -> None:
    constants = {"w": drawn(2, 3, 5, 5)}
    model = one_node(
        "ConvTranspose", ["x", "w"], 1, X, constants, strides=[2, 2], output_shape=shape,
        auto_pad=pad,
    )  # fmt: skip
    rewrite(made := type(model).FromString(model.SerializeToString()))
    assert not [a for a in made.graph.node[0].attribute if a.name == "output_shape"]
    agree(model, X)


@pytest.mark.parametrize(
    ("image", "block", "more"),
    [
        ([5, 6], [2, 3], {}),
        ([7, 9], [3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ([6, 7], [2, 2], {"dilations": [2, 3], "pads": [0, 1, 1, 0]}),
        ([8, 8], [3, 2], {"strides": [3, 3]}),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_blocks_are_added_up(
    image: list[int], block: list[int], more: dict[str, object], batch: int
) -> None:
    """Where blocks do not reach the image's end, the rest is zero."""
    spans = [d * (k - 1) + 1 for d, k in zip(more.get("dilations", [1, 1]), block, strict=True)]  # type: ignore[call-overload]
    pads, strides = more.get("pads", [0] * 4), more.get("strides", [1, 1])
    steps = [
        (n + pads[i] + pads[i + 2] - spans[i]) // strides[i] + 1  # type: ignore[index]
        for i, n in enumerate(image)
    ]
    given = {"x": drawn(batch, 2 * block[0] * block[1], steps[0] * steps[1])}
    constants = {"image": np.array(image), "block": np.array(block)}
    model = one_node("Col2Im", ["x", *constants], 1, given, constants, opset=18, **more)
    agree(model, given)
    load(model.SerializeToString(), {})


def test_blocks_that_are_not_those_of_the_image_are_refused() -> None:
    given = {"x": drawn(1, 8, 12)}
    for block, words in (([2, 2], r"\[9, 9\] does not consist of 12"), ([8], "1 dimensions")):
        constants = {"image": np.array([9] * len(block)), "block": np.array(block)}
        model = one_node("Col2Im", ["x", *constants], 1, given, constants, opset=18)
        with pytest.raises(ModelError, match=rf"'Col2Im'.*'the_node'.*{words}"):
            rewrite(model)
