"""What TVM would resize, align or convolve wrongly is written out or refused."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


X = {"x": drawn(1, 2, 4, 5)}


@pytest.mark.parametrize(
    ("factors", "more", "words"),
    [
        ([1, 1, 0.6, 0.6], {"mode": "linear"}, "no whole sizes"),
        ([1, 1, 0.8, 0.5], {"mode": "cubic"}, "no whole sizes"),
        ([1, 1, 0.5, 0.2], {"mode": "linear", "antialias": 1}, "'antialias'"),
        ([1, 1, 2, 2], {"mode": "cubic", "exclude_outside": 1}, "'exclude_outside'"),
        ([1, 1, 2, 2], {"mode": "linear"}, None),
        ([1, 1, 0.6, 0.6], {"mode": "nearest"}, None),
    ],
)
def test_resizing(factors: list[float], more: dict[str, object], words: str | None) -> None:
    constants = {"factors": np.array(factors, np.float32)}
    model = one_node("Resize", ["x", "", "factors"], 1, X, constants, opset=19, **more)
    if words is None:
        rewrite(model)
        assert [n.op_type for n in model.graph.node] == ["Resize"]
        return
    with pytest.raises(ModelError, match=rf"'Resize'.*'the_node'.*{words}"):
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
