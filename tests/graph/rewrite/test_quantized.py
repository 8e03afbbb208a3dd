"""Quantized products and convolutions become those of the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

from mcfuser.errors import ModelError
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.external import DataFolder
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.nets import Net
from tests.support.one_node import Arrays, agree, expected, one_node, replaced, run

RANDOM = np.random.default_rng(0)
ORT = "com.microsoft"


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        bounds = np.iinfo(dtype)
        return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
    return RANDOM.standard_normal(shape).astype(dtype)


def middle(dtype: type) -> np.ndarray:
    """A zero point near the middle of a type's numbers."""
    return np.asarray(np.iinfo(dtype).min + 125, dtype)


def scales(*shape: int) -> np.ndarray:
    return (0.01 + 0.02 * RANDOM.random(shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", [None, np.uint8, np.float32])
@pytest.mark.parametrize(("depth", "block"), [(64, 32), (80, 32), (48, 16)])
def test_weights_of_few_bits(
    bits: int, zero: type | None, depth: int, block: int, dtype: type
) -> None:
    if bits == 8 and zero is np.float32:
        pytest.skip("onnxruntime has no such zero points for 8 bits")
    columns, blocks = 5, -(-depth // block)
    weights = {
        "w": drawn(columns, blocks, block * bits // 8, dtype=np.uint8),
        "scales": scales(columns, blocks).astype(dtype),
    }
    if zero is np.uint8:
        weights["zero"] = drawn(columns, -(-blocks * bits // 8), dtype=np.uint8)
    elif zero is not None:
        weights["zero"] = (RANDOM.random((columns, blocks)) * 2**bits).astype(dtype)
    given = {"x": drawn(2, 3, depth, dtype=dtype)}
    model = one_node(
        "MatMulNBits", [*given, *weights], 1, given, weights, ORT,
        K=depth, N=columns, bits=bits, block_size=block,
    )  # fmt: skip
    tolerance = 2e-4 if dtype is np.float32 else 5e-2 * 2**bits / 16
    made = agree(model, given, tolerance)
    assert [n.op_type for n in made.graph.node][-2:] == ["MatMul", "Identity"]
    whole = [w for w in made.graph.initializer if w.data_type != onnx.TensorProto.FLOAT]
    few = max(len(w.raw_data) for w in whole if w.data_type != onnx.TensorProto.INT64)
    assert few == blocks * block * columns * bits // 8 * (1 + (bits == 8 and zero is not None))


def test_weights_of_few_bits_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    weights = {"w": drawn(256, 16, 32, dtype=np.uint8), "scales": scales(256, 16)}
    given = {"x": drawn(2, 1024)}
    model = one_node(
        "MatMulNBits", [*given, *weights], 1, given, weights, ORT,
        K=1024, N=256, bits=4, block_size=64,
    )  # fmt: skip
    inside, path = load(model.SerializeToString(), {}), tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    beside = load(path.read_bytes(), {}, folder=DataFolder(tmp_path))
    tvm.ir.assert_structural_equal(beside.module, inside.module)


def test_weights_that_are_inputs_are_refused() -> None:
    given = {"x": drawn(2, 32), "w": drawn(4, 1, 16, dtype=np.uint8), "scales": scales(4, 1)}
    model = one_node("MatMulNBits", [*given], 1, given, domain=ORT, K=32, N=4, block_size=32)
    with pytest.raises(ModelError, match=r"'MatMulNBits'.*'the_node'.*'w' is no constant"):
        rewrite(model)


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 6)), (1, (8, 2))])
def test_blocks_with_a_scale_each(dtype: type, axis: int, shape: tuple[int, int]) -> None:
    weights = {
        "w": RANDOM.integers(0, 8, (8, 6)).astype(dtype), "scale": scales(*shape),
        "zero": RANDOM.integers(0, 3, shape).astype(dtype),
    }  # fmt: skip
    given = {"x": drawn(3, 8)}
    model = one_node(
        "DequantizeLinear",
        [*weights],
        1,
        given,
        weights,
        opset=21,
        axis=axis,
        block_size=4 if axis == 0 else 3,
    )
    agree(model, given)


SIGNS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


@pytest.mark.parametrize(("a", "b"), SIGNS)
@pytest.mark.parametrize("rows", [False, True])
def test_products(a: type, b: type, rows: bool) -> None:
    """onnxruntime rounds other sums: the last bit may differ."""
    given = {"a": drawn(2, 4, 16, dtype=a)}
    count = (6,) if rows else ()
    constants = {
        "a_scale": scales(), "a_zero": middle(a), "b": drawn(16, 6, dtype=b),
        "b_scale": scales(*count), "b_zero": np.full(count, middle(b)), "y_scale": np.float32(0.2),
        "y_zero": middle(a),
    }  # fmt: skip
    model = one_node("QLinearMatMul", [*given, *constants], 1, given, constants)
    off_by_one(model, given)


def off_by_one(model: object, given: Arrays) -> None:
    (found,), (wanted,) = run(replaced(model), given), expected(model, given)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert (found == wanted).mean() > 0.95
    assert np.unique(found).size > 5


@pytest.mark.parametrize(("a", "b"), SIGNS)
@pytest.mark.parametrize("channels", [False, True])
def test_convolutions(a: type, b: type, channels: bool) -> None:
    given = {"x": drawn(1, 3, 6, 6, dtype=a)}
    count = (4,) if channels else ()
    constants = {
        "x_scale": scales(), "x_zero": middle(a), "w": drawn(4, 3, 3, 3, dtype=b),
        "w_scale": scales(*count), "w_zero": np.full(count, 0 if b is np.int8 else 128, b),
        "y_scale": np.float32(0.2),
        "y_zero": middle(a), "bias": RANDOM.integers(-900, 900, 4).astype(np.int32),
    }  # fmt: skip
    model = one_node(
        "QLinearConv", [*given, *constants], 1, given, constants, pads=[1, 1, 1, 1], strides=[2, 2]
    )
    off_by_one(model, given)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("rows", [False, True])
def test_products_of_integers(dtype: type, rows: bool) -> None:
    given = {"a": drawn(2, 4, 16, dtype=np.uint8)}
    count = (6,) if rows else ()
    constants = {
        "b": drawn(16, 6, dtype=dtype), "a_zero": np.asarray(9, np.uint8),
        "b_zero": np.full(count, 5, dtype),
    }  # fmt: skip
    model = one_node("MatMulInteger", [*given, *constants], 1, given, constants, dtypes=[np.int32])
    agree(model, given)


def test_sums_of_integers_that_are_cast_to_floats_are_read_as_floats() -> None:
    """As onnxruntime quantizes while a model runs; nothing is between the product and its scale."""
    net = Net()
    net.op("DynamicQuantizeLinear", net.input("x", 4, 16), outputs=3)
    whole, scale, zero = list(net.nodes[-1].output)
    weight = net.const(drawn(16, 6, dtype=np.int8), np.int8)
    product = net.op("MatMulInteger", whole, weight, zero, net.const(3, np.int8))
    model = net.model(net.op("Mul", net.op("Cast", product, to=1), scale))
    given = {"x": drawn(4, 16)}
    made = agree(model, given)
    (result,) = (n.output[0] for n in made.graph.node if n.op_type == "MatMul")
    assert [n.op_type for n in made.graph.node if result in n.input] == ["Cast", "Identity"]
    main = load(model.SerializeToString(), {}).module["main"].script()
    assert 'dtype="int32"' not in main.split("matmul")[1]


def test_convolutions_of_integers() -> None:
    given = {"x": drawn(1, 3, 6, 6, dtype=np.uint8)}
    constants = {"w": drawn(4, 3, 3, 3, dtype=np.int8), "zero": np.asarray(9, np.uint8)}
    model = one_node(
        "ConvInteger", [*given, *constants], 1, given, constants, dtypes=[np.int32], strides=[2, 2]
    )
    (sums,) = ReferenceEvaluator(model).run(None, given)
    agree(model, given, results=[sums.astype(np.int32)])


@pytest.mark.parametrize(
    ("kind", "operands"),
    [("QLinearAdd", 2), ("QLinearMul", 2), ("QLinearSigmoid", 1), ("QLinearLeakyRelu", 1)],
)
def test_elementwise(kind: str, operands: int) -> None:
    given = {f"x{i}": drawn(4, 9, dtype=np.uint8) for i in range(operands)}
    constants = {f"s{i}": scales() for i in range(operands)}
    constants |= {f"z{i}": np.asarray(100 + i, np.uint8) for i in range(operands)}
    constants |= {"s": np.float32(0.03), "z": np.asarray(20, np.uint8)}
    names = [f"{n}{i}" for i in range(operands) for n in "xsz"]
    off_by_one(one_node(kind, [*names, "s", "z"], 1, given, constants, ORT), given)


def test_elementwise_with_a_number_that_has_no_dimension() -> None:
    given = {"x": drawn(4, 9, dtype=np.uint8)}
    constants = {"sx": scales(), "zx": np.asarray(100, np.uint8), "y": np.asarray(77, np.uint8)}
    constants |= {"sy": scales(), "zy": np.asarray(3, np.uint8)}
    constants |= {"s": np.float32(0.03), "z": np.asarray(20, np.uint8)}
    names = ["x", "sx", "zx", "y", "sy", "zy", "s", "z"]
    off_by_one(one_node("QLinearMul", names, 1, given, constants, ORT), given)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_that_are_real_numbers(dtype: type) -> None:
    given = {"a": drawn(4, 16, dtype=np.uint8)}
    constants = {
        "b": drawn(16, 6, dtype=dtype), "a_scale": scales(), "b_scale": scales(6),
        "a_zero": np.asarray(3, np.uint8), "b_zero": np.full(6, 5, dtype), "bias": drawn(6),
    }  # fmt: skip
    model = one_node(
        "MatMulIntegerToFloat", [*given, *constants], 1, given, constants, ORT, dtypes=[np.float32]
    )
    agree(model, given, 1e-4)


def test_a_first_operand_that_is_quantized_as_it_comes() -> None:
    given = {"a": drawn(4, 16)}
    constants = {
        "b": drawn(16, 6, dtype=np.uint8), "b_scale": scales(), "b_zero": np.asarray(5, np.uint8),
        "bias": drawn(6),
    }  # fmt: skip
    model = one_node("DynamicQuantizeMatMul", [*given, *constants], 1, given, constants, ORT)
    agree(model, given, 1e-4)
    load(model.SerializeToString(), {})


def test_onnxruntimes_quantization() -> None:
    given = {"x": drawn(4, 9)}
    constants = {"scale": scales(), "zero": np.asarray(9, np.uint8)}
    model = one_node(
        "QuantizeLinear", [*given, *constants], 1, given, constants, ORT, dtypes=[np.uint8]
    )
    agree(model, given)
    given = {"x": drawn(4, 9, dtype=np.uint8)}
    model = one_node(
        "DequantizeLinear", [*given, *constants], 1, given, constants, ORT, dtypes=[np.float32]
    )
    agree(model, given)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_quantizing_and_dequantizing(dtype: type, axis: int | None) -> None:
    count = () if axis is None else (7,) if axis == 1 else (9,)
    constants = {"scale": scales(*count), "zero": np.full(count, middle(dtype))}
    attributes = {} if axis is None else {"axis": axis}
    for kind, given, out in (
        ("QuantizeLinear", {"x": drawn(4, 7, 9) * 3}, dtype),
        ("DequantizeLinear", {"x": drawn(4, 7, 9, dtype=dtype)}, np.float32),
    ):
        model = one_node(kind, [*given, *constants], 1, given, constants, dtypes=[out], opset=21,
                         **attributes)  # fmt: skip
        agree(model, given)
        load(model.SerializeToString(), {})


def test_numbers_are_rounded_to_even_and_bounded() -> None:
    constants = {"scale": np.asarray(0.5, np.float32), "zero": np.asarray(-3, np.int8)}
    given = {"x": np.asarray([0.25, 0.75, -0.25, -0.75, 63.9, 99.0, -99.0, 0.0], np.float32)}
    model = one_node("QuantizeLinear", [*given, *constants], 1, given, constants, dtypes=[np.int8],
                     opset=17)  # fmt: skip
    (found,) = run(replaced(model), given)
    assert found.tolist() == [-3, -1, -3, -5, 125, 127, -128, -3]


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 70), (2, 4, 9, 8)])
@pytest.mark.parametrize("opset", [17, 18])
def test_bytes_from_the_least_to_the_largest_number(shape: tuple[int, ...], opset: int) -> None:
    """Of numbers of both signs, of one, and of zeros alone."""
    for given in (drawn(*shape), np.abs(drawn(*shape)) + 2, np.zeros(shape, np.float32)):
        model = one_node("DynamicQuantizeLinear", ["x"], 3, {"x": given}, {},
                         dtypes=[np.uint8, np.float32, np.uint8], opset=opset)  # fmt: skip
        agree(model, {"x": given})


