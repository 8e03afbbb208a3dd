"""Small models of many kinds, from which the mutants are made."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from tests.support.paths import FIXTURES

_FIXTURES = (
    "attention_operator", "feed_forward_gelu", "softmax_over_rows", "attention_half",
    "normalization_spelled_out", "three_products", "attention_decode", "no_product",
)  # fmt: skip


def tensor(name: str, shape: list[int | str] | None, dtype: int = 1) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    numbers = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) / 10
    return numpy_helper.from_array(numbers, name)


def finished(
    graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None, opset: int = 18
) -> onnx.ModelProto:
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9, functions=functions)


def with_function() -> onnx.ModelProto:
    """y = f(f(x)), where f adds a constant."""
    body = [
        helper.make_node("Constant", [], ["c"], value=weight("c", 4)),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    sets = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "F", ["a"], ["b"], body, sets)
    nodes = [
        helper.make_node("F", ["x"], ["m"], domain="own"),
        helper.make_node("F", ["m"], ["y"], domain="own"),
    ]
    graph = helper.make_graph(nodes, "g", [tensor("x", [2, 4])], [tensor("y", [2, 4])])
    return finished(graph, [function])


def with_branches() -> onnx.ModelProto:
    """y is x w or x + 1, as a constant says."""
    one = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["p"])], "one", [],
                            [tensor("p", [2, 4])])  # fmt: skip
    two = helper.make_graph([helper.make_node("Add", ["x", "k"], ["q"])], "two", [],
                            [tensor("q", [2, 4])], [weight("k", 4)])  # fmt: skip
    node = helper.make_node("If", ["yes"], ["y"], then_branch=one, else_branch=two)
    graph = helper.make_graph(
        [node], "g", [tensor("x", [2, 4])], [tensor("y", [2, 4])],
        [weight("w", 4, 4), numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    return finished(graph)


def with_shapes() -> onnx.ModelProto:
    """Arithmetic of shapes, and what makes tensors from it."""
    numbers = {"n": [2, 3], "four": [4], "zero": [0], "one": [1], "reps": [1, 2], "pads": [0] * 4}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["s0"]),
        helper.make_node("Concat", ["s0", "four"], ["t"], axis=0),
        helper.make_node("ConstantOfShape", ["t"], ["full"]),
        helper.make_node("Expand", ["full", "t"], ["wide"]),
        helper.make_node("Tile", ["wide", "reps"], ["tiled"]),
        helper.make_node("Pad", ["tiled", "pads"], ["padded"]),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["padded", "n"], ["back"], allowzero=0),
        helper.make_node("Gather", ["p", "zero"], ["row"], axis=0),
        helper.make_node("Add", ["p", "row"], ["y"]),
    ]
    numbers["n"] = [-1, 4]
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items()]
    graph = helper.make_graph(
        nodes, "g", [tensor("x", [2, 4])], [tensor("y", [2, 4]), tensor("back", None)],
        [*weights, weight("w", 4, 4)],
    )  # fmt: skip
    return finished(graph)


def with_sparse() -> onnx.ModelProto:
    """A sparse weight, an embedding and a normalization."""
    values = numpy_helper.from_array(np.ones(2, np.float32), "s")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "s_indices")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["x"]),
            helper.make_node("MatMul", ["x", "s"], ["p"]),
            helper.make_node("LayerNormalization", ["p", "scale"], ["n"], axis=-1),
            helper.make_node("Softmax", ["n"], ["y"], axis=-1),
        ],
        "g", [tensor("ids", [3], TensorProto.INT64)], [tensor("y", [3, 4])],
        [weight("table", 5, 4), weight("scale", 4)],
        sparse_initializer=[helper.make_sparse_tensor(values, indices, [4, 4])],
    )  # fmt: skip
    return finished(graph)


def with_convolution() -> onnx.ModelProto:
    """Operators with many attributes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1], group=1),
        helper.make_node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMean", ["t", "axes"], ["r"], keepdims=1),
        helper.make_node("HardSwish", ["r"], ["h"]),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    graph = helper.make_graph(
        nodes, "g", [tensor("x", [1, 2, 8, 8])], [tensor("y", None)],
        [weight("w", 3, 2, 3, 3), axes],
    )  # fmt: skip
    return finished(graph)


def with_loops() -> onnx.ModelProto:
    """A loop that fills a list, a scan over what it makes, and a loop that stops on its own."""
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[3, 4] x) => (float[M, N] y, float[P] last, float[Q, R] late) {
        three = Constant<value = int64 {3}>()
        none = SequenceEmpty<dtype = 1>()
        all = Loop(three, "", none) <body = b (int64 i, bool c, seq(float) s)
            => (bool c, seq(float) more) {
            row = Gather<axis = 0>(x, i)
            twice = Add(row, row)
            more = SequenceInsert(s, twice)
        }>
        rows = ConcatFromSequence<axis = 0, new_axis = 1>(all)
        first = Constant<value = float[4] {0., 1., 2., 3.}>()
        last, y = Scan<num_scan_inputs = 1, body = d (float[K] state, float[K] a)
            => (float[K] next, float[K] out) { next = Add(state, a) out = Exp(next) }>(first, rows)
        sum = ReduceSum<keepdims = 0>(x)
        hundred = Constant<value = float {100.}>()
        small = Less(sum, hundred)
        late = Loop(three, small, x) <body = e (int64 i, bool c, float[Q, R] v)
            => (bool goes, float[Q, R] next) {
            next = Add(v, v)
            total = ReduceSum<keepdims = 0>(next)
            goes = Less(total, hundred)
        }>
    }""")


@cache
def seeds() -> tuple[bytes, ...]:
    """The models' bytes."""
    made = [with_function, with_branches, with_shapes, with_sparse, with_convolution, with_loops]
    files = [(FIXTURES / f"{name}.onnx").read_bytes() for name in _FIXTURES]
    return (*(m().SerializeToString(deterministic=True) for m in made), *files)
