"""Large weights inside of a model's file: taken out before protobuf reads it, and nothing else is
changed by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from mmap import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from mcfuser.errors import ModelError
from mcfuser.graph import embedded, read
from mcfuser.graph.delivery import delivered
from mcfuser.graph.embedded import lightened, mapped, released
from mcfuser.graph.inspection import inspect
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import load
from mcfuser.graph.read import parse
from mcfuser.graph.tensors import array_over
from mcfuser.graph.weights import OnnxArray, OnnxModel
from mcfuser.graph.wire import ModelBytes

WIDE = 160  # a weight of WIDE x WIDE is large
SIZE = 4 * WIDE * WIDE


def weight(name: str = "w", *shape: int, dtype: object = np.float32) -> TensorProto:
    random = np.random.default_rng(len(name))
    array = random.standard_normal(shape or (WIDE, WIDE)).astype(dtype)
    return numpy_helper.from_array(array, name)


def made(
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    shape: tuple[int, ...] = (4, WIDE),
    kind: int = TensorProto.FLOAT,
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)], weights,
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    if kind == TensorProto.FLOAT16:
        graph.output[0].type.tensor_type.elem_type = kind
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def product(*weights: TensorProto) -> onnx.ModelProto:
    """y = x w."""
    return made([helper.make_node("MatMul", ["x", "w"], ["y"])], list(weights or [weight()]))


@contextmanager
def apart(size: int) -> Iterator[None]:
    """As if so many bytes were those of a large model."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (read, embedded):
            patch.setattr(module, "APART", size)
        yield


def both(model: ModelBytes, limits: ModelLimits = DEFAULTS) -> tuple[OnnxModel, OnnxModel]:
    """The model with its weights in the message, and with those that are taken out of it."""
    with apart(0):
        taken = parse(model, limits)
    return parse(model, limits), taken


def elements(model: OnnxModel) -> list[tuple[str, OnnxArray]]:
    """The weights of a model's graph, in order."""
    return [
        (t.name, model.weights[t.name] if t.name in model.weights else numpy_helper.to_array(t))
        for t in model.proto.graph.initializer
    ]


def assert_same(one: OnnxModel, other: OnnxModel) -> None:
    assert not one.weights
    assert [n for n, _ in elements(one)] == [n for n, _ in elements(other)]
    for (name, a), (_, b) in zip(elements(one), elements(other), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), name
    for model in (one, other):
        del model.proto.graph.initializer[:]
    assert one.proto == other.proto


# --- what is taken out ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_weight_of_a_product_is_an_aligned_array(dtype: type) -> None:
    model = product(weight("w", 200, 200, dtype=dtype)).SerializeToString()
    one, other = both(model)
    (found,) = other.weights.values()
    assert not found.flags.writeable and found.ctypes.data % 64 == 0
    assert len(other.proto.SerializeToString()) < 300
    assert_same(one, other)


def test_a_small_model_is_read_as_ever() -> None:
    assert not parse(product().SerializeToString(), DEFAULTS).weights


def test_what_a_rewrite_may_ask_for_stays_in_the_message() -> None:
    """The operand of another operator, integers, the output of the graph, and small weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "multiplied"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        helper.make_node("Mul", ["multiplied", "scale"], ["d"]),
        helper.make_node("Gather", ["c", "indices"], ["y"]),
    ]
    many = np.zeros((300, 300), np.int64)
    weights = [
        weight(), weight("multiplied"), weight("scale", 1), weight("result"),
        numpy_helper.from_array(many, "indices"),
    ]  # fmt: skip
    proto = made(nodes, weights)
    proto.graph.output.add().CopyFrom(
        helper.make_tensor_value_info("result", TensorProto.FLOAT, [WIDE, WIDE])
    )
    one, other = both(proto.SerializeToString())
    assert list(other.weights) == ["w"]
    assert_same(one, other)


def test_a_branch_may_ask_for_it_too() -> None:
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = {
        f"{kind}_branch": helper.make_graph(
            [helper.make_node(operator, ["x", "w"], ["z"])], kind, [], [out]
        )
        for kind, operator in (("then", "MatMul"), ("else", "Mul"))
    }
    nodes = [helper.make_node("If", ["yes"], ["y"], **branches)]
    proto = made(nodes, [weight(), numpy_helper.from_array(np.array(True), "yes")], (WIDE, WIDE))
    one, other = both(proto.SerializeToString())
    assert not other.weights
    assert_same(one, other)


def test_a_graph_in_two_pieces_and_data_that_is_there_twice() -> None:
    """Protobuf joins the pieces of a message, and takes the last of a field's values."""
    first = product(weight("other"), weight()).SerializeToString()
    twice = weight("twice").SerializeToString() + field(9, bytes(SIZE))
    tensors = [weight("more").SerializeToString(), weight("small", 8).SerializeToString(), twice]
    one, other = both(first + field(7, b"".join(field(5, t) for t in tensors)))
    assert list(other.weights) == ["other", "w", "more"]
    assert not numpy_helper.to_array(other.proto.graph.initializer[4]).any()
    assert_same(one, other)


def field(number: int, data: bytes) -> bytes:
    """A field of a message, with its length in three bytes."""
    length = [len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14]
    return bytes([number << 3 | 2, *length]) + data


def test_names_that_are_there_twice_are_put_back() -> None:
    one, other = both(product(weight(), weight()).SerializeToString())
    assert not other.weights
    assert_same(one, other)


# --- what comes of it -----------------------------------------------------------------------


def gemm() -> onnx.ModelProto:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5)
    return made([node], [weight(), weight("b", WIDE)], opset=10)


