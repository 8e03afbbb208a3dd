"""What an ONNX model becomes, and the one sentence for each that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.intermediate import by_onnx_name
from mcfuser.graph.load import ModelPort, load
from tests.support.nets import Net
from tests.support.paths import FIXTURES


def fixture(name: str) -> bytes:
    return (FIXTURES / f"{name}.onnx").read_bytes()


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str | None] | None = (2, 3),
    dtype: int = TensorProto.FLOAT,
    domains: Sequence[str] = (),
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid(d, 17 if not d else 1) for d in ("", *domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def computed_giant() -> bytes:
    """A shape of 2^32 that is known only once constants have been computed."""
    nodes = [
        helper.make_node("ReduceProd", ["extents"], ["extent"], keepdims=1),
        helper.make_node("ConstantOfShape", ["extent"], ["giant"]),
        helper.make_node("ReduceMax", ["giant"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    extents = numpy_helper.from_array(np.array([1 << 16, 1 << 16], np.int64), "extents")
    return model(nodes, weights=[extents]).SerializeToString()


def relu(shape: Sequence[int | str | None] | None = (2, 3), dtype: int = 1) -> bytes:
    return model([helper.make_node("Relu", ["x"], ["y"])], shape, dtype).SerializeToString()


def test_a_model_names_its_inputs_and_outputs() -> None:
    loaded = load(fixture("attention_dynamic"), {"x": (2, 16, 24)})
    assert loaded.inputs == (
        ModelPort("x", (2, 16, 24), "float32"),
        ModelPort("mask", (2, 16), "int64"),
    )
    assert [(p.shape, p.dtype) for p in loaded.outputs] == [((2, 16, 24), "float32")]


def test_names_in_the_module_are_such_as_c_has() -> None:
    """They become those of a GPU kernel's parameters; the model's own stand in the report."""
    names = ["in put:0", "in_put/0", "入力", "0", "入"]
    made = [helper.make_node("Sum", names, ["y"], name="和 of:all")]
    proto = model(made)
    del proto.graph.input[:]
    proto.graph.input.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in names
    )
    loaded = load(proto.SerializeToString(), {})
    assert [port.name for port in loaded.inputs] == names
    main = loaded.module["main"]
    given = [p.name for p in main.params]
    values = [b.var.name for block in main.body.blocks for b in block.bindings]
    assert given == ["in_put_0", "in_put_0_1", "input_", "input_0", "input__1"]
    assert all(n.isascii() and n.isidentifier() for n in (*given, *values))


def test_shape_arithmetic_is_folded_away() -> None:
    script = load(fixture("attention_dynamic"), {"x": (2, 16, 24)}).module.script()
    assert "shape_of" not in script
    assert "concat" not in script


def test_an_operator_with_a_body_is_written_out() -> None:
    script = load(fixture("attention_operator"), {}).module.script()
    assert script.count("R.matmul") == 2
    assert script.count("softmax") == 1


def test_a_body_takes_the_defaults_of_its_operator() -> None:
    """onnx's inliner leaves a reference to an attribute that the node does not have."""
    graph = helper.make_graph(
        [helper.make_node("Swish", ["x"], ["y"])],
        "gate",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    script = load(proto.SerializeToString(), {}).module.script()
    assert "R.sigmoid" in script
    assert "R.multiply" in script


@pytest.mark.parametrize(("node", "imported"), [("ai.onnx", "ai.onnx"), ("", "ai.onnx")])
@pytest.mark.parametrize(("operator", "version"), [("Relu", 17), ("Swish", 24), ("Gelu", 20)])
def test_the_domain_of_onnx_has_two_names(
    operator: str, version: int, node: str, imported: str
) -> None:
    made = model([helper.make_node(operator, ["x"], ["y"], domain=node)])
    plain = model([helper.make_node(operator, ["x"], ["y"])])
    for proto, domain in ((made, imported), (plain, "")):
        del proto.opset_import[:]
        proto.opset_import.append(helper.make_opsetid(domain, version))
        proto.ir_version = 10
    scripts = [load(p.SerializeToString(), {}).module.script() for p in (made, plain)]
    assert scripts[0] == scripts[1]


def test_half_precision_stays_half() -> None:
    script = load(fixture("attention_half"), {}).module.script()
    assert "float32" not in script
    assert "softmax" in script


def test_spelled_out_operators_are_one_again() -> None:
    script = load(fixture("normalization_spelled_out"), {}).module.script()
    assert script.count("R.nn.layer_norm") == 1
    assert "R.mean" not in script
    script = load(fixture("attention_spelled_out"), {}).module.script()
    assert script.count("R.nn.softmax") == 1
    assert "R.exp" not in script


def test_a_weight_among_the_inputs_is_a_constant() -> None:
    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], weights=[weight])
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (3, 3)))
    assert [p.name for p in load(proto.SerializeToString(), {}).inputs] == ["x"]


def test_local_functions_are_inlined() -> None:
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="local")], domains=["local"])
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, opsets))
    assert "R.add" in load(proto.SerializeToString(), {}).module.script()


def unknown_operator() -> bytes:
    return model([helper.make_node("Det", ["x"], ["y"], name="volume")]).SerializeToString()


def of_domain(operator: str, domain: str) -> bytes:
    node = helper.make_node(operator, ["x"], ["y"], name="sea", domain=domain)
    return model([node], domains=[domain]).SerializeToString()


