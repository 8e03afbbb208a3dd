"""Rewrites einsums: those of two operands that are matrix products, and others of narrow floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.rewrite.body import NARROW


def einsums(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every einsum of two operands replaced by a batched matrix product.

    An einsum whose shapes are not known, or that is no such product, stays as it is; but it is
    computed of float32 where its operands are narrower, since TVM would sum in their type.
    """
    if not any(node.op_type == "Einsum" for node in proto.graph.node):
        return proto
    typed = onnx.shape_inference.infer_shapes(proto)
    shapes, types = _shapes(typed), _types(typed)
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        plan = _plan(node, shapes) if node.op_type == "Einsum" else None
        if plan is None:
            nodes += _in_float32(node, types) if node.op_type == "Einsum" else [node]
            continue
        steps, constants = plan
        nodes += steps
        made.graph.initializer.extend(constants)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = proto.graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.dim_value > 0 for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    graph = proto.graph
    types = {t.name: t.data_type for t in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    return types | {v.name: v.type.tensor_type.elem_type for v in values}


def _in_float32(node: onnx.NodeProto, types: Mapping[str, int]) -> list[onnx.NodeProto]:
    """An einsum with its operands and its result cast where they are narrow floats."""
    kind, result = types.get(node.input[0]), node.output[0]
    if kind not in NARROW:
        return [node]
    wide = [f"{result}_wide{i}" for i in range(len(node.input))]
    casts = [
        helper.make_node("Cast", [x], [y], f"{y}_cast", to=TensorProto.FLOAT)
        for x, y in zip(node.input, wide, strict=True)
    ]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:], made.output[:] = wide, [f"{result}_sums"]
    return [
        *casts,
        made,
        helper.make_node("Cast", made.output, [result], f"{result}_cast", to=kind),
    ]


def _plan(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """The nodes and constants that replace an einsum; None where it is no matrix product."""
    words = node.attribute[0].s.decode().replace(" ", "")
    inputs, arrow, out = words.partition("->")
    a, _, b = inputs.partition(",")
    if not arrow or not (a + b + out).isalpha() or any(i not in shapes for i in node.input):
        return None
    if len(node.input) != 2 or any(len(set(w)) != len(w) for w in (a, b, out)):
        return None
    sizes = dict(zip(a, shapes[node.input[0]], strict=True))
    for letter, extent in zip(b, shapes[node.input[1]], strict=True):
        if sizes.setdefault(letter, extent) != extent:
            return None
    batch = [x for x in out if x in a and x in b]
    rows = [x for x in out if x in a and x not in b]
    columns = [x for x in out if x in b and x not in a]
    depth = [x for x in a if x in b and x not in out]
    if {*batch, *rows, *depth} != set(a) or {*batch, *columns, *depth} != set(b):
        return None  # a letter of one operand alone is summed
    name = node.output[0]
    steps: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def step(kind: str, source: Sequence[str], target: str, **attributes: Sequence[int]) -> str:
        steps.append(helper.make_node(kind, source, [target], f"{name}_{kind}", **attributes))
        return target

    def reshaped(source: str, extents: Sequence[int], target: str) -> str:
        constants.append(numpy_helper.from_array(np.asarray(extents, np.int64), f"{target}_shape"))
        return step("Reshape", [source, constants[-1].name], target)

    def matrix(at: int, letters: str, one: Sequence[str], two: Sequence[str]) -> str:
        """An operand as matrices: the batch dimensions, then one for each of two groups of
        letters."""
        order = [letters.index(x) for x in (*batch, *one, *two)]
        transposed = step("Transpose", [node.input[at]], f"{name}_turned{at}", perm=order)
        groups = [math.prod(sizes[x] for x in g) for g in (one, two)]
        return reshaped(transposed, [*(sizes[x] for x in batch), *groups], f"{name}_matrix{at}")

    operands = [matrix(0, a, rows, depth), matrix(1, b, depth, columns)]
    result = step("MatMul", operands, f"{name}_product")
    order = [*batch, *rows, *columns]
    result = reshaped(result, [sizes[x] for x in order], f"{name}_apart")
    step("Transpose", [result], name, perm=[order.index(x) for x in out])
    return steps, constants