def normalized_convolution() -> onnx.ModelProto:
    """A convolution and what onnxruntime multiplies its weight by."""
    names = [f"n{i}" for i in range(4)]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", *names], ["y"]),
    ]
    parts = [numpy_helper.from_array(np.linspace(0.5, 2, 64, dtype=np.float32), n) for n in names]
    return made(nodes, [weight("w", 64, 64, 3, 3), *parts], (1, 64, 8, 8))


def rows() -> onnx.ModelProto:
    return made(
        [helper.make_node("Gather", ["w", "x"], ["y"])], [weight()], (4,), TensorProto.INT64
    )


def transposed() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return made(nodes, [weight(), weight("v")])


def siblings() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", n], [f"{n}_x"]) for n in ("q", "key", "values")]
    nodes += [
        helper.make_node("MatMul", ["q_x", "key_x"], ["s"]),
        helper.make_node("MatMul", ["s", "values_x"], ["y"]),
    ]
    weights = [weight(n) for n in ("q", "key", "values")]
    return made(nodes, weights, (WIDE, WIDE))


def narrow() -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    wide = weight("w", 200, 200, dtype=np.float16)
    return made([node], [wide], (4, 200), TensorProto.FLOAT16)


@pytest.mark.parametrize(
    "model", [product, gemm, normalized_convolution, rows, transposed, siblings, narrow]
)
def test_the_module_is_the_same(model: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """From bytes, from a mapped file, and as it was read before."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    before = load(path.read_bytes(), {})
    with apart(0):
        assert parse(path.read_bytes(), DEFAULTS).weights
        found = [load(path.read_bytes(), {})]
        with delivered(path, tmp_path, DEFAULTS) as (given, folder):
            assert isinstance(given, mmap)
            found.append(load(given, {}, folder=folder))
            assert sha256(given).digest() == sha256(path.read_bytes()).digest()
    for one in found:
        assert one.module.script() == before.module.script()
        assert one.inputs == before.inputs and one.outputs == before.outputs
        assert one.names == before.names
        assert constants(one.module) == constants(before.module)


def constants(module: tvm.IRModule) -> list[bytes]:
    """The bytes of the constants of a module, in order."""
    found: list[bytes] = []

    def visit(part: object) -> None:
        if isinstance(part, tvm.ir.GenericConst):
            found.append(array_over(part.value).tobytes())

    relax.analysis.post_order_visit(module["main"], visit)
    assert found
    return found


# --- what is refused ------------------------------------------------------------------------


def refusal(model: ModelBytes, limits: ModelLimits = DEFAULTS) -> str:
    with pytest.raises(ModelError) as told:
        inspect(model, {}, limits)
    return str(told.value)


def test_a_truncated_model_is_told_in_the_same_sentence(tmp_path: Path) -> None:
    whole = product(weight(), weight("more", 80, 400)).SerializeToString()
    for size in (1, 20, 1000, SIZE // 2, SIZE + 100, len(whole) - 1):
        path = tmp_path / f"{size}.onnx"
        path.write_bytes(whole[:size])
        before = refusal(whole[:size])
        with apart(0):
            for given in (whole[:size], mapped(path)):
                assert refusal(given) == before
        assert "truncated" in before


def test_data_that_is_not_the_shape_s_is_told_in_the_same_sentence() -> None:
    short, wrong, more = weight(), weight(), weight()
    short.raw_data = short.raw_data[4:]
    wrong.dims[0] = -1
    more.float_data.append(1)
    unknown = weight()
    unknown.data_type = 99
    for tensor, words in (
        (short, f"holds {SIZE - 4} bytes"),
        (wrong, "extent -1"),
        (unknown, "99"),
    ):
        model = product(tensor).SerializeToString()
        before = refusal(model)
        with apart(0):
            assert refusal(model) == before
        assert words in before
    assert_same(*both(product(more).SerializeToString()))


def test_a_tensor_that_names_no_file_is_refused_whatever_its_name() -> None:
    hidden = TensorProto(name="w", data_type=1, dims=[WIDE, WIDE], data_location=1)
    proto = product()
    proto.graph.node.append(helper.make_node("Constant", [], ["c"], value=hidden))
    model = proto.SerializeToString()
    before = refusal(model)
    with apart(0):
        assert refusal(model) == before
    assert "names no external file" in before


@pytest.mark.parametrize(
    "limits",
    [
        ModelLimits(nodes=1), ModelLimits(fields=10), ModelLimits(rank=1),
        ModelLimits(elements=WIDE * WIDE - 1), ModelLimits(total_bytes=SIZE - 1),
    ],
)  # fmt: skip
def test_limits_hold_as_ever(limits: ModelLimits) -> None:
    model = transposed().SerializeToString()
    before = refusal(model, limits)
    with apart(0):
        assert refusal(model, limits) == before
    assert "the limit is" in before


# --- the file -------------------------------------------------------------------------------


def test_a_large_file_is_mapped_and_read_again_after_its_memory_was_given_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content := np.random.default_rng(0).bytes(1 << 20))
    assert mapped(path) == content
    with apart(1 << 20):
        found = mapped(path)
    assert isinstance(found, mmap) and found[:] == content
    released(found)
    released(content)
    assert found[:] == content
    with apart((1 << 20) + 1):
        assert isinstance(mapped(path), bytes)


def test_the_rest_of_the_message_is_as_it_was() -> None:
    model = product(weight(), weight("b", 4)).SerializeToString()
    light, taken = lightened(model)
    (place,) = taken
    assert model[place.start : place.end] == weight().raw_data
    proto, whole = onnx.ModelProto.FromString(light), onnx.ModelProto.FromString(model)
    assert not proto.graph.initializer[place.number].HasField("raw_data")
    proto.graph.initializer[place.number].raw_data = weight().raw_data
    assert proto == whole
