"""A model is counted before anything in it is written out, computed or allocated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import InputError, ModelError
from mcfuser.graph.bind import bind
from mcfuser.graph.calls import check_calls
from mcfuser.graph.inspection import inspect
from mcfuser.graph.limits import DEFAULTS, LIMITS
from mcfuser.graph.messages import inside
from mcfuser.graph.read import read
from mcfuser.graph.refusal import refused
from mcfuser.graph.sizes import check_sizes
from mcfuser.graph.wire import scan
from mcfuser_service.settings import ServiceSettings
from tests.support.paths import FIXTURES

FIXTURES = sorted((FIXTURES).glob("*.onnx"))


def tensor(name: str, shape: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def relu(shape: list[int | str | None]) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [tensor("x", shape)], [tensor("y", None)])
    sets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def calling(levels: int) -> onnx.ModelProto:
    """F0 calls F1 twice, F1 calls F2 twice, and so on; the last is two nodes."""
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(levels + 1):
        name, domain = ("Relu", "") if i == levels else (f"F{i + 1}", "own")
        nodes = [
            helper.make_node(name, ["a"], ["m"], domain=domain),
            helper.make_node(name, ["m"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], nodes, sets))
    node = helper.make_node("F0", ["x"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", [tensor("x", [2])], [tensor("y", [2])])
    return helper.make_model(graph, opset_imports=sets, ir_version=9, functions=functions)


def masked(extent: int) -> onnx.ModelProto:
    """A mask made of a constant shape, and a weight that is transposed, added to x."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["mask"]),
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("Add", ["p", "mask"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([extent, 4], np.int64), "shape"),
        numpy_helper.from_array(np.ones((4, 4), np.float32), "w"),
    ]
    graph = helper.make_graph(nodes, "g", [tensor("x", [1, 4])], [tensor("y", None)], weights)
    sets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_the_bytes_are_counted_as_protobuf_reads_them(path: Path) -> None:
    data = path.read_bytes()
    nodes = len(list(inside(onnx.ModelProto.FromString(data), onnx.NodeProto)))
    assert scan(data, replace(DEFAULTS, nodes=nodes))
    with pytest.raises(ModelError, match=f"has.* {nodes} nodes; the limit is {nodes - 1}"):
        scan(data, replace(DEFAULTS, nodes=nodes - 1))
    assert not scan(data[:-1], DEFAULTS)


@pytest.mark.thorough
def test_20_000_nodes_and_tensors_of_gigabytes_pass() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    graph = helper.make_graph(
        nodes, "g", [tensor("v0", [64, 16, 512, 512])], [tensor("v20000", None)]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ModelError, match=r"values of the model have 21\d{12} bytes in all"):
        inspect(proto.SerializeToString(), {})
    inspect(proto.SerializeToString(), {}, replace(DEFAULTS, total_bytes=1 << 45))


@pytest.mark.parametrize("levels", [0, 3, 5])
def test_calls_are_counted_without_being_written_out(levels: int) -> None:
    proto = calling(levels)
    nodes = 2 ** (levels + 1)
    written = read(proto.SerializeToString(), {"Relu"}).proto
    assert len(written.graph.node) == nodes
    check_calls(proto, replace(DEFAULTS, nodes=nodes, nesting=levels + 1))
    with pytest.raises(ModelError, match=f"{nodes} nodes.*MCFUSER_MAX_NODES"):
        check_calls(proto, replace(DEFAULTS, nodes=nodes - 1))
    with pytest.raises(ModelError, match=f"nested {levels + 1} deep.*MCFUSER_MAX_NESTING"):
        check_calls(proto, replace(DEFAULTS, nesting=levels))


def test_a_constant_that_is_computed_counts_where_it_grows() -> None:
    operators = {"ConstantOfShape", "Transpose", "MatMul", "Add"}
    bound = read(masked(100).SerializeToString(), operators).proto
    bind(bound, {})
    check_sizes(bound, replace(DEFAULTS, constant_bytes=1600))
    with pytest.raises(ModelError, match=r"have 15\d\d bytes more.*MCFUSER_MAX_CONSTANT_BYTES"):
        check_sizes(bound, replace(DEFAULTS, constant_bytes=1500))


@pytest.mark.parametrize("extent", [999_999_999, 1 << 31, 10**17, 10**40])
def test_a_giant_shape_is_refused_by_its_number(extent: int) -> None:
    with pytest.raises(ModelError, match=f"'x'.* {str(extent)[:5]}.*|more than 10"):
        inspect(relu(["n"]).SerializeToString(), {"x": (extent,)})


@pytest.mark.parametrize("open_", [-1, "", None])
def test_minus_one_and_no_name_are_dynamic(open_: int | str | None) -> None:
    proto = relu([open_, 3])
    if open_ == "":
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = ""
    proto.graph.output[0].CopyFrom(tensor("y", [-1, 3]))
    model = proto.SerializeToString()
    with pytest.raises(ModelError, match=r"dimension 0 of input 'x' is dynamic; .*--shape x=128x3"):
        inspect(model, {})
    inspect(model, {"x": (5, 3)})
    found = read(model, {"Relu"}).proto
    bind(found, {"x": (5, 3)})
    assert [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim] == [5, 3]


def test_dimensions_of_minus_one_need_not_be_equal() -> None:
    """Two of them are two dimensions, as two without a name are."""
    inspect(relu([-1, -1]).SerializeToString(), {"x": (5, 3)})


@pytest.mark.parametrize("extent", [0, -2, -(1 << 63)])
def test_other_extents_below_one_are_refused(extent: int) -> None:
    with pytest.raises(ModelError, match=f"dimension 0 of input 'x' has extent {extent}"):
        inspect(relu([extent, 3]).SerializeToString(), {})


def test_what_a_library_raises_is_one_sentence() -> None:
    for error, words in (
        (RuntimeError("it failed:\n  at the end.\nfile.cc:3"), "it failed: at the end"),
        (KeyError("w"), "'w' is missing"),
        (AssertionError(), "AssertionError"),
    ):
        with pytest.raises(ModelError) as caught, refused("TVM cannot"):
            raise error
        assert str(caught.value) == f"TVM cannot: {words}"
    for kept in (MemoryError(), OSError(28, "No space"), ModelError("the model")):
        with pytest.raises(type(kept)) as same, refused("TVM cannot"):
            raise kept
        assert same.value is kept


def test_each_limit_is_a_setting() -> None:
    settings = ServiceSettings(max_model_bytes=DEFAULTS.model_bytes)
    assert settings.model_limits == DEFAULTS
    for name in LIMITS:
        changed = ServiceSettings(**{f"max_{name}": 7}).model_limits
        assert getattr(changed, name) == 7
        with pytest.raises(ModelError, match=f"has 8 of it; the limit is 7.*MAX_{name.upper()}"):
            changed.check(name, 8, "the model has {} of it")


def test_a_sentence_shows_what_it_quotes_and_ends() -> None:
    assert str(InputError("no\nline \x1b[31m\ud800 é")) == r"no\nline \x1b[31m\ud800 é"
    assert len(str(InputError("n" * 10**6))) == 2000