def moved(
    opset: int = 17, scale: float = 0.02, zero: int = 9, dtype: type = np.uint8
) -> onnx.ModelProto:
    """Numbers that are dequantized, transposed, reshaped, and quantized, with these numbers or
    those that they had."""
    n = Net(opset=opset)
    x = n.input("x", 4, 6, dtype=np.uint8)
    real = n.op("DequantizeLinear", x, n.const(0.02), n.const(9, np.uint8))
    real = n.op("Reshape", n.op("Transpose", real, perm=[1, 0]), n.ints(3, 8))
    whole = n.op("QuantizeLinear", real, n.const(scale), n.const(zero, dtype))
    return n.model(n.op("Cast", whole, to=onnx.TensorProto.FLOAT))


@pytest.mark.parametrize(
    ("numbers", "same"), [({}, True), ({"scale": 0.03}, False), ({"zero": 8}, False),
                          ({"dtype": np.int8}, False)],
)  # fmt: skip
def test_numbers_that_are_quantized_as_they_were_are_moved_alone(
    numbers: dict[str, object], same: bool
) -> None:
    model = moved(**numbers)
    given = {"x": drawn(4, 6, dtype=np.uint8)}
    (found,) = run(replaced(model), given)
    assert (found == run(model, given)[0]).all()
    kinds = {n.op_type for n in replaced(model).graph.node}
    flow = dataflow(load(model.SerializeToString(), {}).module["main"])
    names = {flow.operator(v) for v in flow.order}
    assert ("round" not in names) == same and "QuantizeLinear" not in kinds


