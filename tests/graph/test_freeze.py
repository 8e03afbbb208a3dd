"""A model some of whose inputs have values is the same model with constants in their place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import InputError, ModelError
from mcfuser.graph import embedded, read
from mcfuser.graph.freeze import has_files, initializers
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import load
from mcfuser.graph.read import light

Dims = list[int | str | None]


def model(kind: int = TensorProto.FLOAT, dims: Dims | None = None) -> bytes:
    """`y = x @ w + Cast(v)`, whose input `v` is of some type and shape."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    nodes = [
        helper.make_node("Cast", ["v"], ["u"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "u"], ["y"]),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("v", kind, [] if dims is None else dims),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def message(given: bytes) -> onnx.ModelProto:
    return light(given, DEFAULTS)[0]


def value(given: bytes, text: str) -> np.ndarray:
    """The constant that `v` becomes."""
    proto = onnx.ModelProto.FromString(given + initializers(message(given), {"v": text}))
    onnx.checker.check_model(proto)
    (found,) = (t for t in proto.graph.initializer if t.name == "v")
    return numpy_helper.to_array(found)


@pytest.mark.parametrize(
    ("kind", "dims", "text", "wanted"),
    [
        (TensorProto.FLOAT, None, "0.5", np.float32(0.5)),
        (TensorProto.FLOAT, [2, 4], "-1e3", np.full((2, 4), -1e3, np.float32)),
        (TensorProto.FLOAT, [2, 1], "1, 2", np.array([[1], [2]], np.float32)),
        (TensorProto.FLOAT16, ["n"], "1,2,3,4", np.array([1, 2, 3, 4], np.float16)),
        (TensorProto.DOUBLE, ["n", 4], "7", np.full((1, 4), 7.0)),
        (TensorProto.BOOL, [1], "true", np.array([True])),
        (TensorProto.BOOL, [2, 1], "False,1", np.array([[False], [True]])),
        (TensorProto.INT64, [], "-3", np.int64(-3)),
        (TensorProto.UINT8, [1], "255", np.array([255], np.uint8)),
    ],
)
def test_a_value_has_the_type_and_shape_of_its_input(
    kind: int, dims: Dims | None, text: str, wanted: np.ndarray
) -> None:
    found = value(model(kind, dims), text)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "dims", "text", "words"),
    [
        (TensorProto.BOOL, [1], "yes", r"'v' is 'yes', not true or false"),
        (TensorProto.INT64, [1], "0.5", r"'v' is '0\.5', not a number of type int64"),
        (TensorProto.UINT8, [1], "256", "not a number of type uint8"),
        (TensorProto.FLOAT, [2], "1,,2", "'v' is '', not a number"),
        (TensorProto.FLOAT, [2, 2], "1,2,3", "is given 3 numbers; it is 2x2"),
        (TensorProto.FLOAT, ["n", 2], "1,2,3", r"is given 3 numbers; it is \?x2"),
        (TensorProto.FLOAT, ["n", "m"], "1,2", r"is given 2 numbers; it is \?x\?"),
        (TensorProto.FLOAT, None, "1,2", "is given 2 numbers; it is one number"),
        (TensorProto.FLOAT, [1 << 10, 1 << 10], "1", "more than 65536 elements"),
    ],
)
def test_a_value_of_another_form_is_named(
    kind: int, dims: Dims | None, text: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        initializers(message(model(kind, dims)), {"v": text})


def test_what_is_no_input_is_named() -> None:
    with pytest.raises(InputError, match="the model has no input 'z'; its inputs are x, v"):
        initializers(message(model()), {"z": "1"})
    with pytest.raises(InputError, match="'w' is an initializer already"):
        initializers(message(model()), {"w": "1"})
    with pytest.raises(ModelError, match="not ONNX"):
        message(b"hello")
    with pytest.raises(ModelError, match="input 'v' is no tensor of numbers"):
        initializers(message(model(TensorProto.STRING)), {"v": "1"})


def test_the_model_has_the_other_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its weights are taken out of its bytes."""
    given = model(TensorProto.INT64, [1])
    frozen = given + initializers(message(given), {"v": "5"})
    for apart in (embedded.APART, 1):
        monkeypatch.setattr(embedded, "APART", apart)
        monkeypatch.setattr(read, "APART", apart)
        assert [p.name for p in load(frozen, {}).inputs] == ["x"]
        assert initializers(message(given), {"v": "5"}) == frozen[len(given) :]


def test_weights_in_files_are_noticed() -> None:
    assert not has_files(message(model()))
    proto = onnx.ModelProto.FromString(model())
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    assert has_files(proto)
    inner = onnx.ModelProto()  # a weight of a branch alone
    inner.graph.node.add().attribute.add().g.CopyFrom(proto.graph)
    assert has_files(inner)