def unknown_domain() -> bytes:
    return of_domain("Wave", "org.ocean")


def saved_for_a_cpu() -> bytes:
    return of_domain("Conv", "com.microsoft.nchwc")


def with_a_tokenizer() -> bytes:
    return of_domain("BertTokenizer", "ai.onnx.contrib")


def external() -> bytes:
    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], weights=[weight]).SerializeToString()


def mismatched() -> bytes:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="clash")
    return model([node], weights=[weight]).SerializeToString()


def unimportable() -> bytes:
    """TopK with a k that is computed: the importer has a converter, which refuses."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Shape", ["n"], ["m"], start=1),
        helper.make_node("TopK", ["x", "m"], ["y", "i"], name="best"),
    ]
    return model(nodes).SerializeToString()


Shapes = dict[str, tuple[int, ...]]
BAD: dict[str, tuple[Callable[[], bytes], Shapes, tuple[str, ...]]] = {
    "empty": (lambda: b"", {}, ("empty",)),
    "text": (lambda: b"not a model at all", {}, ("not ONNX",)),
    "zeros": (lambda: b"\0" * 64, {}, ("not ONNX",)),
    "picture": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)), {}, ("not ONNX",)),
    "truncated": (lambda: fixture("three_products")[:-700], {}, ("truncated",)),
    "head only": (lambda: fixture("three_products")[:2], {}, ("not ONNX",)),
    "unknown operator": (unknown_operator, {}, ("'Det'", "'volume'")),
    "unknown domain": (unknown_domain, {}, ("'Wave'", "'sea'", "'org.ocean'")),
    "saved for a cpu": (saved_for_a_cpu, {}, ("'Conv'", "nchwc'", "ORT_ENABLE_EXTENDED")),
    "with a tokenizer": (with_a_tokenizer, {}, ("'BertTokenizer'", "onnxruntime-extensions")),
    "external data": (external, {}, ("'w'", "weights.bin")),
    "dynamic": (lambda: relu(("rows", 3)), {}, ("'rows'", "'x'", "--shape x=128x3")),
    "nameless dimension": (lambda: relu((2, None)), {}, ("dimension 1", "'x'", "--shape x=2x128")),
    "unknown rank": (lambda: relu(None), {}, ("'x'", "--shape x=")),
    "unknown input": (lambda: relu(), {"z": (1,)}, ("'z'", "x")),
    "wrong rank": (lambda: relu(), {"x": (2, 3, 4)}, ("'x'", "3 dimensions", "2")),
    "contradiction": (lambda: relu(), {"x": (2, 4)}, ("'x'", "4", "3")),
    "no extent": (lambda: relu((0, 3)), {}, ("'x'", "extent 0")),
    "no extent given": (lambda: relu(("rows", 3)), {"x": (0, 3)}, ("'x'", "'Relu'", "--shape")),
    "string": (lambda: relu((2, 3), TensorProto.STRING), {}, ("'x'", "string")),
    "complex": (lambda: relu((2, 3), TensorProto.COMPLEX64), {}, ("'x'", "complex64")),
    "computed giant": (computed_giant, {}, ("'giant'", "4294967296", "MCFUSER_MAX_ELEMENTS")),
    "mismatch": (mismatched, {}, ("clash",)),
    "converter refuses": (unimportable, {}, ("'TopK'", "'best'")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_sentence(name: str) -> None:
    build, shapes, words = BAD[name]
    with pytest.raises(ModelError) as refused:
        load(build(), shapes)
    message = str(refused.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("cut", [1, 7, 30, 200, 1000])
def test_no_truncation_goes_unnoticed(cut: int) -> None:
    with pytest.raises(ModelError):
        load(fixture("three_products")[:-cut], {})


def test_one_name_is_one_extent() -> None:
    with pytest.raises(ModelError, match="'batch' of input 'mask'"):
        load(fixture("attention_dynamic"), {"x": (2, 16, 24), "mask": (3, 16)})


def test_every_value_of_a_model_has_a_name_of_its_own_in_the_module() -> None:
    """What passes of TVM's make anew is not taken for a value of the model's."""
    net = Net()
    value, made = net.input("x", 4, 8), []
    for _ in range(3):
        norm = net.op("LayerNormalization", value, net.weight(8), net.weight(8))
        siblings = [net.op("MatMul", norm, net.weight(8, 8)) for _ in range(2)]
        made += [norm, *siblings]
        value = net.op("Mul", *siblings)
    loaded = load(net.model(value).SerializeToString(), {})
    order = dataflow(loaded.module["main"]).order
    assert len({v.name for v in order}) == len(order)
    known = by_onnx_name(loaded.names, order)
    assert {tuple(map(int, known[name].ty.shape)) for name in made} == {(4, 8)}


@pytest.mark.parametrize("words", ["i.j->i", "...i...->i", "i....->i", "i1->i", "i->i->i"])
def test_an_equation_that_is_none_is_told(words: str) -> None:
    """onnx looks at some of them for ever."""
    einsum = helper.make_node("Einsum", ["x"], ["y"], name="sum", equation=words)
    told = rf"'Einsum' .* \(node 'sum'\) has the equation '{words}'; write letters"
    with pytest.raises(ModelError, match=told):
        load(model([einsum]).SerializeToString(), {})