def test_a_scale_for_each_row_is_not_moved_with_its_rows() -> None:
    n = Net(opset=17)
    x = n.input("x", 4, 4, dtype=np.uint8)
    numbers = n.const([0.02, 0.03, 0.01, 0.04]), n.const([9, 8, 7, 6], np.uint8)
    real = n.op("Transpose", n.op("DequantizeLinear", x, *numbers, axis=0), perm=[1, 0])
    whole = n.op("QuantizeLinear", real, *numbers, axis=0)
    model = n.model(n.op("Cast", whole, to=onnx.TensorProto.FLOAT))
    given = {"x": drawn(4, 4, dtype=np.uint8)}
    (found,) = run(replaced(model), given)
    assert (found == run(model, given)[0]).all()


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int16, np.uint8, np.int8])
@pytest.mark.parametrize("integers", [True, False])
def test_constants_are_dequantized_whatever_their_type(dtype: type, integers: bool) -> None:
    """The biases of quantized products are of 32 bits; a zero point leaves the range of 16."""
    x = drawn(9, 7, dtype=dtype)
    constants = {"x": x, "scale": scales()}
    if dtype is not np.int32:
        constants["zero"] = np.asarray(np.iinfo(dtype).min + 3, dtype)
    model = one_node("DequantizeLinear", [*constants], 1, {}, constants, dtypes=[np.float32],
                     opset=21)  # fmt: skip
    (wanted,) = run(model, {})
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    rewrite(changed, integers=integers)
    (found,) = run(changed, {})
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.UINT8, onnx.TensorProto.INT8])
def test_numbers_without_zero_points_are_moved_alone_in_their_own_type(dtype: int) -> None:
    n = Net(opset=21)
    x = n.input("x", 4, 6, dtype=np.uint8)
    real = n.op("DequantizeLinear", x, n.const(0.02))
    whole = n.op("QuantizeLinear", real, n.const(0.02), output_dtype=dtype)
    model = n.model(n.op("Cast", whole, to=onnx.TensorProto.FLOAT))
    given = {"x": drawn(4, 6, dtype=np.uint8)}
    (found,) = run(replaced(model), given)
    assert (found == run(model, given)[0]).all()
    rounds = "Round" in {node.op_type for node in replaced(model).graph.node}
    assert rounds == (dtype == onnx.TensorProto.INT8)


