"""Shapes of a model's inputs: what is written, and what is refused in which words."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from mcfuser.errors import ModelError
from mcfuser.graph.bind import bind, open_dimensions

Dims = list[int | str | None]


def model(dtype: int = TensorProto.FLOAT, **inputs: Dims | None) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(n, dtype, d) for n, d in inputs.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    node = helper.make_node("Identity", [next(iter(inputs))], ["y"])
    return helper.make_model(helper.make_graph([node], "g", ports, [out]))


def shapes(proto: onnx.ModelProto) -> dict[str, list[int]]:
    return {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}


def test_what_is_given_is_written() -> None:
    proto = model(x=["rows", 4])
    bind(proto, {"x": (3, 4)})
    assert shapes(proto) == {"x": [3, 4]}


def test_a_name_in_several_inputs_need_be_given_once() -> None:
    proto = model(x=["rows", 4], z=[2, "rows"])
    bind(proto, {"z": (2, 5)})
    assert shapes(proto) == {"x": [5, 4], "z": [2, 5]}


def test_a_dimension_may_be_given_by_its_name() -> None:
    """An input of that name comes first."""
    proto = model(x=["rows", 4], z=[2, "rows"])
    bind(proto, {"rows": (5,)})
    assert shapes(proto) == {"x": [5, 4], "z": [2, 5]}
    proto = model(x=["rows", 4], rows=["rows"])
    bind(proto, {"rows": (6,)})
    assert shapes(proto) == {"x": [6, 4], "rows": [6]}


def test_an_input_without_a_shape_takes_the_one_given() -> None:
    proto = model(x=None)
    bind(proto, {"x": (3, 4)})
    assert shapes(proto) == {"x": [3, 4]}


def test_what_was_said_of_other_values_is_forgotten() -> None:
    proto = model(x=["rows", 4])
    proto.graph.value_info.extend([helper.make_tensor_value_info("t", TensorProto.FLOAT, [9])])
    bind(proto, {"x": (3, 4)})
    assert not proto.graph.value_info
    assert not proto.graph.output[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(
    ("dims", "given", "words"),
    [
        (
            ["rows", 4],
            {},
            "dimension 'rows' of input 'x' is dynamic; fix it with --shape rows=128 "
            "or --shape x=128x4",
        ),
        ([None, 4], {}, "dimension 0 of input 'x' is dynamic"),
        (None, {}, "input 'x' has no shape"),
        (
            ["rows", 4],
            {"w": (3,)},
            "names 'w'; the model has the inputs x, and the dimensions rows",
        ),
        ([3, 4], {"rows": (3,)}, "--shape names 'rows'; the model has the inputs x$"),
        (["rows", 4], {"rows": (3, 4)}, "dimension 'rows' 2 extents; give it one, as rows=128"),
        (["rows", 4], {"rows": (3,), "x": (5, 4)}, "extent 5; .* fix it at 3"),
        (["rows", 4], {"rows": (-3,)}, "--shape of dimension 'rows' has a dimension of extent -3"),
        (["rows", 4], {"x": (3, 4, 5)}, "3 dimensions; it has 2"),
        (["rows", 4], {"x": (3, 5)}, "dimension 1 of input 'x' extent 5; .* fix it at 4"),
        (["rows", 4], {"x": (-3, 4)}, "dimension of extent -3"),
        ([0, 4], {}, "dimension 0 of input 'x' has extent 0"),
    ],
)
def test_what_is_refused(dims: Dims | None, given: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        bind(model(x=dims), given)


def test_one_name_has_one_extent() -> None:
    with pytest.raises(ModelError, match="fix it at 3"):
        bind(model(x=["rows", 4], z=["rows", 2]), {"x": (3, 4), "z": (5, 2)})


def test_types_that_no_tensor_here_has_are_refused() -> None:
    with pytest.raises(ModelError, match="element type string"):
        bind(model(TensorProto.STRING, x=[3, 4]), {})
    proto = model(x=[3, 4])
    proto.graph.input[0].type.tensor_type.elem_type = 999
    with pytest.raises(ModelError, match="number 999"):
        bind(proto, {})


def test_dimensions_of_minus_one_or_without_a_name_are_open() -> None:
    proto = model(x=[-1, 4], z=["", "rows"])
    open_dimensions(proto)
    first, second = (i.type.tensor_type.shape.dim for i in proto.graph.input)
    assert [d.WhichOneof("value") for d in first] == [None, "dim_value"]
    assert [d.WhichOneof("value") for d in second] == [None, "dim_param"]


@pytest.mark.parametrize("word", ["?", "-1", "*", "None"])
def test_words_that_are_no_names_name_no_extent(word: str) -> None:
    proto = model(x=[word, word, "h", "None2"])
    open_dimensions(proto)
    (given,) = (i.type.tensor_type.shape.dim for i in proto.graph.input)
    assert [d.dim_param for d in given] == ["", "", "h", "None2"]
    bind(proto, {"x": (2, 3, 4, 5)})