def signed(net: Net, x: str, zero: str) -> tuple[str, str]:
    """x quantized to int8, and dequantized."""
    numbers = [net.const(0.05), zero]
    q = net.op("QuantizeLinear", x, *numbers)
    return q, net.op("DequantizeLinear", q, *numbers)


@pytest.mark.parametrize("zero", [-128, 0, 17, 127])
def test_int8_numbers_are_read_as_uint8_ones_that_are_128_more(zero: int) -> None:
    """The int8 ones are left for what reads them otherwise, as a model's result does."""
    net = Net()
    q, y = signed(net, net.input("x", 4, 6), net.const(zero, np.int8))
    model = net.model(y, q)
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT8
    given = {"x": 3 * drawn(4, 6)}
    made = replaced(model)
    for found, wanted in zip(run(made, given), expected(model, given), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    makers = {n.output[0]: n for n in made.graph.node}
    kinds = [n.attribute[0].i for n in made.graph.node if n.op_type == "Cast"]
    assert onnx.TensorProto.UINT8 in kinds
    read = [n.input[0] for n in made.graph.node if n.op_type == "Cast" and n.attribute[0].i == 1]
    assert all(makers[x].attribute[0].i == onnx.TensorProto.UINT8 for x in read if x in makers)


def test_int8_numbers_stay_where_floats_are_multiplied_or_the_zero_point_is_not_known() -> None:
    def casts(model: onnx.ModelProto, integers: bool) -> list[int]:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        assert rewrite(made, integers=integers)
        return [n.attribute[0].i for n in made.graph.node if n.op_type == "Cast"]

    net = Net()
    known = net.model(signed(net, net.input("x", 4, 6), net.const(3, np.int8))[1])
    net = Net()
    x, zero = net.input("x", 4, 6), net.input("zero", dtype=np.int8)
    given = net.model(signed(net, x, zero)[1])
    assert onnx.TensorProto.UINT8 in casts(known, True)
    assert onnx.TensorProto.UINT8 not in casts(known, False)
    assert onnx.TensorProto.UINT8 not in casts(given, True)
    agree(given, {"x": drawn(4, 6), "zero": np.asarray(5, np.int8)}, 1e-6)


def test_moved_int8_numbers_that_are_quantized_as_they_were_are_read_so() -> None:
    net, numbers = Net(), []
    zero = net.const(-7, np.int8)
    _, y = signed(net, net.input("x", 4, 6), zero)
    numbers = [*net.nodes[-1].input[1:]]
    q = net.op("QuantizeLinear", net.op("Transpose", y, perm=[1, 0]), *numbers)
    model = net.model(net.op("DequantizeLinear", q, *numbers))
    agree(model, {"x": 3 * drawn(4, 6)}, 1e-6)
    casts = [n.attribute[0].i for n in replaced(model).graph.node if n.op_type == "Cast"]
    assert casts.count(onnx.TensorProto.UINT8) == 1
